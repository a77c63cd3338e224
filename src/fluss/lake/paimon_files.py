# SPDX-License-Identifier: Apache-2.0
"""A Paimon table as its commits and its maintenance see it: snapshots, raw rows, and its files.

Which files there are, which to merge, and which are no longer used.
"""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
from pypaimon.manifest.index_manifest_file import IndexManifestFile
from pypaimon.manifest.manifest_file_manager import ManifestFileManager
from pypaimon.manifest.manifest_list_manager import ManifestListManager
from pypaimon.schema.data_types import PyarrowFieldParser
from pypaimon.snapshot.snapshot import BATCH_COMMIT_IDENTIFIER
from pypaimon.table.bucket_mode import BucketMode
from pypaimon.tag.tag_manager import TagManager
from pypaimon.utils.file_store_path_factory import canonical_data_file_path
from pypaimon.write.commit_message_serializer import deserialize_commit_message, serialize_commit_message

from fluss.lake.api import (
    OFFSETS_PROPERTY,
    TIERING_USER,
    USER_PROPERTY,
    LakeCommit,
    LakeCommitConflictError,
    LakeStats,
    LakeTableChangedError,
    OpenLakeTable,
    WrittenFiles,
)
from fluss.lake.layout import to_fluss
from fluss.metadata import TablePath

_log = logging.getLogger("fluss.lake")

_SMALL_SHARE = 0.25
"""A primary-key bucket is rewritten when this share of its bytes came since the last time."""
_LEVEL_MAX = 5


class _UsedFiles:
    """The files that snapshots refer to, by name (names are unique in a table), with their paths."""

    def __init__(self, table: PaimonStore) -> None:
        self._table = table
        self._lists = ManifestListManager(table.table)
        self._manifests = ManifestFileManager(table.table)
        self._indexes = IndexManifestFile(table.table)
        self._entries: dict[str, list[tuple[int, list[tuple[int, str]]]]] = {}
        self.paths: dict[str, str] = {}
        """All files the snapshots mention, also those that one of them deleted."""
        self.live: set[str] = set()
        """The files that at least one of the snapshots needs."""

    def add(self, snapshots: Iterable[Any]) -> _UsedFiles:
        for snapshot in snapshots:
            added: set[tuple[int, str]] = set()
            deleted: set[tuple[int, str]] = set()
            for meta in self._manifest_list(snapshot.base_manifest_list, snapshot.delta_manifest_list):
                for kind, files in self._manifest(meta.file_name):
                    (added if kind == 0 else deleted).update(files)
            self.live.update(name for _, name in added - deleted)
            for meta in self._manifest_list(snapshot.changelog_manifest_list):
                for _, files in self._manifest(meta.file_name):
                    self.live.update(name for _, name in files)
            if snapshot.index_manifest:
                self._metadata("manifest", snapshot.index_manifest)
                for entry in self._indexes.read(snapshot.index_manifest):
                    self._metadata("index", entry.index_file.file_name)
            if snapshot.statistics:
                self._metadata("statistics", snapshot.statistics)
        return self

    def _manifest_list(self, *names: str | None) -> Iterator[Any]:
        for name in names:
            if name:
                self._metadata("manifest", name)
                yield from self._lists.read(name)

    def _manifest(self, manifest: str) -> list[tuple[int, list[tuple[int, str]]]]:
        """The entries of a manifest: whether they add (0) or delete, and their files with their level.

        A compaction that moves a file to another level without writing it anew deletes it from the one and adds it to
        the other, under the same name.
        """
        found = self._entries.get(manifest)
        self._metadata("manifest", manifest)
        if found is None:
            found = self._entries[manifest] = []
            for entry in self._manifests.read(manifest):
                file = entry.file
                path = file.external_path or self._table.data_path(tuple(entry.partition.values), entry.bucket, file)
                names = [file.file_name, *(file.extra_files or [])]
                folder = path.rsplit("/", 1)[0]
                self.paths.update({name: f"{folder}/{name}" for name in names})
                found.append((entry.kind, [(file.level, name) for name in names]))
        return found

    def _metadata(self, folder: str, name: str) -> None:
        self.paths[name] = f"{self._table.table.table_path}/{folder}/{name}"
        self.live.add(name)


def _files(table: PaimonStore) -> Iterator[tuple[str, int]]:
    file_io, root = table.table.file_io, table.table.table_path
    folders = [f"{root}/{name}" for name in ("manifest", "index", "statistics")]
    for entry in _entries(file_io, root):
        name = str(entry.path).rstrip("/").rsplit("/", 1)[-1]
        if _is_folder(entry) and (name.startswith("bucket-") or "=" in name):
            folders.append(f"{root}/{name}")
    while folders:
        folder = folders.pop()
        for entry in _entries(file_io, folder):
            name = str(entry.path).rstrip("/").rsplit("/", 1)[-1]
            if _is_folder(entry):
                folders.append(f"{folder}/{name}")
            else:
                yield f"{folder}/{name}", _modified_ms(entry)


def _entries(file_io: Any, folder: str) -> list[Any]:
    return list(file_io.list_status(folder)) if file_io.exists(folder) else []


def _is_folder(entry: Any) -> bool:
    return bool(entry.type == pafs.FileType.Directory)


def _modified_ms(entry: Any) -> int:
    stamp = getattr(entry, "mtime", None)
    if stamp is None:
        return 2**62  # unknown is not old
    return int((stamp if isinstance(stamp, float | int) else stamp.timestamp()) * 1000)


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

    def newer_than(self, known_id: int | None, latest: Any) -> LakeCommit | None:
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
        for commit in self.commits(latest):
            if known_id is not None and commit.snapshot_id <= known_id:
                return None
            if commit.tiered:
                return commit
        return None

    def commits(self, latest: Any = None) -> Iterator[LakeCommit]:
        for snapshot in self.snapshots_from(latest):
            yield LakeCommit(snapshot.id, {**(snapshot.properties or {}), USER_PROPERTY: snapshot.commit_user})

    def snapshots_from(self, snapshot: Any = None) -> Iterator[Any]:
        """Walk through all snapshots there are from one on (the newest by default), newest first."""
        snapshot = snapshot or self.snapshots.get_latest_snapshot()
        while snapshot is not None:
            yield snapshot
            snapshot = self.snapshot(snapshot.id - 1)

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

    def raw_splits(self, snapshot_id: int, wanted: Any = None) -> list[Any]:
        """Plan a read of a whole snapshot, or of what may hold the rows of a predicate."""
        if self.snapshot(snapshot_id) is None:
            raise self.gone(snapshot_id)
        options = {"scan.snapshot-id": str(snapshot_id), "read.native.enabled": "false"}
        return list(self.table.copy(options).new_read_builder().with_filter(wanted).new_scan().plan().splits())

    def read_raw(
        self, snapshot_id: int, splits: Sequence[Any], columns: Sequence[str] | None, wanted: Any = None
    ) -> Iterator[Any]:
        """Read the rows of some splits, or those of a predicate, as Paimon has them."""
        table = self.table.copy({"scan.snapshot-id": str(snapshot_id), **NATIVE})
        builder = table.new_read_builder().with_filter(wanted)
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

    def stats(self, snapshot_id: int | None = None) -> LakeStats:
        latest = self.snapshots.get_latest_snapshot()
        if latest is None:
            return LakeStats(0, 0, 0, 0)
        files = [file for split in self.raw_splits(snapshot_id or latest.id) for file in split.files]
        return LakeStats(
            len(files),
            sum(file.file_size for file in files),
            sum(file.row_count for file in files),
            sum(1 for _ in self.snapshots_from()),
        )

    def compact(self, *, files_min: int) -> list[WrittenFiles]:
        """Merge buckets of many files. The rows stay what they are, so nothing but speed depends on this."""
        latest = self.snapshots.get_latest_snapshot()
        if latest is None:
            return []
        groups: dict[tuple[tuple[Any, ...], int], list[Any]] = defaultdict(list)
        for split in self.raw_splits(latest.id):
            groups[tuple(split.partition.values), split.bucket].append(split)
        results = []
        for (partition, bucket), splits in groups.items():
            chosen = self._worth_it(splits, files_min)
            if chosen:
                results.append(self._rewrite(latest.id, partition, bucket, chosen))
        return results

    def _worth_it(self, splits: Sequence[Any], files_min: int) -> list[Any]:
        """The splits of a bucket to rewrite; none if it is not worth the work yet."""
        files = [file for split in splits for file in split.files]
        target = self.table.options.target_file_size(self.table.is_primary_key_table)
        if self.table.is_primary_key_table:
            # Only a whole bucket may drop deletes and older rows, so the size of what is new decides.
            new = [file for file in files if file.level == 0]
            enough = sum(file.file_size for file in new) >= _SMALL_SHARE * sum(file.file_size for file in files)
            return list(splits) if len(new) >= files_min and (enough or len(new) >= 5 * files_min) else []
        small = [split for split in splits if all(file.file_size < target // 2 for file in split.files)]
        return small if sum(len(split.files) for split in small) >= files_min else []

    def _rewrite(
        self, snapshot_id: int, partition: tuple[Any, ...], bucket: int, splits: Sequence[Any]
    ) -> WrittenFiles:
        from pypaimon.write.native_commit import create_native_write_table, from_native_commit_messages

        raw = self.table
        # Compaction changes no row, so it has no changelog.
        quiet = raw.copy({"changelog-producer": "none", "write.native.enabled": "true"})
        native = create_native_write_table(quiet)
        if native is None:
            raise LakeTableChangedError(f"the Paimon table {self.path} cannot be compacted without pypaimon-rust")
        writer = native.new_batch_write_builder()._with_commit_user(TIERING_USER).new_write()
        schema = PyarrowFieldParser.from_paimon_schema(raw.table_schema.fields)
        aware = raw.bucket_mode() == BucketMode.HASH_FIXED
        rows = 0
        try:
            for batch in self.read_raw(snapshot_id, splits, None):
                batch = to_fluss(batch, schema)
                if raw.is_primary_key_table:
                    batch = with_kinds(batch, None)
                writer.write_arrow(batch, bucket if aware else None)
                rows += batch.num_rows
            messages = from_native_commit_messages(quiet, writer.prepare_commit()) if rows else []
        finally:
            with contextlib.suppress(Exception):
                writer.close()
            # Here: it may be dropped in this thread only, and an error would keep it until garbage is collected.
            del writer
        new = [file for message in messages for file in message.new_files]
        if raw.is_primary_key_table and len(new) == 1:
            # One sorted run that holds all there is: readers need not merge it with anything.
            new[0].level = _LEVEL_MAX
        old = [file for split in splits for file in split.files]
        payload = {
            "partition": partition,
            "bucket": bucket,
            "new": [serialize_commit_message(message, raw.partition_keys_fields) for message in messages],
            "old": old,
        }
        return WrittenFiles([payload], rows, len(old), sum(file.file_size for file in new))

    def commit_compaction(self, results: Sequence[WrittenFiles], offsets_path: str, known_id: int | None) -> int:
        from pypaimon.write.commit_message import CommitMessage

        messages = []
        for result in results:
            for payload in result.payload:
                new = self.messages([WrittenFiles(payload["new"], 0, 0, 0)])
                files = [file for message in new for file in message.new_files]
                messages.append(
                    CommitMessage(
                        partition=payload["partition"],
                        bucket=payload["bucket"],
                        new_files=files,
                        deleted_files=payload["old"],
                    )
                )

        def compact(commit: Any) -> None:
            store = commit.file_store_commit
            entries = store._collect_manifest_entries(messages)
            store._try_commit(
                commit_kind="COMPACT",
                commit_identifier=BATCH_COMMIT_IDENTIFIER,
                commit_entries_plan=lambda latest: entries,
                detect_conflicts=True,
                allow_rollback=False,
                changelog_entries=[],
                snapshot_properties={OFFSETS_PROPERTY: offsets_path},
            )

        return self.land(compact, offsets_path, known_id)

    def land(self, make: Callable[[Any], None], offsets_path: str, known_id: int | None) -> int:
        """Let `make` use a commit that only goes ahead while no other tiered snapshot has come; returns its id."""
        commit = self.table.new_batch_write_builder()._with_commit_user(TIERING_USER).new_commit()
        landed = _Landed()
        try:
            commit.add_commit_callback(landed)
            _guard(commit.file_store_commit, self, known_id)
            make(commit)
        finally:
            commit.close()
        # A commit that raced with another of the same user may look as if it landed when the other one did.
        snapshot = landed.snapshot
        if snapshot is None or (snapshot.properties or {}).get(OFFSETS_PROPERTY) != offsets_path:
            raise LakeCommitConflictError(f"the commit to {self.what} was overtaken by another one")
        return int(snapshot.id)

    def history_times(self) -> list[tuple[int, float]]:
        return [(snapshot.id, snapshot.time_millis) for snapshot in self.snapshots_from()]

    def drop_snapshots(self, old: Sequence[int]) -> list[int]:
        if self._has_branches():
            _log.warning("snapshots of %s are not expired: it has branches", self.what)
            return []
        # A streaming read that keeps its position in the table needs the snapshots from there on.
        next_read = self.table.consumer_manager().min_next_snapshot()
        old = [snapshot_id for snapshot_id in old if next_read is None or snapshot_id < next_read]
        if not old:
            return []
        snapshots = list(self.snapshots_from())
        kept = [snapshot for snapshot in snapshots if snapshot.id > old[-1]]
        # What files are for is read before anything is deleted. A crash half-way leaves unused files to the sweep.
        live = _UsedFiles(self).add(kept + self._pinned()).live
        gone = _UsedFiles(self).add(snapshot for snapshot in snapshots if snapshot.id <= old[-1]).paths
        earliest = f"{self.table.table_path}/snapshot/EARLIEST"
        self.table.file_io.overwrite_file_utf8(earliest, str(old[-1] + 1))
        self.delete(self.snapshots.get_snapshot_path(snapshot_id) for snapshot_id in old)
        self.delete(path for name, path in gone.items() if name not in live)
        return list(old)

    def old_files(self, older_than_ms: int) -> list[str]:
        if self._has_branches():
            return []
        return [path for path, modified_ms in _files(self) if modified_ms < older_than_ms]

    def unused(self, files: Sequence[str]) -> list[str]:
        """Of data, manifests and indexes, what no snapshot or tag refers to."""
        used = _UsedFiles(self).add([*self.snapshots_from(), *self._pinned()]).live
        return [path for path in files if path.rsplit("/", 1)[-1] not in used]

    def delete_file(self, file: str) -> None:
        self.table.file_io.delete_quietly(file)

    def _pinned(self) -> list[Any]:
        """Snapshots that tags keep alive."""
        tags = TagManager(self.table.file_io, self.table.table_path)
        return [tag for name in tags.list_tags() if (tag := tags.get(name)) is not None]

    def _has_branches(self) -> bool:
        # The files that a branch needs are not looked for here.
        return bool(self.table.file_io.exists(f"{self.table.table_path}/branch"))


def _guard(file_store_commit: Any, table: PaimonStore, known_id: int | None) -> None:
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


class _Landed:
    """A commit callback that remembers the snapshot."""

    snapshot: Any = None

    def call(self, context: Any) -> None:
        self.snapshot = context.snapshot

    def close(self) -> None:
        pass


def with_kinds(batch: pa.RecordBatch, change_types: bytes | None) -> pa.RecordBatch:
    """Row kinds as Paimon counts them: +I 0, -U 1, +U 2, -D 3."""
    if change_types is None:
        kinds = np.zeros(batch.num_rows, np.int8)
    else:
        kinds = np.maximum(np.frombuffer(change_types, np.uint8).astype(np.int8) - 1, 0)
    field = pa.field("_VALUE_KIND", pa.int8(), nullable=False)
    return pa.RecordBatch.from_arrays([*batch.columns, pa.array(kinds, pa.int8())], schema=batch.schema.append(field))
