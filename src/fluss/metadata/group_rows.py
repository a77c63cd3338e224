# SPDX-License-Identifier: Apache-2.0
"""The rows in which groups of followers keep who owns which bucket, and how far it is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fluss.errors import FormatError, InvalidArgumentError
from fluss.metadata.path import TableBucket, TablePath, bucket_text, parse_bucket

GROUPS_TABLE = TablePath("fluss_system", "fluss_groups")
VERSION = 1
INITIAL = 0
"""The number of no grant: where a group begins to read."""
FULL = -1
"""The position of a bucket whose current rows were not handled yet."""


class UnknownGroupError(InvalidArgumentError):
    """There is no group of this name."""


class Progress(NamedTuple):
    """How far a bucket was handled."""

    grant: int
    """The grant under which it was handled. A higher one replaces it."""
    offset: int
    """The next offset to handle."""


@dataclass(frozen=True)
class MemberRow:
    """What a member writes about itself."""

    member: str
    table_id: int
    timeout_ms: int
    joined: int
    """The end of the log when it joined: the older member comes first."""
    beat: int = 0
    owned: frozenset[TableBucket] = frozenset()
    wanted: frozenset[TableBucket] = frozenset()
    progress: Mapping[TableBucket, Progress] = field(default_factory=dict)
    """Of the buckets it owns, and of those it had, until the next owner has written its own."""
    left: bool = False
    host: str = ""

    def to_json(self) -> str:
        document = {
            "version": VERSION,
            "table_id": self.table_id,
            "timeout_ms": self.timeout_ms,
            "joined": self.joined,
            "beat": self.beat,
            "owned": sorted(map(bucket_text, self.owned)),
            "wanted": sorted(map(bucket_text, self.wanted)),
            "progress": {bucket_text(bucket): list(found) for bucket, found in self.progress.items()},
            "left": self.left,
            "host": self.host,
        }
        return json.dumps(document, separators=(",", ":"))

    @staticmethod
    def from_json(member: str, text: str) -> MemberRow:
        try:
            found: dict[str, Any] = json.loads(text)
            if found["version"] != VERSION:
                raise FormatError(
                    f"member {member!r} of a group writes version {found['version']}, this one reads {VERSION}: "
                    "let all members of a group run the same release of fluss-python"
                )
            table_id = int(found["table_id"])

            def buckets(names: Iterable[str]) -> frozenset[TableBucket]:
                return frozenset(parse_bucket(table_id, name) for name in names)

            row = MemberRow(
                member,
                table_id,
                int(found["timeout_ms"]),
                int(found["joined"]),
                int(found["beat"]),
                buckets(found["owned"]),
                buckets(found["wanted"]),
                {parse_bucket(table_id, name): Progress(*map(int, one)) for name, one in found["progress"].items()},
                bool(found["left"]),
                str(found["host"]),
            )
            if not row.owned <= row.progress.keys():
                raise ValueError("it owns a bucket without progress")
            return row
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise FormatError(f"the row of member {member!r} of a group cannot be read: {error}") from None


def add_progress(progress: dict[TableBucket, Progress], row: MemberRow) -> None:
    """Take what a row says about buckets into what is known: the higher grant counts."""
    for bucket, found in row.progress.items():
        known = progress.get(bucket)
        if known is None or found.grant > known.grant:
            progress[bucket] = found
        elif found.grant == known.grant:
            # Two members that were first both say where to begin: the earlier place loses nothing.
            choose = min if found.grant == INITIAL else max
            progress[bucket] = Progress(found.grant, choose(found.offset, known.offset))
