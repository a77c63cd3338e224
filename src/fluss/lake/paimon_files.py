# SPDX-License-Identifier: Apache-2.0
"""The files of a Paimon table: how many, which to merge, which are no longer used."""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pypaimon.manifest.index_manifest_file import IndexManifestFile
from pypaimon.manifest.manifest_file_manager import ManifestFileManager
from pypaimon.manifest.manifest_list_manager import ManifestListManager
from pypaimon.schema.data_types import PyarrowFieldParser
from pypaimon.snapshot.snapshot import BATCH_COMMIT_IDENTIFIER
from pypaimon.table.bucket_mode import BucketMode
from pypaimon.tag.tag_manager import TagManager
from pypaimon.write.commit_message_serializer import serialize_commit_message

from fluss.lake.api import OFFSETS_PROPERTY, TIERING_USER, LakeStats, LakeTableChangedError, WrittenFiles
from fluss.lake.paimon_store import Landed, PaimonStore, guard

_log = logging.getLogger("fluss.lake")

_SMALL_SHARE = 0.25
"""A primary-key bucket is rewritten when this share of its bytes came since the last time."""
_LEVEL_MAX = 5


def stats(table: PaimonStore, snapshot_id: int | None) -> LakeStats:
    latest = table.snapshots.get_latest_snapshot()
    if latest is None:
        return LakeStats(0, 0, 0, 0)
    files = [file for split in table.raw_splits(snapshot_id or latest.id) for file in split.files]
    return LakeStats(
        len(files),
        sum(file.file_size for file in files),
        sum(file.row_count for file in files),
        sum(1 for _ in _snapshots(table)),
    )


def _snapshots(table: PaimonStore) -> Iterator[Any]:
    """All snapshots there are, newest first."""
    snapshot = table.snapshots.get_latest_snapshot()
    while snapshot is not None:
        yield snapshot
        snapshot = table.snapshots.get_snapshot_by_id(snapshot.id - 1)


# -- compaction ---------------------------------------------------------------------------------------------------


def compact(table: PaimonStore, files_min: int) -> list[WrittenFiles]:
    """Merge buckets of many files. The rows stay what they are, so nothing but speed depends on this."""
    latest = table.snapshots.get_latest_snapshot()
    if latest is None:
        return []
    groups: dict[tuple[tuple[Any, ...], int], list[Any]] = defaultdict(list)
    for split in table.raw_splits(latest.id):
        groups[tuple(split.partition.values), split.bucket].append(split)
    results = []
    for (partition, bucket), splits in groups.items():
        chosen = _worth_it(table, splits, files_min)
        if chosen:
            results.append(_rewrite(table, latest.id, partition, bucket, chosen))
    return results


def _worth_it(table: PaimonStore, splits: Sequence[Any], files_min: int) -> list[Any]:
    """The splits of a bucket to rewrite; none if it is not worth the work yet."""
    files = [file for split in splits for file in split.files]
    target = table.table.options.target_file_size(table.table.is_primary_key_table)
    if table.table.is_primary_key_table:
        # Only a whole bucket may drop deletes and older rows, so the size of what is new decides.
        new = [file for file in files if file.level == 0]
        enough = sum(file.file_size for file in new) >= _SMALL_SHARE * sum(file.file_size for file in files)
        return list(splits) if len(new) >= files_min and (enough or len(new) >= 5 * files_min) else []
    small = [split for split in splits if all(file.file_size < target // 2 for file in split.files)]
    return small if sum(len(split.files) for split in small) >= files_min else []


def _rewrite(
    table: PaimonStore, snapshot_id: int, partition: tuple[Any, ...], bucket: int, splits: Sequence[Any]
) -> WrittenFiles:
    from pypaimon.write.native_commit import create_native_write_table, from_native_commit_messages

    raw = table.table
    # Compaction changes no row, so it has no changelog.
    quiet = raw.copy({"changelog-producer": "none", "write.native.enabled": "true"})
    native = create_native_write_table(quiet)
    if native is None:
        raise LakeTableChangedError(f"the Paimon table {table.path} cannot be compacted without pypaimon-rust")
    writer = native.new_batch_write_builder()._with_commit_user(TIERING_USER).new_write()
    schema = PyarrowFieldParser.from_paimon_schema(raw.table_schema.fields)
    aware = raw.bucket_mode() == BucketMode.HASH_FIXED
    rows = 0
    try:
        for batch in table.read_raw(snapshot_id, splits, None):
            batch = _like(batch, schema)
            if raw.is_primary_key_table:
                kinds = pa.array(np.zeros(batch.num_rows, np.int8))
                batch = pa.RecordBatch.from_arrays(
                    [*batch.columns, kinds], schema=schema.append(pa.field("_VALUE_KIND", pa.int8(), nullable=False))
                )
            writer.write_arrow(batch, bucket if aware else None)
            rows += batch.num_rows
        messages = from_native_commit_messages(quiet, writer.prepare_commit()) if rows else []
    finally:
        with contextlib.suppress(Exception):
            writer.close()
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


def _like(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    names = batch.schema.names
    arrays = [
        batch.column(names.index(field.name)).cast(field.type)
        if field.name in names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def commit_compaction(
    table: PaimonStore, results: Sequence[WrittenFiles], offsets_path: str, known_id: int | None
) -> int:
    from pypaimon.write.commit_message import CommitMessage

    messages = []
    for result in results:
        for payload in result.payload:
            new = table.messages([WrittenFiles(payload["new"], 0, 0, 0)])
            files = [file for message in new for file in message.new_files]
            messages.append(
                CommitMessage(
                    partition=payload["partition"],
                    bucket=payload["bucket"],
                    new_files=files,
                    deleted_files=payload["old"],
                )
            )
    commit = table.table.new_batch_write_builder()._with_commit_user(TIERING_USER).new_commit()
    landed = Landed()
    try:
        commit.add_commit_callback(landed)
        store = commit.file_store_commit
        guard(store, table, known_id)
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
    finally:
        commit.close()
    return landed.check(offsets_path, table.path)


# -- expiry and orphans -------------------------------------------------------------------------------------------


class _UsedFiles:
    """The files that snapshots refer to, by name (names are unique in a table), with their paths."""

    def __init__(self, table: PaimonStore) -> None:
        self._table = table
        self._lists = ManifestListManager(table.table)
        self._manifests = ManifestFileManager(table.table)
        self._indexes = IndexManifestFile(table.table)
        self._entries: dict[str, list[tuple[int, list[str]]]] = {}
        self.paths: dict[str, str] = {}
        """All files the snapshots mention, also those that one of them deleted."""
        self.live: set[str] = set()
        """The files that at least one of the snapshots needs."""

    def add(self, snapshots: Iterable[Any]) -> _UsedFiles:
        for snapshot in snapshots:
            added: set[str] = set()
            deleted: set[str] = set()
            for meta in self._manifest_list(snapshot.base_manifest_list, snapshot.delta_manifest_list):
                for kind, names in self._manifest(meta.file_name):
                    (added if kind == 0 else deleted).update(names)
            self.live |= added - deleted
            for meta in self._manifest_list(snapshot.changelog_manifest_list):
                for _, names in self._manifest(meta.file_name):
                    self.live.update(names)
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

    def _manifest(self, manifest: str) -> list[tuple[int, list[str]]]:
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
                found.append((entry.kind, names))
        return found

    def _metadata(self, folder: str, name: str) -> None:
        self.paths[name] = f"{self._table.table.table_path}/{folder}/{name}"
        self.live.add(name)


def _pinned(table: PaimonStore) -> list[Any]:
    """Snapshots that tags keep alive."""
    tags = TagManager(table.table.file_io, table.table.table_path)
    return [tag for name in tags.list_tags() if (tag := tags.get(name)) is not None]


def _has_branches(table: PaimonStore) -> bool:
    # The files that a branch needs are not looked for here.
    return bool(table.table.file_io.exists(f"{table.table.table_path}/branch"))


def expire(table: PaimonStore, keep_min: int, older_than_ms: int, keep_ids: Collection[int]) -> list[int]:
    if _has_branches(table):
        _log.warning("snapshots of the Paimon table %s are not expired: it has branches", table.path)
        return []
    snapshots = list(_snapshots(table))
    floor = min([snapshot.id for snapshot in snapshots[:keep_min]] + list(keep_ids), default=0)
    expired = [snapshot for snapshot in snapshots if snapshot.id < floor and snapshot.time_millis < older_than_ms]
    if not expired:
        return []
    # Only a run at the old end may go: a snapshot is found from its neighbours.
    kept = [snapshot for snapshot in snapshots if snapshot not in expired]
    oldest_kept = min(snapshot.id for snapshot in kept)
    expired = [snapshot for snapshot in expired if snapshot.id < oldest_kept]
    file_io = table.table.file_io
    # What files are for is read before anything is deleted. A crash half-way leaves unused files to the sweep.
    live = _UsedFiles(table).add(kept + _pinned(table)).live
    gone = _UsedFiles(table).add(expired).paths
    file_io.overwrite_file_utf8(f"{table.table.table_path}/snapshot/EARLIEST", str(oldest_kept))
    for snapshot in sorted(expired, key=lambda one: one.id):
        file_io.delete_quietly(table.snapshots.get_snapshot_path(snapshot.id))
    for name, path in gone.items():
        if name not in live:
            file_io.delete_quietly(path)
    return sorted(snapshot.id for snapshot in expired)


def sweep(table: PaimonStore, older_than_ms: int) -> list[str]:
    """Files of data, manifests and indexes that no snapshot or tag refers to."""
    if _has_branches(table):
        return []
    # List first: a file that is committed after the listing is then found among the used ones.
    files = list(_files(table))
    used = _UsedFiles(table).add([*_snapshots(table), *_pinned(table)]).live
    removed = []
    for path, modified_ms in files:
        name = path.rsplit("/", 1)[-1]
        if name not in used and modified_ms < older_than_ms:
            table.table.file_io.delete_quietly(path)
            removed.append(path)
    return removed


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
    import pyarrow.fs as pafs

    return bool(entry.type == pafs.FileType.Directory)


def _modified_ms(entry: Any) -> int:
    stamp = getattr(entry, "mtime", None)
    if stamp is None:
        return 2**62  # unknown is not old
    return int((stamp if isinstance(stamp, float | int) else stamp.timestamp()) * 1000)
