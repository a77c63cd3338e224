# SPDX-License-Identifier: Apache-2.0
"""Lance: log tables as datasets of ``<warehouse>/<database>/<table>.lance``, one version per round.

A plain append of Lance goes through whatever was committed before it, so two services could append the same rows. A
round is committed as a merge instead: fragments of the version that was read and the new ones, which Lance refuses as
soon as any other version has come between.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance.commit import CommitConflictError
from lance.fragment import write_fragments
from lance.optimize import Compaction

from fluss import metadata as m
from fluss.errors import InvalidTableError
from fluss.lake.api import (
    LakeBucket,
    LakeCommit,
    LakeCommitConflictError,
    LakeSplit,
    LakeStats,
    LakeTableChangedError,
    LakeWriter,
    OpenLakeTable,
    PartitionFilter,
    Rows,
    WrittenFiles,
    tiered_properties,
)
from fluss.lake.layout import (
    LakeBatchConverter,
    arrow_differences,
    check_string_partitions,
    map_types,
    read_schema,
    to_fluss,
)
from fluss.lake.warehouse import FolderTable, WarehouseLake
from fluss.metadata import Column, TableDescriptor, TableInfo, TablePath
from fluss.metadata.properties import LIST_SIZE_SUFFIX, check_lake_properties, lake_options

_REPLACING = ("Overwrite", "Restore")
"""Operations after which a dataset is not the continuation of what it was."""
_BUFFERED_BYTES_MAX = 64 * 1024 * 1024
_FRAGMENT_OPTIONS = {
    "max_row_per_file": "max_rows_per_file",
    "max_rows_per_group": "max_rows_per_group",
    "max_bytes_per_file": "max_bytes_per_file",
}
"""Table properties `lance.*` of Apache Fluss, and the arguments of Lance that they set."""


class LanceLake(WarehouseLake):
    """A folder of Lance datasets, local or in an object store."""

    lake_format = "lance"
    place = "as a Lance dataset"
    suffix = ".lance"

    def create_table(self, path: TablePath, descriptor: TableDescriptor, *, must_be_empty: bool) -> None:
        check_table(descriptor)
        properties = {**descriptor.properties, **descriptor.custom_properties}
        kept = {name: text for name, text in properties.items() if not name.startswith("table.datalake.")}
        schema = lance_schema(descriptor.schema.columns, list_sizes(properties), kept)
        try:
            lance.write_dataset(schema.empty_table(), self.uri(path), mode="create", storage_options=self.storage)
        except OSError as error:
            if "already exists" not in str(error).lower():
                raise
            self.check_existing(path, descriptor, must_be_empty=must_be_empty)

    def table(self, path: TablePath) -> OpenLakeTable:
        try:
            dataset = lance.dataset(self.uri(path), storage_options=self.storage)
        except (ValueError, OSError) as error:
            if "not found" not in str(error).lower():
                raise
            raise self.missing(path) from None
        return LanceTable(path, dataset, self.storage)


class LanceTable(FolderTable):
    """One Lance dataset, as it was when it was opened; commits look at it anew."""

    kind = "Lance dataset"

    def __init__(self, path: TablePath, dataset: Any, storage: Mapping[str, str]) -> None:
        super().__init__(path, dataset.uri, storage)
        self.dataset = dataset

    # -- the table ------------------------------------------------------------------------------------------------

    def differences(self, columns: Sequence[Column]) -> tuple[list[Column], list[str]]:
        return arrow_differences(
            self.dataset.schema,
            columns,
            lambda column: column_type(column, {}),
            lambda found: _without_zone(_as_list(found)),
        )

    def layout_differences(self, descriptor: TableDescriptor) -> list[str]:
        check_table(descriptor)
        return []

    def add_columns(self, columns: Sequence[Column]) -> None:
        self.dataset.add_columns(lance_schema(columns, kept_sizes(self.dataset.schema)))

    def is_empty(self) -> bool:
        return not self.dataset.get_fragments()

    def _at(self, version: int) -> Any:
        with self._expects(version):
            return self.dataset.checkout_version(version)

    @contextlib.contextmanager
    def _expects(self, version: int) -> Iterator[None]:
        """Report that a version was cleaned up, before or while it is read."""
        try:
            yield
        except (ValueError, OSError) as error:  # an error of Arrow is a ValueError
            if "not found" not in str(error).lower() and "does not exist" not in str(error).lower():
                raise
            raise self.gone(version) from None

    # -- writing --------------------------------------------------------------------------------------------------

    def writer(self, bucket: LakeBucket, info: TableInfo) -> LakeWriter:
        return LanceWriter(self, bucket.bucket, info)

    def write(self, table: pa.Table, options: Mapping[str, int]) -> list[Any]:
        """Write rows to new fragments, which are no part of the dataset yet."""
        return list(write_fragments(table, self.dataset.uri, mode="append", storage_options=self.storage, **options))

    def commit(self, results: Sequence[WrittenFiles], offsets_path: str, known_id: int | None) -> int:
        self.refresh()
        self.check_newest(known_id)
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
            transaction_properties=tiered_properties(offsets_path),
        )
        try:
            committed = lance.LanceDataset.commit(dataset.uri, transaction, storage_options=self.storage, max_retries=0)
        except CommitConflictError as error:
            raise self.conflict(error) from None
        self.dataset = committed
        return int(committed.version)

    def abort(self, results: Sequence[WrittenFiles]) -> None:
        with contextlib.suppress(Exception):
            for result in results:
                # A compaction also says which fragments it replaces.
                for fragment in getattr(result.payload, "new_fragments", result.payload):
                    self.delete(f"data/{file.path}" for file in fragment.files)

    # -- snapshots ------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        self.dataset = self.dataset.checkout_version(self.dataset.latest_version)

    def commits(self) -> Iterator[LakeCommit]:
        for version in sorted((one["version"] for one in self.dataset.versions()), reverse=True):
            if version <= self.dataset.version:
                transaction = self.dataset.read_transaction(version)
                properties = {} if transaction is None else transaction.transaction_properties or {}
                replaces = transaction is not None and type(transaction.operation).__name__ in _REPLACING
                yield LakeCommit(version, properties, replaces)

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
                # Only its rows show the partitions of a fragment.
                values = fragment.to_table(columns=list(keys)).group_by(list(keys)).aggregate([]).to_pylist()
                kept = tuple(row for row in (tuple(str(one[key]) for key in keys) for one in values) if wanted(row))
                if not kept:
                    continue
            payload = {"version": snapshot_id, "fragment": fragment.fragment_id, "keys": keys, "partitions": kept}
            splits.append(LakeSplit(payload, fragment.count_rows(), exact=kept is None))
        return splits

    def read(self, split: LakeSplit, info: TableInfo, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        schema = read_schema(info, columns)
        dataset = self._at(split.payload["version"])
        keys, partitions = split.payload["keys"], split.payload["partitions"]
        names = [name for name in dict.fromkeys([*columns, *keys]) if name in dataset.schema.names]
        fragment = dataset.get_fragment(split.payload["fragment"])
        with self._expects(split.payload["version"]):
            # A batch without columns would not have its row count.
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
        self.check_newest(known_id)
        # Two versions: the first replaces fragments by others with the same rows, the second carries the offsets. A
        # crash between them leaves a version that nothing refers to.
        try:
            Compaction.commit(self.dataset, [result.payload for result in results])
        except OSError as error:
            if "conflict" not in str(error).lower():
                raise
            raise self.conflict(error) from None
        try:
            return self.commit((), offsets_path, known_id)
        except LakeCommitConflictError as error:
            # Not a conflict to the round, which would remove the files: the first version uses them.
            raise LakeTableChangedError(f"{error.message}. The files it merged stay merged") from None

    def history_times(self) -> list[tuple[int, float]]:
        times = {one["version"]: one["timestamp"].timestamp() * 1000 for one in self.dataset.versions()}
        return sorted(times.items(), reverse=True)

    def drop_snapshots(self, old: Sequence[int]) -> list[int]:
        tagged = {tag["version"] for tag in self.dataset.tags.list().values()}
        untagged = [version for version in old if version not in tagged]
        if untagged:
            self.dataset.cleanup_old_versions(versions=untagged)
        return untagged

    def old_files(self, older_than_ms: int) -> list[str]:
        return self.list_files(older_than_ms, "data")

    def unused(self, files: Sequence[str]) -> list[str]:
        latest = self.dataset.checkout_version(self.dataset.latest_version)
        used = {
            f"data/{file.path}"
            for version in latest.versions()
            for fragment in self._at(version["version"]).get_fragments()
            for file in fragment.metadata.files
        }
        return [name for name in files if name not in used]


class LanceWriter(LakeWriter):
    """Rows of a log table, written to a fragment whenever enough of them have come together."""

    def __init__(self, table: LanceTable, bucket: int, info: TableInfo) -> None:
        self._table = table
        self._schema: pa.Schema = table.dataset.schema.remove_metadata()
        self._converter = LakeBatchConverter(self._schema, bucket, table.what)
        options = lake_options("lance", {**info.properties, **info.custom_properties})
        self._options = {_FRAGMENT_OPTIONS[name]: int(text) for name, text in options.items()}
        self._rows_max = self._options.get("max_rows_per_file", 1024 * 1024)
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._buffered = 0
        self._rows = 0
        self._fragments: list[Any] = []

    def write(self, rows: Rows) -> None:
        batch = self._converter.convert(rows)
        self._batches.append(batch)
        self._bytes += batch.nbytes
        self._buffered += batch.num_rows
        self._rows += batch.num_rows
        if self._bytes >= _BUFFERED_BYTES_MAX or self._buffered >= self._rows_max:
            self._write_out()

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
    masks = []
    for values in partitions:
        equal = [pc.equal(batch.column(key), value) for key, value in zip(keys, values)]
        masks.append(functools.reduce(pc.and_, equal))
    return batch.filter(functools.reduce(pc.or_, masks))


_PROPERTY = "fluss."


# -- schemas ------------------------------------------------------------------------------------------------------
#
# The schema is that of Apache Fluss: the columns of the table and no others, time stamps without a zone, and fixed-size
# lists for ARRAY columns whose length the table gives.


def list_sizes(properties: Mapping[str, str]) -> dict[str, int]:
    """Read the lengths that a table gives to its ARRAY columns."""
    found = {}
    for name, text in properties.items():
        if not name.endswith(LIST_SIZE_SUFFIX):
            continue
        if not text.strip().isdecimal() or int(text) < 1:
            raise InvalidTableError(f"table property '{name}': got {text!r:.100}, but it takes a positive integer")
        found[name.removesuffix(LIST_SIZE_SUFFIX)] = int(text)
    return found


def check_table(descriptor: m.TableDescriptor) -> None:
    """Refuse what a Lance dataset cannot hold."""
    if descriptor.has_primary_key():
        raise InvalidTableError(
            "primary-key tables cannot be tiered to Lance: a dataset has no way to replace rows by key in the commit "
            "that carries the offsets. Use Paimon or Iceberg, or a log table"
        )
    names = {column.name: column.data_type for column in descriptor.schema.columns}
    dotted = [name for name in names if "." in name]
    if dotted:
        raise InvalidTableError(f"columns of Lance datasets have no dots in their names; rename {', '.join(dotted)}")
    check_string_partitions(descriptor, "Lance")
    check_lake_properties(descriptor.custom_properties)
    for name in list_sizes(descriptor.custom_properties | descriptor.properties):
        if name not in names:
            continue  # a column that may be added later
        if not isinstance(names[name], m.ArrayType):
            raise InvalidTableError(f"table property '{name}{LIST_SIZE_SUFFIX}': column '{name}' is no ARRAY")


def lance_schema(
    columns: Sequence[m.Column], sizes: Mapping[str, int], properties: Mapping[str, str] | None = None
) -> pa.Schema:
    """The schema of a dataset; the properties are kept with it."""
    fields = []
    for column in columns:
        found = column_type(column, sizes)
        comment = {b"comment": column.comment.encode()} if column.comment else None
        fields.append(pa.field(column.name, found, nullable=column.data_type.nullable, metadata=comment))
    kept = {f"{_PROPERTY}{name}": text for name, text in (properties or {}).items()}
    return pa.schema(fields, metadata=kept or None)


def kept_sizes(schema: pa.Schema) -> dict[str, int]:
    """The lengths of ARRAY columns that were kept with a dataset, for columns that are added later."""
    kept = {key.decode(): text.decode() for key, text in (schema.metadata or {}).items()}
    return list_sizes({key[len(_PROPERTY) :]: text for key, text in kept.items() if key.startswith(_PROPERTY)})


def column_type(column: m.Column, sizes: Mapping[str, int]) -> pa.DataType:
    """The Arrow type of a column in Lance."""
    plain = _without_zone(column.data_type.to_arrow())
    if column.name in sizes and pa.types.is_list(plain):
        return pa.list_(plain.value_field, sizes[column.name])
    return plain


def _without_zone(kind: pa.DataType) -> pa.DataType:
    return map_types(kind, lambda one: pa.timestamp(one.unit) if pa.types.is_timestamp(one) else one)


def _as_list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(kind.value_field) if pa.types.is_fixed_size_list(kind) else kind
