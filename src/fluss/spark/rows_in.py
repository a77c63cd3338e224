# SPDX-License-Identifier: Apache-2.0
"""From the batches of a DataFrame to the rows a table takes: columns by name, types, kinds of rows, partial updates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as s
from pyspark.sql.types import StructType

from fluss import aio
from fluss.client.blocking_client import BlockingClient
from fluss.errors import ConfigError, InvalidArgumentError, InvalidRowError
from fluss.metadata import TableInfo
from fluss.metadata.validation import check_target_columns
from fluss.rows.arrow_values import leaves
from fluss.spark.batches import floor_times
from fluss.spark.history import SEQUENCE, copied, source_of
from fluss.spark.options import SourceOptions
from fluss.spark.types import to_fluss_type, to_spark_type

_KINDS = {
    "+i": 0, "+u": 0, "+a": 0, "i": 0, "u": 0, "c": 0, "r": 0, "insert": 0, "update": 0, "upsert": 0,
    "update_after": 0, "-d": 1, "d": 1, "delete": 1, "-u": 2, "update_before": 2,
}  # fmt: skip
"""What rows are called in changelogs of many origins: 0 is written, 1 deletes, 2 is passed over."""

_RUNS_MAX = 16
_NUMBERS = (s.ByteType, s.ShortType, s.IntegerType, s.LongType, s.FloatType, s.DoubleType, s.DecimalType)
_TEXTS = (s.StringType, s.CharType, s.VarcharType)


class RowsIn:
    """How the columns of a DataFrame become those of a table. Made on the driver, used in tasks."""

    def __init__(self, info: TableInfo, schema: StructType, options: SourceOptions) -> None:
        self._path = info.table_path
        self._mode = _mode(info, options)
        self._kind_column = _find(schema.names, options["rowkind.column"]) if options["rowkind.column"] else None
        if options["rowkind.column"] and self._kind_column is None:
            raise ConfigError(
                f"rowkind.column: the DataFrame has no column {options['rowkind.column']!r}; "
                f"it has {', '.join(schema.names)}"
            )
        if self._kind_column is not None and not info.has_primary_key():
            raise ConfigError(f"rowkind.column: log table {info.table_path} only takes new rows, no kinds of rows")
        self.partial: list[str] | None = None
        wanted = self._wanted(info, schema, options)
        self._sources = self._match(info, schema, wanted)
        """Table column to DataFrame column; None where the DataFrame has none and nulls are written."""
        columns = [column for column in info.schema.columns if column.name in wanted]
        self._arrow: pa.Schema = pa.schema(
            [pa.field(c.name, c.data_type.to_arrow(), c.data_type.nullable) for c in columns]
        )
        self._required = [c.name for c in columns if not c.data_type.nullable]
        self._merges = "table.merge-engine" in info.get_properties()
        self._key = list(info.schema.primary_key)
        strict = options["write.mode"] == "auto" and self.partial is None
        numbered = info.schema.get_auto_increment_columns() if strict else []
        self._generated = [name for name in (_find(schema.names, one) for one in numbered) if name is not None]
        """Columns of the DataFrame that must be null, since the server fills them."""

    def _wanted(self, info: TableInfo, schema: StructType, options: SourceOptions) -> set[str]:
        names = info.schema.column_names
        if self._mode == "delete":
            return set(info.schema.primary_key)
        if options["write.columns"] is not None:
            if not info.has_primary_key():
                raise ConfigError(f"write.columns: a partial update needs a primary key, which {self._path} has not")
            unknown = [name for name in options["write.columns"] if name not in names]
            if unknown:
                raise ConfigError(f"write.columns: table {self._path} has no column {unknown[0]!r}")
            missing = [name for name in info.schema.primary_key if name not in options["write.columns"]]
            if missing:
                raise ConfigError(f"write.columns must name the primary key too; {missing[0]!r} is missing")
            generated = set(options["write.columns"]) & set(info.schema.get_auto_increment_columns())
            if generated:
                raise ConfigError(f"write.columns: {sorted(generated)[0]!r} is filled by the server; leave it out")
            self.partial = [name for name in names if name in options["write.columns"]]
            check_target_columns(info.schema, [names.index(name) for name in self.partial])
            return set(self.partial)
        generated = set(info.schema.get_auto_increment_columns())
        known = {name.lower() for name in names}
        for name in schema.names:
            if name.lower() not in known and name != self._kind_column:
                raise InvalidArgumentError(
                    f"the DataFrame has a column {name!r}, which table {self._path} has not; drop it, or add it to the "
                    f"table, which has {', '.join(names)}"
                )
        return set(names) - generated

    def _match(self, info: TableInfo, schema: StructType, wanted: set[str]) -> dict[str, str | None]:
        sources: dict[str, str | None] = {}
        by_name = {field.name: field for field in schema.fields}
        for column in info.schema.columns:
            if column.name not in wanted:
                continue
            source = _find(schema.names, column.name)
            sources[column.name] = source or source_of(column.name, schema.names)
            if source is None and sources[column.name] is not None:
                continue
            if source is None:
                if info.has_primary_key():
                    raise InvalidArgumentError(
                        f"the DataFrame has no column {column.name!r} of table {self._path}; add it, or name the "
                        "columns to change in the option write.columns"
                    )
                if not column.data_type.nullable:
                    raise InvalidArgumentError(
                        f"the DataFrame has no column {column.name!r}, which is NOT NULL in table {self._path}"
                    )
                continue
            given = by_name[source].dataType
            to_fluss_type(given, True, source)
            expected = to_spark_type(column.data_type, column.name)
            if not _kin(given, expected):
                raise InvalidArgumentError(
                    f"column {source!r} of the DataFrame is {given.simpleString()}, but in table {self._path} it is "
                    f"{column.data_type}; cast it to {expected.simpleString()}"
                )
        return sources

    # -- in the tasks ---------------------------------------------------------------------------------------------

    def shape(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the table's columns and types, and last the kinds of rows if there are such."""
        names = batch.schema.names
        for name in self._generated:
            if batch.column(names.index(name)).null_count != batch.num_rows:
                raise InvalidRowError(
                    f"table {self._path}: column '{name}' is numbered by the server, which takes no other numbers; "
                    "leave it out or write NULL, or set write.mode to upsert, which ignores it"
                )
        arrays = []
        for field in self._arrow:
            source = self._sources[field.name]
            if source is None:
                arrays.append(pa.nulls(batch.num_rows, field.type))
            else:
                array = batch.column(names.index(source))
                is_copy = field.name == SEQUENCE and pa.types.is_struct(array.type)
                arrays.append(self._cast(copied(array) if is_copy else array, field))
        schema = self._arrow
        if self._kind_column is not None:
            arrays.append(batch.column(names.index(self._kind_column)))
            schema = schema.append(pa.field(_KIND, arrays[-1].type))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _cast(self, array: pa.Array, field: pa.Field) -> pa.Array:
        if array.null_count and field.name in self._required:
            raise InvalidRowError(f"table {self._path}: column '{field.name}' is NOT NULL and got a null")
        if array.type == field.type:
            return array
        # A finer time is cut to the precision of its column, as a cast in SQL does, and a floating-point column takes
        # the nearest number; nothing else may lose anything.
        if pa.types.is_timestamp(field.type) and pa.types.is_timestamp(array.type):
            array = floor_times(array, field.type.unit)
        try:
            cast = array.cast(field.type, safe=not pa.types.is_time(field.type))
            for given, kept in leaves(array, cast):
                if not _fits(given, kept):
                    raise pa.ArrowInvalid(f"a number of type {given.type} has no equal")
        except pa.ArrowException as error:
            raise InvalidRowError(
                f"table {self._path}: column '{field.name}' ({field.type}) cannot take a value: {error}"
            ) from None
        return cast

    @contextlib.contextmanager
    def writer(self, client: BlockingClient, table: aio.FlussTable) -> Iterator[Callable[[pa.RecordBatch], object]]:
        """A function that writes shaped batches; everything is acknowledged when the block ends."""
        if self._mode == "append":
            append = client.call(lambda: table.new_append().create_writer())
            yield append.write_arrow_batch
            client.run(append.flush())
            return
        upsert = client.call(lambda: table.new_upsert(self.partial).create_writer())
        if self._mode == "delete":
            yield upsert.delete_arrow_batch
        elif self._kind_column is None:
            yield upsert.write_arrow_batch
        else:
            yield lambda batch: self._write_kinds(upsert, batch)
        client.run(upsert.flush())

    def _write_kinds(self, upsert: aio.UpsertWriter, batch: pa.RecordBatch) -> None:
        kinds = self._kinds(batch.column(batch.num_columns - 1))
        rows = batch.select(self._arrow.names)
        keep = kinds != 2
        if not keep.all():
            rows, kinds = rows.filter(pa.array(keep)), kinds[keep]
        if not rows.num_rows:
            return
        edges = np.flatnonzero(np.diff(kinds)) + 1
        if len(edges) > _RUNS_MAX and not self._merges and self.partial is None:
            # Only the last word on a key counts, so writes and deletes need not alternate.
            last = self._last_of_key(rows)
            rows, kinds = rows.take(pa.array(last)), kinds[last]
            for kind in (0, 1):
                some = rows.filter(pa.array(kinds == kind))
                if some.num_rows:
                    self._write_run(upsert, some, kind)
            return
        for start, stop in zip((0, *edges.tolist()), (*edges.tolist(), len(kinds))):
            self._write_run(upsert, rows.slice(start, stop - start), int(kinds[start]))

    @staticmethod
    def _write_run(upsert: aio.UpsertWriter, rows: pa.RecordBatch, kind: int) -> None:
        if kind == 1:
            upsert.delete_arrow_batch(rows)
        else:
            upsert.write_arrow_batch(rows)

    def _last_of_key(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
        keys = pa.Table.from_batches([rows.select(self._key)]).append_column(_AT, pa.array(np.arange(rows.num_rows)))
        found = keys.group_by(self._key).aggregate([(_AT, "max")])
        return np.sort(found.column(f"{_AT}_max").to_numpy())

    def _kinds(self, column: pa.Array) -> npt.NDArray[np.int8]:
        encoded = column.dictionary_encode()
        codes = []
        for word in encoded.dictionary.to_pylist():
            code = _KINDS.get(str(word).strip().lower())
            if code is None:
                raise InvalidRowError(
                    f"rowkind.column: {word!r:.40} is no kind of row; use +I, +U, -U, -D, insert, update or delete"
                )
            codes.append(code)
        if encoded.null_count:
            raise InvalidRowError("rowkind.column: a row has no kind (null)")
        return np.asarray(np.array(codes, np.int8)[encoded.indices.to_numpy(zero_copy_only=False)])


_KIND = "__kind"
_AT = "__at"


def _fits(array: pa.Array, cast: pa.Array) -> bool:
    """Whether a cast kept floating-point numbers, which Arrow does not check: finite, and the same in decimals."""
    if not pa.types.is_floating(array.type):
        return True
    if pa.types.is_floating(cast.type):
        return bool(pc.is_finite(array).equals(pc.is_finite(cast)))
    if not pa.types.is_decimal(cast.type):
        return True
    given, kept = (one.to_numpy(zero_copy_only=False) for one in (array, cast.cast(pa.float64())))
    # The way back is exact but for the last bit.
    return bool(np.isclose(kept, given, rtol=2 * np.finfo(given.dtype).eps, atol=0, equal_nan=True).all())


def _mode(info: TableInfo, options: SourceOptions) -> str:
    mode = options["write.mode"]
    if mode == "auto":
        return "upsert" if info.has_primary_key() else "append"
    if mode == "append" and info.has_primary_key():
        raise ConfigError(f"write.mode: table {info.table_path} has a primary key; use upsert or delete")
    if mode != "append" and not info.has_primary_key():
        raise ConfigError(f"write.mode: log table {info.table_path} has no primary key; use append")
    return str(mode)


def _find(names: list[str], wanted: str) -> str | None:
    """The column of this name: exactly, or in other case if there is just one such."""
    if wanted in names:
        return wanted
    close = [name for name in names if name.lower() == wanted.lower()]
    return close[0] if len(close) == 1 else None


def _kin(given: s.DataType, expected: s.DataType) -> bool:
    """Whether values of one type can be values of the other."""
    if isinstance(expected, _NUMBERS):
        return isinstance(given, _NUMBERS)
    if isinstance(expected, _TEXTS):
        return isinstance(given, _TEXTS)
    if isinstance(expected, s.ArrayType):
        return isinstance(given, s.ArrayType) and _kin(given.elementType, expected.elementType)
    if isinstance(expected, s.MapType):
        return (
            isinstance(given, s.MapType)
            and _kin(given.keyType, expected.keyType)
            and _kin(given.valueType, expected.valueType)
        )
    if isinstance(expected, s.StructType):
        return (
            isinstance(given, s.StructType)
            and given.names == expected.names
            and all(_kin(one.dataType, other.dataType) for one, other in zip(given.fields, expected.fields))
        )
    return type(given) is type(expected)
