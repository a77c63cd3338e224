# SPDX-License-Identifier: Apache-2.0
"""What a lake format must be able to do. Paimon, Iceberg, Lance and Delta do it; a new format is one more file.

The tiering engine, union reads and the server speak to these classes alone. Everything that travels between processes
(splits, write results) can be pickled, so that tasks may write and read anywhere while one driver commits.
"""

from __future__ import annotations

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import pyarrow as pa

from fluss.errors import ConfigError, FlussError, LakeTableAlreadyExistError
from fluss.metadata import Column, TableDescriptor, TableInfo, TablePath

T = TypeVar("T")

TIERING_USER = "__fluss_lake_tiering"
"""Who commits tiered data, in every format: how a restarted service knows its own snapshots."""

PartitionFilter = Callable[[tuple[str, ...]], bool]
"""Select partitions of a read by the values of their keys, as Fluss writes them."""

USER_PROPERTY = "commit-user"
"""Snapshot property with the name of who committed."""

OFFSETS_PROPERTY = "fluss-offsets"
"""Snapshot property with the path of the file that says which log offsets the snapshot reaches."""


def tiered_properties(offsets_path: str) -> dict[str, str]:
    """Properties of a snapshot that this service commits."""
    return {USER_PROPERTY: TIERING_USER, OFFSETS_PROPERTY: offsets_path}


class LakeTableChangedError(FlussError):
    """The lake table is not what the Fluss table needs: it was dropped, replaced, altered or rolled back."""


class LakeCommitConflictError(FlussError):
    """Another writer committed first; nothing of this attempt is visible."""


@dataclass(frozen=True)
class LakeBucket:
    """One bucket of a table or of one of its partitions, as both sides name it."""

    bucket: int
    partition: tuple[str, ...] = ()
    """The values of the partition keys as Fluss writes them; empty without partitions."""


@dataclass(frozen=True)
class Rows:
    """Rows of one bucket that a round moves to the lake."""

    batch: pa.RecordBatch
    offsets: np.ndarray[Any, np.dtype[np.int64]]
    """Of each row; -1 for rows that were listed and not read from the log."""
    timestamps_ms: np.ndarray[Any, np.dtype[np.int64]]
    """When the server committed each row; -1 where that is not known."""
    change_types: bytes | None = None
    """One byte a row for primary-key tables (see `ChangeType`); None means appended."""


@dataclass(frozen=True)
class WrittenFiles:
    """Files that a task wrote; readers see them once they are committed."""

    payload: Any
    rows: int
    files: int
    size_bytes: int


@dataclass(frozen=True)
class LakeCommit:
    """One snapshot in the history of a lake table."""

    snapshot_id: int
    properties: Mapping[str, str]
    replaces: bool = False
    """The table is not the continuation of what it was: it was restored or overwritten."""

    @property
    def tiered(self) -> bool:
        """Whether a tiering service committed it."""
        return self.properties.get(USER_PROPERTY) == TIERING_USER

    @property
    def offsets_path(self) -> str | None:
        """The file that says which log offsets a tiered snapshot reaches."""
        return self.properties.get(OFFSETS_PROPERTY)


@dataclass(frozen=True)
class LakeSplit:
    """A part of a snapshot that one task reads."""

    payload: Any
    rows: int
    bucket: LakeBucket | None = None
    """The bucket all rows belong to; None where the lake does not keep buckets apart."""
    exact: bool = False
    """Whether a table without a primary key has just so many rows here; else it may have fewer."""


@dataclass(frozen=True)
class LakeStats:
    """Size of a lake table at one snapshot."""

    files: int
    size_bytes: int
    rows: int
    snapshots: int


class LakeWriter(ABC):
    """Writes the rows of one bucket to new files, in one task."""

    @abstractmethod
    def write(self, rows: Rows) -> None:
        """Take rows, in offset order."""

    @property
    def full(self) -> bool:
        """Whether the rest must wait for another round, because what is held in memory has grown enough."""
        return False

    @abstractmethod
    def finish(self) -> WrittenFiles | None:
        """Close the files; None if there were no rows."""

    @abstractmethod
    def abort(self) -> None:
        """Remove what was written. Never raises."""


class OpenLakeTable(ABC):
    """One table of the lake, as it is now."""

    kind: ClassVar[str]
    """What errors call it: ``Paimon table``."""
    path: TablePath

    @property
    def what(self) -> str:
        """How errors name it."""
        return f"the {self.kind} {self.path}"

    @abstractmethod
    def differences(self, columns: Sequence[Column]) -> tuple[list[Column], list[str]]:
        """Columns of a Fluss table that this table lacks, and what of the others does not fit."""

    @abstractmethod
    def layout_differences(self, descriptor: TableDescriptor) -> list[str]:
        """What of keys, partitions and properties does not fit."""

    def missing_columns(self, info: TableInfo) -> list[Column]:
        """Columns that the Fluss table has and this table has not."""
        return self.differences(info.schema.columns)[0]

    def problems(self, descriptor: TableDescriptor) -> list[str]:
        """What keeps rows of a Fluss table from being written and read here."""
        missing, wrong = self.differences(descriptor.schema.columns)
        wrong = wrong + [f"column '{column.name}' is missing" for column in missing]
        return wrong + self.layout_differences(descriptor)

    @abstractmethod
    def add_columns(self, columns: Sequence[Column]) -> None:
        """Add columns that it lacks, nullable and after the user's last one."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Whether nothing was ever written to it."""

    def check(self, info: TableInfo) -> None:
        """Raise `LakeTableChangedError` unless rows of this Fluss table can be written and read here."""
        wrong = self.problems(info.descriptor)
        if wrong:
            raise LakeTableChangedError(f"{self.what} does not fit its Fluss table any more: {'; '.join(wrong)}")

    def conflict(self, reason: object) -> LakeCommitConflictError:
        """Make the error of a commit that came too late."""
        return LakeCommitConflictError(
            f"{self.what} was changed by another writer meanwhile ({reason!s:.200}); this round is abandoned"
        )

    def gone(self, snapshot_id: int) -> LakeTableChangedError:
        """Make the error of a read of a snapshot that is not there."""
        return LakeTableChangedError(f"snapshot {snapshot_id} of {self.what} is gone: it was expired or never there")

    @abstractmethod
    def writer(self, bucket: LakeBucket, info: TableInfo) -> LakeWriter:
        """A writer for the rows of one bucket."""

    @abstractmethod
    def commit(self, results: Sequence[WrittenFiles], offsets_path: str, known_id: int | None) -> int:
        """Make the files of all tasks visible at once and return the id of the new snapshot.

        With no results an empty snapshot is made, which carries the offsets. `known_id` is the tiered snapshot that
        the server knows of: if another one has come since, nothing is committed (`LakeCommitConflictError`).
        """

    @abstractmethod
    def abort(self, results: Sequence[WrittenFiles]) -> None:
        """Remove files that were certainly not committed. Never raises."""

    def refresh(self) -> None:  # noqa: B027 (Paimon's own objects always look at the table as it is)
        """Look at the table anew."""

    @abstractmethod
    def commits(self) -> Iterator[LakeCommit]:
        """Walk through the snapshots that led to the current one, newest first, as far as they are kept."""

    def tiered_after(self, known_id: int | None) -> LakeCommit | None:
        """The newest tiered snapshot if it is newer than the one the server knows, else None.

        Raises:
            LakeTableChangedError: The known snapshot is not part of this table's history any more.
        """
        found = None
        for commit in self.commits():
            if commit.snapshot_id == known_id and commit.tiered:
                return found
            if known_id is not None and (commit.snapshot_id == known_id or commit.replaces):
                break
            if found is None and commit.tiered:
                found = commit
        if known_id is not None:
            raise LakeTableChangedError(
                f"the history of {self.what} does not hold snapshot {known_id}, which was tiered before: it was rolled "
                "back, overwritten, created anew or cut. Put it back, or drop both tables and start over"
            )
        return found

    def check_newest(self, known_id: int | None) -> None:
        """Refuse to commit after another service did: `known_id` is the tiered snapshot that the server knows of."""
        if self.tiered_after(known_id) is not None:
            raise self.conflict("a round of another service was committed")

    def tiered_ids(self, limit: int) -> list[int]:
        """The newest tiered snapshots, newest first."""
        return list(itertools.islice((one.snapshot_id for one in self.commits() if one.tiered), limit))

    @abstractmethod
    def plan(
        self, snapshot_id: int, wanted: PartitionFilter | None = None, partition_keys: Sequence[str] = ()
    ) -> list[LakeSplit]:
        """The parts of a snapshot, of all partitions or of those that are wanted.

        The partition keys of the Fluss table are for formats that know no partitions.
        """

    @abstractmethod
    def read(self, split: LakeSplit, info: TableInfo, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a split with these columns, in the types of the Fluss table.

        Columns may be those that lake tables add, such as ``__offset``, as well.
        """

    def look_up(self, bucket: LakeBucket, info: TableInfo, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows of a bucket whose key columns may have the values of one of `keys`, all columns of the Fluss table.

        Rows with other keys may be among them.
        """
        raise ConfigError(f"{self.what} cannot be read by key: its format has no such reads here")

    @abstractmethod
    def stats(self, snapshot_id: int | None = None) -> LakeStats:
        """Files, bytes and rows of a snapshot (the newest by default)."""

    @abstractmethod
    def compact(self, *, files_min: int) -> list[WrittenFiles]:
        """Rewrite buckets of many small files into few; what comes back is to be committed with `commit_compaction`."""

    def commit_compaction(self, results: Sequence[WrittenFiles], offsets_path: str, known_id: int | None) -> int:
        """Like `commit`, for files that replace others without changing any row."""
        return self.commit(results, offsets_path, known_id)

    def expire(self, *, keep_min: int, older_than_ms: int, keep_ids: Collection[int]) -> list[int]:
        """Expire old snapshots and delete the files only they used; returns their ids.

        The newest `keep_min`, all younger than `older_than_ms` (epoch) and those of `keep_ids` stay. So does everything
        newer than one of `keep_ids`: recovery walks from there to the newest.
        """
        history = self.history_times()
        kept = max([keep_min, *(i + 1 for i, (snapshot_id, _) in enumerate(history) if snapshot_id in keep_ids)])
        old: list[int] = []
        # Only a run at the old end may go: a snapshot is found from its neighbours, or read on top of older ones.
        for snapshot_id, time_ms in reversed(history[kept:]):
            if time_ms >= older_than_ms:
                break
            old.append(snapshot_id)
        return sorted(self.drop_snapshots(old)) if old else []

    @abstractmethod
    def history_times(self) -> list[tuple[int, float]]:
        """The snapshots that led to the newest one, and when they were committed (epoch, ms), newest first."""

    @abstractmethod
    def drop_snapshots(self, old: Sequence[int]) -> list[int]:
        """Drop the oldest snapshots, and the files only they used; returns those that are gone."""

    def sweep(self, *, older_than_ms: int) -> list[str]:
        """Delete files that no snapshot uses and that were last touched before a time; returns their paths."""
        # List first: a file that is committed after the listing is then found among the used ones.
        files = self.old_files(older_than_ms)
        return self.delete(self.unused(files))

    @abstractmethod
    def old_files(self, older_than_ms: int) -> list[str]:
        """List the files of data and metadata that were last touched before a time."""

    @abstractmethod
    def unused(self, files: Sequence[str]) -> list[str]:
        """Those of the listed files that no snapshot needs now."""

    def delete(self, files: Iterable[str]) -> list[str]:
        """Delete files; returns those that are gone now. Never raises."""
        removed = []
        for file in files:
            with contextlib.suppress(Exception):
                self.delete_file(file)
                removed.append(file)
        return removed

    @abstractmethod
    def delete_file(self, file: str) -> None:
        """Delete one file."""


class Lake(ABC):
    """A lake: the catalog of one format."""

    place: ClassVar[str]
    """Where errors say that its tables are: ``in the Paimon catalog``."""

    @abstractmethod
    def create_table(self, path: TablePath, descriptor: TableDescriptor, *, must_be_empty: bool) -> None:
        """Create the table, or make sure that the one there fits.

        Raises:
            LakeTableAlreadyExistError: There is one that does not fit, or that is not empty but must be.
        """

    def add_columns(self, path: TablePath, columns: Sequence[Column]) -> None:
        """Add nullable columns after the user's last one. Columns that are there already are fine."""
        table = self.table(path)
        missing, _ = table.differences(columns)
        if missing:
            table.add_columns(missing)

    @abstractmethod
    def table(self, path: TablePath) -> OpenLakeTable:
        """Open a table; raises `LakeTableChangedError` if there is none."""

    def check_existing(self, path: TablePath, descriptor: TableDescriptor, *, must_be_empty: bool) -> None:
        """Refuse a table that is there already, if rows of a new Fluss table do not fit or others are in it."""
        table = self.table(path)
        wrong = table.problems(descriptor)
        if not wrong and must_be_empty and not table.is_empty():
            wrong = ["it is not empty"]
        if wrong:
            raise LakeTableAlreadyExistError(
                f"Table {path} already exists {self.place} and does not fit: {'; '.join(wrong)}. Drop it there, or "
                "choose another table name."
            )

    def missing(self, path: TablePath) -> LakeTableChangedError:
        """Make the error of a table that is not there."""
        return LakeTableChangedError(
            f"table {path} does not exist {self.place}; was it dropped there, or is it another lake?"
        )

    def close(self) -> None:  # noqa: B027 (most formats have nothing to close)
        """Give back connections; tables of this lake cannot be used any more."""

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Options = Mapping[str, str]
