# SPDX-License-Identifier: Apache-2.0
"""A Paimon table as its commits and its maintenance see it: snapshots, files, raw rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pypaimon.utils.file_store_path_factory import canonical_data_file_path
from pypaimon.write.commit_message_serializer import deserialize_commit_message

from fluss.lake.api import (
    OFFSETS_PROPERTY,
    TIERING_USER,
    LakeCommitConflictError,
    LakeTableChangedError,
    OpenLakeTable,
    TieredSnapshot,
    WrittenFiles,
)
from fluss.metadata import TablePath

NATIVE = {"write.native.enabled": "true", "read.native.enabled": "true"}


class PaimonStore(OpenLakeTable):
    """The snapshots and files of one Paimon table."""

    kind = "Paimon table"

    def __init__(self, path: TablePath, table: Any) -> None:
        self.path = path
        self.table = table.copy({"snapshot.ignore-empty-commit": "false"})

    @property
    def snapshots(self) -> Any:
        """Return Paimon's own access to the snapshots."""
        return self.table.snapshot_manager()

    def snapshot(self, snapshot_id: int) -> Any:
        """Return a snapshot, None if it is gone."""
        return self.snapshots.get_snapshot_by_id(snapshot_id)

    def newer_than(self, known_id: int | None, latest: Any) -> TieredSnapshot | None:
        """Return the newest tiered snapshot up to `latest` that came after a known one."""
        if known_id is not None:
            latest_id = 0 if latest is None else latest.id
            if latest_id < known_id:
                raise LakeTableChangedError(
                    f"the Paimon table {self.path} ends at snapshot {latest_id}, but snapshot {known_id} was tiered "
                    "before: it was rolled back or created anew. Put it back, or drop both tables and start over"
                )
            known = self.snapshot(known_id)
            if known is not None and known.commit_user != TIERING_USER:
                raise LakeTableChangedError(
                    f"snapshot {known_id} of the Paimon table {self.path} was tiered once and is now another writer's: "
                    "the table was created anew. Drop both tables and start over"
                )
        snapshot = latest
        while snapshot is not None and (known_id is None or snapshot.id > known_id):
            if snapshot.commit_user == TIERING_USER:
                path = (snapshot.properties or {}).get(OFFSETS_PROPERTY)
                return TieredSnapshot(snapshot.id, path)
            snapshot = self.snapshot(snapshot.id - 1)
        return None

    def data_path(self, partition: tuple[Any, ...], bucket: int, file: Any) -> str:
        """Return the path of a data file."""
        return str(canonical_data_file_path(self.table, partition, bucket, file.file_name))

    def messages(self, results: Sequence[WrittenFiles]) -> list[Any]:
        """Return the commit messages that writers left, with the paths of their files."""
        fields, key = self.table.partition_keys_fields, self.table.trimmed_primary_keys_fields
        messages = []
        for data in self._serialized(results):
            message = deserialize_commit_message(data, fields, key)
            for file in message.new_files + message.changelog_files:
                file.file_path = file.external_path or self.data_path(tuple(message.partition), message.bucket, file)
            messages.append(message)
        return messages

    @staticmethod
    def _serialized(results: Sequence[WrittenFiles]) -> Iterator[bytes]:
        for result in results:
            for item in result.payload:
                # A compaction also says which files it replaces.
                yield from item["new"] if isinstance(item, dict) else [item]

    def raw_splits(self, snapshot_id: int) -> list[Any]:
        """Plan a read of a whole snapshot."""
        if self.snapshot(snapshot_id) is None:
            raise self.gone(snapshot_id)
        options = {"scan.snapshot-id": str(snapshot_id), "read.native.enabled": "false"}
        return list(self.table.copy(options).new_read_builder().new_scan().plan().splits())

    def read_raw(self, snapshot_id: int, splits: Sequence[Any], columns: Sequence[str] | None) -> Iterator[Any]:
        """Read the rows of some splits as Paimon has them."""
        table = self.table.copy({"scan.snapshot-id": str(snapshot_id), **NATIVE})
        builder = table.new_read_builder()
        if columns is not None:
            known = {field.name for field in table.table_schema.fields}
            builder = builder.with_projection([name for name in columns if name in known])
        reader = builder.new_read().to_arrow_batch_reader(list(splits))
        try:
            for batch in reader:
                if batch.num_rows:
                    yield batch
        finally:
            close = getattr(reader, "close", None)
            if close is not None:
                close()


def guard(file_store_commit: Any, table: PaimonStore, known_id: int | None) -> None:
    """Let a commit, and every retry of it, go ahead only while no other tiered snapshot has come."""
    attempt: Callable[..., Any] = file_store_commit._try_commit

    def guarded(*arguments: Any, **options: Any) -> Any:
        entries_of = options["commit_entries_plan"]

        def checked(latest: Any) -> Any:
            newer = table.newer_than(known_id, latest)
            if newer is not None:
                raise LakeCommitConflictError(
                    f"snapshot {newer.snapshot_id} of the Paimon table {table.path} was tiered meanwhile by another "
                    "service; this round ends"
                )
            return entries_of(latest)

        options["commit_entries_plan"] = checked
        return attempt(*arguments, **options)

    file_store_commit._try_commit = guarded


class Landed:
    """A commit callback that remembers the snapshot."""

    def __init__(self) -> None:
        self.snapshot: Any = None

    def call(self, context: Any) -> None:
        self.snapshot = context.snapshot

    def close(self) -> None:
        pass

    def check(self, offsets_path: str, path: TablePath) -> int:
        # A commit that raced with another of the same user may look as if it landed when the other one did.
        snapshot = self.snapshot
        if snapshot is None or (snapshot.properties or {}).get(OFFSETS_PROPERTY) != offsets_path:
            raise LakeCommitConflictError(f"the commit to the Paimon table {path} was overtaken by another one")
        return int(snapshot.id)
