# SPDX-License-Identifier: Apache-2.0
"""The files of an Iceberg table: which to merge, which are no longer used."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

import pyarrow as pa
import pyarrow.fs as pafs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import FileScanTask, TableProperties
from pyiceberg.table.snapshots import Snapshot

from fluss.lake.api import LakeBucket, WrittenFiles
from fluss.lake.iceberg_store import IcebergStore
from fluss.lake.iceberg_writer import BucketFiles, result_of
from fluss.lake.layout import OFFSET_COLUMN, cast_array


def compact(table: IcebergStore, files_min: int) -> list[WrittenFiles]:
    """Merge the small files of buckets that have many."""
    current = table.table.current_snapshot()
    if current is None:
        return []
    target = int(
        table.table.metadata.properties.get(
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
        )
    )
    groups: dict[LakeBucket, list[FileScanTask]] = defaultdict(list)
    for task in table.tasks(current.snapshot_id):
        if task.file.file_size_in_bytes < target // 2 and not task.delete_files:
            groups[table.bucket_of(task.file)].append(task)
    results = []
    for bucket, tasks in groups.items():
        if len(tasks) < files_min:
            continue
        files = BucketFiles(table, bucket)
        rows = 0
        for batch in table.read_files(sorted(tasks, key=_first_offset(table)), table.table.schema()):
            arrays = [cast_array(batch.column(batch.schema.names.index(f.name)), f.type) for f in files.schema]
            files.write(pa.RecordBatch.from_arrays(arrays, schema=files.schema))
            rows += batch.num_rows
        result = result_of(files, rows, [task.file for task in tasks], current.snapshot_id)
        results.append(WrittenFiles(result.payload, rows, len(tasks), result.size_bytes))
    return results


def _first_offset(table: IcebergStore):  # type: ignore[no-untyped-def]
    field_id = table.table.schema().find_field(OFFSET_COLUMN).field_id

    def key(task: FileScanTask) -> int:
        bound = (task.file.lower_bounds or {}).get(field_id)
        return int.from_bytes(bound, "little", signed=True) if bound else 0

    return key


class _UsedFiles:
    """The files that snapshots need."""

    def __init__(self, table: IcebergStore, snapshots: Iterable[Snapshot]) -> None:
        self.live: set[str] = set()
        io = table.table.io
        read: set[str] = set()
        for snapshot in snapshots:
            self.live.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(io):
                self.live.add(manifest.manifest_path)
                if manifest.manifest_path in read:
                    continue
                read.add(manifest.manifest_path)
                for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
                    if entry.status != ManifestEntryStatus.DELETED:
                        self.live.add(entry.data_file.file_path)


def expire(table: IcebergStore, keep_min: int, older_than_ms: int, keep_ids: Collection[int]) -> list[int]:
    table.table.refresh()
    history = list(table.history())
    # Everything newer than a snapshot that the server knows stays: recovery walks from there to the newest.
    floor = max([keep_min, *(i + 1 for i, s in enumerate(history) if s.snapshot_id in keep_ids)])
    refs = {ref.snapshot_id for ref in table.table.metadata.refs.values()}
    expired = [s for s in history[floor:] if s.timestamp_ms < older_than_ms and s.snapshot_id not in refs]
    if not expired:
        return []
    ids = [snapshot.snapshot_id for snapshot in expired]
    kept = [snapshot for snapshot in table.table.snapshots() if snapshot.snapshot_id not in ids]
    live = _UsedFiles(table, kept).live
    gone = _UsedFiles(table, expired).live
    table.table.maintenance.expire_snapshots().by_ids(ids).commit()
    table.table.refresh()
    for path in gone - live:
        with contextlib.suppress(Exception):
            table.table.io.delete(path)
    return sorted(ids)


def sweep(table: IcebergStore, older_than_ms: int) -> list[str]:
    """Data, manifest and metadata files that the table does not refer to."""
    # List first: a file that is committed after the listing is then found among the used ones.
    files = list(_files(table))
    table.table.refresh()
    metadata = table.table.metadata
    used = _UsedFiles(table, table.table.snapshots()).live
    used |= {entry.metadata_file for entry in metadata.metadata_log}
    used.add(table.table.metadata_location)
    used = {_plain(path) for path in used}
    removed = []
    for path, modified_ms in files:
        if path.endswith((".parquet", ".avro", ".metadata.json")) and path not in used and modified_ms < older_than_ms:
            with contextlib.suppress(Exception):
                table.table.io.delete(path)
                removed.append(path)
    return removed


def _plain(path: str) -> str:
    return path.removeprefix("file://")


def _files(table: IcebergStore) -> Iterator[tuple[str, int]]:
    location = table.table.location()
    if isinstance(table.table.io, PyArrowFileIO):
        # The options of the catalog are in it, credentials among them.
        kind, host, root = PyArrowFileIO.parse_location(location)
        filesystem = table.table.io.fs_by_scheme(kind, host)
    else:
        filesystem, root = pafs.FileSystem.from_uri(location if "://" in location else f"file://{location}")
    scheme = location.split("://")[0] + "://" if "://" in location and not location.startswith("file://") else ""
    for info in filesystem.get_file_info(pafs.FileSelector(root, recursive=True, allow_not_found=True)):
        if info.type == pafs.FileType.File:
            modified_ms = 2**62 if info.mtime is None else int(info.mtime.timestamp() * 1000)
            yield scheme + info.path, modified_ms
