# SPDX-License-Identifier: Apache-2.0
"""What the options of the data source are made of: their types, and which side each is for."""

from __future__ import annotations

import json
from typing import TypeVar

from fluss.metadata import datetime_from_text, epoch_millis
from fluss.options import LONG_MAX, Choice, Option, OptionType

EARLIEST = -2
"""In offsets given as JSON: the first offset of the bucket."""
LATEST = -1
"""In offsets given as JSON: the end of the bucket."""

Offsets = dict[str, dict[int, int]]
"""Partition name (empty for tables without partitions) to bucket to offset."""


T = TypeVar("T")


class Moment(OptionType[int]):
    """A time, kept as milliseconds since 1970; text without a zone is in that of the driver."""

    kind = "time"

    def convert(self, value: object) -> int | None:
        text = str(value).strip()
        if text.isascii() and text.isdigit() and len(text) <= 18:
            return int(text)
        try:
            return epoch_millis(datetime_from_text(text))
        except (ValueError, OverflowError, OSError):
            return None

    def allowed(self) -> str:
        return "milliseconds since 1970 or 'yyyy-MM-dd HH:mm:ss'"


class BucketOffsets(OptionType[Offsets]):
    """Offsets by bucket, or by partition and bucket, as JSON; -2 is earliest, -1 is latest."""

    kind = "offsets"

    def convert(self, value: object) -> Offsets | None:
        try:
            document = json.loads(str(value))
        except (ValueError, RecursionError):
            return None
        if not isinstance(document, dict) or not document:
            return None
        nested = all(isinstance(part, dict) for part in document.values())
        offsets: Offsets = {}
        for partition, buckets in (document if nested else {"": document}).items():
            offsets[partition] = {}
            for bucket, offset in buckets.items():
                whole = isinstance(offset, int) and not isinstance(offset, bool) and EARLIEST <= offset <= LONG_MAX
                if not bucket.isascii() or not bucket.isdigit() or not whole:
                    return None
                offsets[partition][int(bucket)] = offset
        return offsets

    def allowed(self) -> str:
        return '{"<bucket>": <offset>} or {"<partition>": {"<bucket>": <offset>}} as JSON'


class JsonTexts(OptionType["list[str]"]):
    """Texts as a JSON array."""

    kind = "list"

    def convert(self, value: object) -> list[str] | None:
        try:
            document = json.loads(str(value))
        except (ValueError, RecursionError):
            return None
        return document if isinstance(document, list) and all(isinstance(one, str) for one in document) else None

    def allowed(self) -> str:
        return "a JSON array of texts"


class StartingPoint(OptionType["str | Offsets"]):
    """Where a read starts: a mode, or offsets as JSON."""

    kind = "choice"
    modes = Choice("full", "earliest", "latest", "timestamp", "offsets")

    def convert(self, value: object) -> str | Offsets | None:
        return BucketOffsets().convert(value) if str(value).strip().startswith("{") else self.modes.convert(value)

    def allowed(self) -> str:
        return f"{self.modes.allowed()}, or offsets as JSON"


class SparkOption(Option[T]):
    """One option of the data source, for reads, for writes or for both."""

    def __init__(
        self,
        key: str,
        type: OptionType[T],
        default: T,
        doc: str,
        *,
        aliases: tuple[str, ...] = (),
        reads: bool = False,
        writes: bool = False,
    ) -> None:
        super().__init__(key, type, default, doc, aliases=aliases)
        self.reads = reads
        self.writes = writes
