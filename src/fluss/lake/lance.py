# SPDX-License-Identifier: Apache-2.0
"""Lance: log tables as datasets of ``<warehouse>/<database>/<table>.lance``, one version per round.

A plain append of Lance goes through whatever was committed before it, so two services could append the same rows. A
round is committed as a merge instead: fragments of the version that was read and the new ones, which Lance refuses as
soon as any other version has come between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from lance.commit import CommitConflictError
from lance.fragment import write_fragments
from lance.optimize import Compaction

from fluss.errors import ConfigError, InvalidArgumentError
from fluss.lake.api import (
    OFFSETS_PROPERTY,
    TIERING_USER,
    Lake,
    LakeBucket,
    LakeCommitConflictError,
    LakeSplit,
    LakeStats,
    LakeTableChangedError,
    LakeWriter,
    OpenLakeTable,
    Options,
    PartitionFilter,
    Rows,
    TieredSnapshot,
    WrittenFiles,
)
from fluss.lake.lance_schema import (
    check_table,
    differences,
    kept_sizes,
    lance_schema,
    list_sizes,
)
from fluss.lake.layout import cast_array, check_existing, check_unchanged, read_schema, to_fluss
from fluss.metadata import Column, TableDescriptor, TableInfo, TablePath
from fluss.metadata.lake_properties import lake_options
from fluss.net.filesystems import open_filesystem

_USER_PROPERTY = "commit-user"
_REPLACING = ("Overwrite", "Restore")
"""Operations after which a dataset is not the continuation of what it was."""
_BUFFERED_BYTES_MAX = 64 * 1024 * 1024
_FRAGMENT_OPTIONS = {
    "max_row_per_file": "max_rows_per_file",
    "max_rows_per_group": "max_rows_per_group",
    "max_bytes_per_file": "max_bytes_per_file",
}
"""Table properties `lance.*` of Apache Fluss, and the arguments of Lance that they set."""
_STORE_OPTIONS = {
    "s3.endpoint": ("endpoint", "aws_endpoint", "endpoint_url", "aws_endpoint_url"),
    "s3.region": ("region", "aws_region"),
    "s3.access-key": ("access_key_id", "aws_access_key_id"),
    "s3.secret-key": ("secret_access_key", "aws_secret_access_key"),
    "s3.session-token": ("session_token", "aws_session_token", "aws_token"),
}


class LanceLake(Lake):
    """A folder of Lance datasets, local or in an object store."""

    def __init__(self, options: Options) -> None:
        self._warehouse = options.get("warehouse", "").rstrip("/")
        if not self._warehouse:
            raise ConfigError("the lake of format lance has no warehouse: set datalake.lance.warehouse on the server")
        self._storage = {name: value for name, value in options.items() if name != "warehouse"}

    def _uri(self, path: TablePath) -> str:
        return f"{self._warehouse}/{path.database_name}/{path.table_name}.lance"

    def create_table(self, path: TablePath, descriptor: TableDescriptor, *, must_be_empty: bool) -> None:
        check_table(descriptor)
        properties = {**descriptor.properties, **descriptor.custom_properties}
        kept = {name: text for name, text in properties.items() if not name.startswith("table.datalake.")}
        schema = lance_schema(descriptor.schema.columns, list_sizes(properties), kept)
        try:
            lance.write_dataset(schema.empty_table(), self._uri(path), mode="create", storage_options=self._storage)
        except OSError as error:
            if not _is_there_already(error):
                raise
            self._check_existing(path, descriptor, must_be_empty=must_be_empty)

    def _check_existing(self, path: TablePath, descriptor: TableDescriptor, *, must_be_empty: bool) -> None:
        dataset = self._open(path)
        wrong = _problems(dataset, descriptor)
        filled = not wrong and must_be_empty and len(dataset.get_fragments()) > 0
        check_existing(path, "as a Lance dataset", wrong, filled=filled)

    def add_columns(self, path: TablePath, columns: Sequence[Column]) -> None:
        dataset = self._open(path)
        new = [column for column in columns if column.name not in dataset.schema.names]
        if new:
            dataset.add_columns(lance_schema(new, kept_sizes(dataset.schema)))

    def table(self, path: TablePath) -> OpenLakeTable:
        return LanceTable(path, self._open(path), self._storage)

    def _open(self, path: TablePath) -> Any:
        try:
            return lance.dataset(self._uri(path), storage_options=self._storage)
        except (ValueError, OSError) as error:
            if "not found" not in str(error).lower():
                raise
            raise LakeTableChangedError(
                f"table {path} does not exist as a Lance dataset; was it deleted, or is it another warehouse?"
            ) from None


def _is_there_already(error: OSError) -> bool:
    return "already exists" in str(error).lower()


def _problems(dataset: Any, descriptor: TableDescriptor) -> list[str]:
    """Say what keeps rows of a Fluss table from being written to a dataset and read there."""
    missing, wrong = differences(dataset.schema, descriptor.schema.columns)
    return wrong + [f"column '{column.name}' is missing" for column in missing]


class LanceTable(OpenLakeTable):
    """One Lance dataset, as it was when it was opened; commits look at it anew."""

    def __init__(self, path: TablePath, dataset: Any, storage: Mapping[str, str]) -> None:
        self.path = path
        self.dataset = dataset
        self._storage = dict(storage)

    # -- the table ------------------------------------------------------------------------------------------------

    def missing_columns(self, info: TableInfo) -> list[Column]:
        return differences(self.dataset.schema, info.schema.columns)[0]

    def check(self, info: TableInfo) -> None:
        check_table(info.descriptor)
        check_unchanged(f"the Lance dataset of {self.path}", _problems(self.dataset, info.descriptor))

    def _at(self, version: int) -> Any:
        with self._gone(version):
            return self.dataset.checkout_version(version)

    @contextlib.contextmanager
    def _gone(self, version: int) -> Iterator[None]:
        """Say that a version was cleaned up, before or while it is read."""
        try:
            yield
        except (ValueError, OSError) as error:  # an error of Arrow is a ValueError
            if "not found" not in str(error).lower() and "does not exist" not in str(error).lower():
                raise
            raise LakeTableChangedError(
                f"version {version} of the Lance dataset of {self.path} is gone: it was cleaned up or never there"
            ) from None

    # -- writing --------------------------------------------------------------------------------------------------

    def writer(self, bucket: LakeBucket, info: TableInfo) -> LakeWriter:
        return LanceWriter(self, info)

    def write(self, table: pa.Table, options: Mapping[str, int]) -> list[Any]:
        """Write rows to new fragments, which are no part of the dataset yet."""
        return list(write_fragments(table, self.dataset.uri, mode="append", storage_options=self._storage, **options))

    def commit(self, results: Sequence[WrittenFiles], offsets_path: str, known_id: int | None) -> int:
        self.dataset = self.dataset.checkout_version(self.dataset.latest_version)
        if self.tiered_after(known_id) is not None:
            raise self._conflict("a round of another service was committed")
        return self._merge([fragment for result in results for fragment in result.payload], offsets_path)

    def _merge(self, added: Sequence[Any], offsets_path: str) -> int:
        """Commit the fragments there are and those that are added; raises if any version has come between."""
        dataset = self.dataset
        fragments = [fragment.metadata for fragment in dataset.get_fragments()]
        # An index remembers the fragments it covers, so a number is never used twice.
        covered = [
            number
            for index in dataset.describe_indices()
            for segment in index.segments
            for number in segment.fragment_ids or ()
        ]
        top = max([*(fragment.id for fragment in fragments), *covered], default=-1)
        for number, fragment in enumerate(added, top + 1):
            fragment.id = number
        transaction = lance.Transaction(
            read_version=dataset.version,
            operation=lance.LanceOperation.Merge([*fragments, *added], dataset.lance_schema),
            transaction_properties={_USER_PROPERTY: TIERING_USER, OFFSETS_PROPERTY: offsets_path},
        )
        try:
            committed = lance.LanceDataset.commit(
                dataset.uri, transaction, storage_options=self._storage, max_retries=0
            )
        except CommitConflictError as error:
            raise self._conflict(str(error)) from None
        self.dataset = committed
        return int(committed.version)

    def _conflict(self, reason: str) -> LakeCommitConflictError:
        return LakeCommitConflictError(
            f"the Lance dataset of {self.path} was changed by another writer meanwhile ({reason:.200}); this round is "
            "abandoned"
        )

    def abort(self, results: Sequence[WrittenFiles]) -> None:
        with contextlib.suppress(Exception):
            filesystem, root = self._filesystem()
            for result in results:
                # A compaction also says which fragments it replaces.
                for fragment in getattr(result.payload, "new_fragments", result.payload):
                    _delete(filesystem, [f"{root}/data/{file.path}" for file in fragment.files])

    # -- snapshots ------------------------------------------------------------------------------------------------

    def _versions(self) -> Iterator[int]:
        """Walk through the versions that led to the one at hand, newest first, as far as they are kept."""
        found = sorted((version["version"] for version in self.dataset.versions()), reverse=True)
        return (version for version in found if version <= self.dataset.version)

    def _properties(self, version: int) -> tuple[str, Mapping[str, str]]:
        """What made a version, and the properties of its transaction."""
        transaction = self.dataset.read_transaction(version)
        if transaction is None:
            return "", {}
        return type(transaction.operation).__name__, transaction.transaction_properties or {}

    def tiered_after(self, known_id: int | None) -> TieredSnapshot | None:
        found = None
        for version in self._versions():
            operation, properties = self._properties(version)
            mine = properties.get(_USER_PROPERTY) == TIERING_USER
            if version == known_id and mine:
                return found
            if known_id is not None and (version <= known_id or operation in _REPLACING):
                break
            if found is None and mine:
                found = TieredSnapshot(version, properties.get(OFFSETS_PROPERTY))
        if known_id is not None:
            raise LakeTableChangedError(
                f"the history of the Lance dataset of {self.path} does not hold version {known_id}, which was tiered "
                "before: it was restored, overwritten, created anew or cut. Put it back, or drop both tables and start "
                "over"
            )
        return found

    def tiered_ids(self, limit: int) -> list[int]:
        found = []
        for version in self._versions():
            if self._properties(version)[1].get(_USER_PROPERTY) == TIERING_USER:
                found.append(version)
                if len(found) == limit:
                    break
        return found

    # -- reading --------------------------------------------------------------------------------------------------

    def plan(
        self, snapshot_id: int, wanted: PartitionFilter | None = None, partition_keys: Sequence[str] = ()
    ) -> list[LakeSplit]:
        dataset = self._at(snapshot_id)
        keys = tuple(partition_keys) if wanted is not None else ()
        if wanted is not None and not keys and not wanted(()):
            return []
        splits = []
        for fragment in dataset.get_fragments():
            kept: tuple[tuple[str, ...], ...] | None = None
            if wanted is not None and keys:
                # Nothing but its rows tells the partitions of a fragment.
                values = fragment.to_table(columns=list(keys)).group_by(list(keys)).aggregate([]).to_pylist()
                kept = tuple(row for row in (tuple(str(one[key]) for key in keys) for one in values) if wanted(row))
                if not kept:
                    continue
            payload = {"version": snapshot_id, "fragment": fragment.fragment_id, "keys": keys, "partitions": kept}
            splits.append(LakeSplit(payload, fragment.count_rows()))
        return splits

    def read(self, split: LakeSplit, info: TableInfo, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        schema = read_schema(info, columns)
        dataset = self._at(split.payload["version"])
        keys, partitions = split.payload["keys"], split.payload["partitions"]
        names = [name for name in dict.fromkeys([*columns, *keys]) if name in dataset.schema.names]
        fragment = dataset.get_fragment(split.payload["fragment"])
        with self._gone(split.payload["version"]):
            # A batch without columns would not tell its rows.
            for batch in fragment.to_batches(columns=names or dataset.schema.names[:1]):
                chosen = batch if partitions is None else _of_partitions(batch, keys, partitions)
                if chosen.num_rows:
                    yield to_fluss(chosen, schema)

    # -- files ----------------------------------------------------------------------------------------------------

    def stats(self, snapshot_id: int | None = None) -> LakeStats:
        dataset = self.dataset if snapshot_id is None else self._at(snapshot_id)
        files = [file for fragment in dataset.get_fragments() for file in fragment.metadata.files]
        size_bytes = sum(file.file_size_bytes or 0 for file in files)
        return LakeStats(len(files), size_bytes, dataset.count_rows(), len(self.dataset.versions()))

    def compact(self, *, files_min: int) -> list[WrittenFiles]:
        if len(self.dataset.get_fragments()) < files_min:
            return []
        plan = Compaction.plan(self.dataset, {})
        rewritten = [task.execute(self.dataset) for task in plan.tasks if len(task.fragments) > 1]
        found = []
        for one in rewritten:
            rows = sum(fragment.num_rows for fragment in one.new_fragments)
            size_bytes = sum(file.file_size_bytes or 0 for fragment in one.new_fragments for file in fragment.files)
            found.append(WrittenFiles(one, rows, one.metrics.files_removed, size_bytes))
        return found

    def commit_compaction(self, results: Sequence[WrittenFiles], offsets_path: str, known_id: int | None) -> int:
        if self.tiered_after(known_id) is not None:
            raise self._conflict("a round of another service was committed")
        # Two versions: the first replaces fragments by others with the same rows, the second carries the offsets. A
        # crash between them leaves a version that nothing refers to.
        try:
            Compaction.commit(self.dataset, [result.payload for result in results])
        except (CommitConflictError, OSError) as error:
            raise self._conflict(str(error)) from None
        self.dataset = self.dataset.checkout_version(self.dataset.latest_version)
        return self.commit((), offsets_path, known_id)

    def expire(self, *, keep_min: int, older_than_ms: int, keep_ids: Collection[int]) -> list[int]:
        versions = sorted(self.dataset.versions(), key=lambda one: one["version"], reverse=True)
        # Everything newer than a version that the server knows stays: recovery walks from there to the newest.
        floor = max([keep_min, *(i + 1 for i, one in enumerate(versions) if one["version"] in keep_ids)])
        tagged = {tag["version"] for tag in self.dataset.tags.list().values()}
        expired = [
            one["version"]
            for one in versions[floor:]
            if one["timestamp"].timestamp() * 1000 < older_than_ms and one["version"] not in tagged
        ]
        if expired:
            self.dataset.cleanup_old_versions(versions=expired)
        return sorted(expired)

    def sweep(self, *, older_than_ms: int) -> list[str]:
        filesystem, root = self._filesystem()
        # List first: a file that is committed after the listing is then found among the used ones.
        files = filesystem.get_file_info(pafs.FileSelector(f"{root}/data", recursive=True, allow_not_found=True))
        latest = self.dataset.checkout_version(self.dataset.latest_version)
        used = {
            file.path
            for version in latest.versions()
            for fragment in self._at(version["version"]).get_fragments()
            for file in fragment.metadata.files
        }
        unused = [
            info.path
            for info in files
            if info.type == pafs.FileType.File
            and info.path.removeprefix(f"{root}/data/") not in used
            and info.mtime is not None
            and info.mtime.timestamp() * 1000 < older_than_ms
        ]
        return _delete(filesystem, unused)

    def _filesystem(self) -> tuple[pafs.FileSystem, str]:
        options = {}
        for name, spellings in _STORE_OPTIONS.items():
            value = next((self._storage[one] for one in spellings if one in self._storage), None)
            if value is not None:
                options[name] = value
        filesystem, root = open_filesystem(self.dataset.uri, options)
        return filesystem, root.rstrip("/")


class LanceWriter(LakeWriter):
    """Rows of a log table, written to a fragment whenever enough of them have come together."""

    def __init__(self, table: LanceTable, info: TableInfo) -> None:
        self._table = table
        self._schema: pa.Schema = table.dataset.schema.remove_metadata()
        options = lake_options("lance", {**info.properties, **info.custom_properties})
        self._options = {_FRAGMENT_OPTIONS[name]: int(text) for name, text in options.items()}
        self._rows_max = self._options.get("max_rows_per_file", 1024 * 1024)
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._buffered = 0
        self._rows = 0
        self._fragments: list[Any] = []

    def write(self, rows: Rows) -> None:
        batch = self._convert(rows.batch)
        self._batches.append(batch)
        self._bytes += batch.nbytes
        self._buffered += batch.num_rows
        self._rows += batch.num_rows
        if self._bytes >= _BUFFERED_BYTES_MAX or self._buffered >= self._rows_max:
            self._write_out()

    def _convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        known = {name: i for i, name in enumerate(batch.schema.names)}
        left = set(known) - set(self._schema.names)
        if left:
            raise LakeTableChangedError(
                f"the Lance dataset of {self._table.path} has no column {', '.join(sorted(left))}"
            )
        arrays = []
        for field in self._schema:
            if field.name not in known:
                arrays.append(pa.nulls(batch.num_rows, field.type))
                continue
            try:
                arrays.append(cast_array(batch.column(known[field.name]), field.type))
            except pa.ArrowInvalid as error:
                raise InvalidArgumentError(
                    f"column '{field.name}' of table {self._table.path} does not fit the type {field.type} of its "
                    f"Lance dataset: {error}"
                ) from None
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _write_out(self) -> None:
        if not self._batches:
            return
        batches, self._batches, self._bytes, self._buffered = self._batches, [], 0, 0
        self._fragments += self._table.write(pa.Table.from_batches(batches, self._schema), self._options)

    def finish(self) -> WrittenFiles | None:
        self._write_out()
        if not self._rows:
            return None
        files = [file for fragment in self._fragments for file in fragment.files]
        return WrittenFiles(self._fragments, self._rows, len(files), sum(file.file_size_bytes or 0 for file in files))

    def abort(self) -> None:
        self._table.abort([WrittenFiles(self._fragments, self._rows, 0, 0)])


def _of_partitions(batch: pa.RecordBatch, keys: Sequence[str], partitions: Sequence[tuple[str, ...]]) -> pa.RecordBatch:
    mask = None
    for values in partitions:
        one = None
        for key, value in zip(keys, values):
            equal = pc.equal(batch.column(key), value)
            one = equal if one is None else pc.and_(one, equal)
        mask = one if mask is None else pc.or_(mask, one)
    return batch if mask is None else batch.filter(mask)


def _delete(filesystem: pafs.FileSystem, paths: Sequence[str]) -> list[str]:
    removed = []
    for path in paths:
        with contextlib.suppress(OSError):
            filesystem.delete_file(path)
            removed.append(path)
    return removed
