# SPDX-License-Identifier: Apache-2.0
"""Properties of a table that the library of its lake takes: ``paimon.*``, ``iceberg.*``, ``lance.*``, ``delta.*``.

Libraries import Python names, connect to addresses and write to paths that options of a table give them. Who may
create a table may therefore only choose from this list, which has none of these: sizes, counts, codecs and switches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fluss.errors import InvalidConfigError
from fluss.options import LONG_MAX, Boolean, Choice, Duration, Option, OptionTable, OptionType, Size, Whole

LIST_SIZE_SUFFIX = ".arrow.fixed-size-list.size"
"""The property ``<column>.arrow.fixed-size-list.size`` of a table gives the length of all arrays of a column."""


class _Matching(OptionType[str]):
    """A text of a given form."""

    kind = "string"

    def __init__(self, pattern: str, words: str) -> None:
        self._pattern = re.compile(pattern)
        self._words = words

    def convert(self, value: object) -> str | None:
        return value if isinstance(value, str) and self._pattern.fullmatch(value) else None

    def allowed(self) -> str:
        return self._words


_COUNT = Whole(1)
_BYTES = Whole(1, LONG_MAX)
_MILLISECONDS = Whole(0, LONG_MAX)
_SWITCH = Boolean()
_STATS = _Matching(r"none|counts|full|truncate\(\d{1,4}\)", "none, counts, full or truncate(N)")
_INTERVAL = _Matching(r"interval \d{1,6} (second|minute|hour|day|week)s?", "a text such as 'interval 30 days'")
_ROW_CHANGES = Choice("copy-on-write", "merge-on-read")

_ROWS: dict[str, dict[str, OptionType[Any]]] = {
    "paimon": {
        "target-file-size": Size(1),
        "file.format": Choice("parquet", "orc", "avro"),
        "file.compression": Choice("zstd", "lz4", "snappy", "gzip", "none"),
        "file.compression.zstd-level": Whole(1, 22),
        "file.block-size": Size(1),
        "manifest.compression": Choice("zstd", "snappy", "null"),
        "manifest.target-file-size": Size(1),
        "metadata.stats-mode": _STATS,
        "changelog-producer": Choice("none", "input", "full-compaction", "lookup"),
        "deletion-vectors.enabled": _SWITCH,
        "write-only": _SWITCH,
        "num-sorted-run.compaction-trigger": _COUNT,
        "num-sorted-run.stop-trigger": _COUNT,
        "snapshot.num-retained.min": _COUNT,
        "snapshot.num-retained.max": _COUNT,
        "snapshot.time-retained": Duration(),
    },
    "iceberg": {
        "write.format.default": Choice("parquet"),
        "write.target-file-size-bytes": _BYTES,
        "write.parquet.compression-codec": Choice("zstd", "snappy", "gzip", "lz4", "brotli", "uncompressed"),
        "write.parquet.compression-level": Whole(1, 22),
        "write.parquet.row-group-size-bytes": _BYTES,
        "write.parquet.row-group-limit": _COUNT,
        "write.parquet.page-size-bytes": _BYTES,
        "write.parquet.page-row-limit": _COUNT,
        "write.parquet.dict-size-bytes": _BYTES,
        "write.metadata.compression-codec": Choice("none", "gzip"),
        "write.metadata.metrics.default": _STATS,
        "write.metadata.previous-versions-max": _COUNT,
        "write.metadata.delete-after-commit.enabled": _SWITCH,
        "write.delete.mode": _ROW_CHANGES,
        "write.update.mode": _ROW_CHANGES,
        "write.merge.mode": _ROW_CHANGES,
        "write.distribution-mode": Choice("none", "hash", "range"),
        "commit.manifest.target-size-bytes": _BYTES,
        "commit.manifest.min-count-to-merge": _COUNT,
        "commit.manifest-merge.enabled": _SWITCH,
        "commit.retry.num-retries": Whole(0, 100),
        "history.expire.max-snapshot-age-ms": _MILLISECONDS,
        "history.expire.min-snapshots-to-keep": _COUNT,
        "read.split.target-size": _BYTES,
    },
    "lance": {
        "max_row_per_file": _COUNT,
        "max_rows_per_group": _COUNT,
        "max_bytes_per_file": _BYTES,
    },
    "delta": {
        "checkpointInterval": _COUNT,
        "logRetentionDuration": _INTERVAL,
        "deletedFileRetentionDuration": _INTERVAL,
        "enableExpiredLogCleanup": _SWITCH,
        "dataSkippingNumIndexedCols": Whole(-1),
        "targetFileSize": _BYTES,
    },
}


class LakeProperty(Option[Any]):
    """One property that the library of a lake format takes."""

    def refusal(self, given: str) -> InvalidConfigError:
        return InvalidConfigError(
            f"Invalid value for config '{self.key}'. Reason: got {given}, but it takes {self.type.allowed()}"
        )


LAKE_PROPERTIES: dict[str, OptionTable[LakeProperty]] = {
    lake_format: OptionTable(
        "lake property", [LakeProperty(f"{lake_format}.{name}", kind, None, "") for name, kind in rows.items()]
    )
    for lake_format, rows in _ROWS.items()
}
"""The properties of a table that are handed to its lake, by format and name."""


def check_lake_properties(properties: Mapping[str, str]) -> None:
    """Refuse a property for the library of a lake that is not on its list, or that has another value (code 39)."""
    for name, text in properties.items():
        table = LAKE_PROPERTIES.get(name.partition(".")[0])
        if table is None or "." not in name or name.endswith(LIST_SIZE_SUFFIX):
            continue
        known = table.get(name)
        if known is None:
            near = table.suggest(name)
            hint = f"did you mean '{near}'?" if near else f"the properties are {', '.join(table)}"
            raise InvalidConfigError(f"'{name:.200}' is not a property that a table may give to its lake", hint=hint)
        known.parse(text)


def lake_options(lake_format: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that are handed to the library of a lake, without the name of the format before them."""
    check_lake_properties(properties)
    prefix = f"{lake_format}."
    return {name[len(prefix) :]: text for name, text in properties.items() if name in LAKE_PROPERTIES[lake_format]}
