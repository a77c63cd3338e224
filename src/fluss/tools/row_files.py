# SPDX-License-Identifier: Apache-2.0
"""Files as rows of a table: pieces of rows that fit, and the rows that do not, with their line and column."""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fluss._text import did_you_mean
from fluss.db.file_writers import python_dicts
from fluss.db.plain_values import plain_values
from fluss.errors import InvalidArgumentError, InvalidRowError
from fluss.metadata import Column
from fluss.metadata import types as t
from fluss.rows import BadValues, ColumnConverter
from fluss.rows.arrow_values import check_overflow
from fluss.tools.csv_lines import CsvText, RowLines, line_breaks
from fluss.tools.files import (
    NOT_AN_OBJECT,
    UTF8,
    TextStyle,
    check_file,
    check_quotes,
    csv_error,
    decoding,
    delimiter_of,
    format_of,
    header_of,
    json_objects,
    open_arrow,
    open_bytes,
    open_parquet,
)
from fluss.tools.written_values import does_not_fit, exact_json, from_json, text_value, wide

_LINES_AT_ONCE = 8_192
_CSV_BLOCK_BYTES = 4 << 20

_LOST = (
    "rows that are replaced would lose what they have there: add --missing keep to leave it as it is, or --missing null"
)
Errors = dict[int, tuple[str | None, str]]
"""By position: the column, if it is one, and the reason."""


@dataclass(frozen=True)
class BadLine:
    """A row of a file that does not fit the table."""

    file: str
    line: int
    column: str | None
    reason: str
    row: int
    """Its position among the rows of the file, from 0."""
    text: str = ""

    def __str__(self) -> str:
        column = "" if self.column is None else f", column '{self.column}'"
        return f"{self.file}, line {self.line}{column}: {self.reason}"


@dataclass
class FilePiece:
    """Some rows of a file."""

    batch: pa.RecordBatch
    """Those that fit, in their order."""
    rows: int
    """How many rows of the file it covers, with those that do not fit."""
    bad: list[BadLine] = field(default_factory=list)
    good_before: int = 0
    """How many rows fit before the first that does not."""


class RowFile:
    """The rows of one file for some columns of a table.

    Example:
        for piece in RowFile("orders.csv", list(table.schema.columns)).pieces():
            print(piece.batch.num_rows, piece.bad)
    """

    def __init__(
        self,
        path: str,
        columns: Sequence[Column],
        kind: str | None = None,
        *,
        what: str = "the table",
        known: Sequence[str] | None = None,
        lines: Sequence[str] | None = None,
        whole: bool = False,
        style: TextStyle = UTF8,
    ) -> None:
        self.path = path
        self._whole = whole
        self._style = style
        self.kind = "jsonl" if lines is not None else format_of(path, kind)
        self.label = "standard input" if path == "-" else path
        self.columns = list(columns)
        self.what = what
        self._known = [column.name for column in columns] if known is None else list(known)
        self._lines = lines
        has_decimals = any("decimal" in str(column.data_type) for column in columns)
        self._loads = exact_json if has_decimals else json.loads  # which is faster
        self._schema = pa.schema([pa.field(c.name, c.data_type.to_arrow(), c.data_type.nullable) for c in columns])
        self._converters = [ColumnConverter(column.data_type, column.name) for column in columns]
        if lines is None:
            check_file(path)  # now, and not when the files before it are written

    def total(self) -> int | None:
        """How many rows there are, if that is known beforehand."""
        if self._lines is not None:
            return len(self._lines)
        return open_parquet(self.path)[2] if self.kind == "parquet" else None

    def pieces(self, skip: int = 0) -> Iterator[FilePiece]:
        """The rows, after the first `skip` ones."""
        if self._lines is not None:
            yield from self._json((line.encode() for line in self._lines), skip)
        elif self.kind == "parquet":
            schema, batches, _ = open_parquet(self.path)
            yield from self._arrow(schema, batches, skip)
        elif self.kind == "arrow":
            schema, found = open_arrow(self.path)
            yield from self._arrow(schema, found, skip)
        else:
            source = open_bytes(self.path, self._style.encoding)
            try:
                with decoding(self.label):
                    if self.kind == "csv":
                        yield from self._csv(source, skip)
                    else:
                        yield from self._json(json_objects(source, self.path), skip)
            finally:
                if self.path != "-":
                    source.close()

    # -- the columns of the file ----------------------------------------------------------------------------------

    def _check_names(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._known:
                raise InvalidRowError(
                    f"{self.label}: {self.what} has no column {name!r}{did_you_mean(name, self._known)}"
                )
        for column in self.columns:
            if column.name not in names and not column.data_type.nullable:
                raise InvalidRowError(
                    f"{self.label} has no column {column.name!r}, which {self.what} needs (it is not null)"
                )
            if column.name not in names and self._whole:
                raise InvalidRowError(f"{self.label} has no column {column.name!r}; {_LOST}")

    def _piece(
        self,
        arrays: list[pa.Array],
        errors: Errors,
        rows: int,
        line_of: Callable[[int], int],
        row_of: Callable[[int], int],
        text_of: Callable[[int], str],
        more: Sequence[BadLine] = (),
    ) -> FilePiece:
        """Put the columns together; rows with an error are left out."""
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if not errors and not more:
            return FilePiece(batch, rows, good_before=batch.num_rows)
        bad = [
            BadLine(self.label, line_of(position), column, reason, row_of(position), text_of(position))
            for position, (column, reason) in errors.items()
        ]
        bad = sorted([*bad, *more], key=lambda one: one.row)
        first = bad[0].row
        good = [position for position in range(batch.num_rows) if position not in errors]
        before = sum(1 for position in good if row_of(position) < first)
        return FilePiece(batch.take(pa.array(good, pa.int64())) if errors else batch, rows, bad, before)

    # -- Arrow and Parquet ----------------------------------------------------------------------------------------

    def _arrow(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch], skip: int) -> Iterator[FilePiece]:
        self._check_names(schema.names)
        row = 0
        for batch in batches:
            start, row = row, row + batch.num_rows
            if row <= skip:
                continue
            cut = max(0, skip - start)
            batch, first = batch.slice(cut), start + cut
            errors: Errors = {}
            arrays = []
            for column, target in zip(self.columns, self._schema):
                values = (
                    batch.column(column.name) if column.name in schema.names else pa.nulls(batch.num_rows, target.type)
                )
                arrays.append(self._cast(values, column, target.type, errors))
            yield self._piece(
                arrays,
                errors,
                batch.num_rows,
                lambda position, first=first: first + position + 1,  # type: ignore[misc]
                lambda position, first=first: first + position,  # type: ignore[misc]
                lambda position, batch=batch: str(python_dicts(batch.slice(position, 1))[0]),  # type: ignore[misc]
            )

    def _cast(self, values: pa.Array, column: Column, target: pa.DataType, errors: Errors) -> pa.Array:
        if values.type != target:
            try:
                values = _cast(values, target)
            except (pa.ArrowException, InvalidRowError):
                values = self._cast_each(values, column, target, errors)
        if not column.data_type.nullable and values.null_count:
            for position in pc.indices_nonzero(values.is_null()).to_pylist():
                errors.setdefault(position, (column.name, "the column is not null"))
            values = pc.fill_null(values, _filler(target)) if _filler(target) is not None else values
        return values

    def _cast_each(self, values: pa.Array, column: Column, target: pa.DataType, errors: Errors) -> pa.Array:
        found = []
        for position in range(len(values)):
            try:
                found.append(_cast(values.slice(position, 1), target))
            except (pa.ArrowException, InvalidRowError):
                (value,) = plain_values(values.slice(position, 1))
                errors.setdefault(position, (column.name, does_not_fit(value, column.data_type)))
                found.append(pa.nulls(1, target))
        return pa.chunked_array(found, target).combine_chunks()

    # -- CSV ------------------------------------------------------------------------------------------------------

    def _csv(self, source: IO[bytes], skip: int) -> Iterator[FilePiece]:
        import pyarrow.csv as csv

        short: deque[BadLine] = deque()

        def wrong_length(found: Any) -> str:
            row = max((found.number or 0) - 1, 0)
            reason = f"it has {found.actual_columns} values, the header has {found.expected_columns}"
            short.append(BadLine(self.label, 0, None, reason, row, str(found.text)))  # its line is known later
            return "skip"

        names, delimiter = _header(source, self.path, self.label)
        self._check_names(names)
        # Of a single column, an empty line is a row with null, as `export` writes it.
        empty_lines_are_rows = len(names) == 1 and self.columns[0].data_type.nullable
        text = CsvText(source, empty_lines_are_rows)
        try:
            reader = csv.open_csv(
                text,
                read_options=csv.ReadOptions(
                    use_threads=False,
                    block_size=_CSV_BLOCK_BYTES,
                    column_names=names,
                ),
                parse_options=csv.ParseOptions(
                    delimiter=delimiter,
                    newlines_in_values=True,
                    invalid_row_handler=wrong_length,
                    ignore_empty_lines=not empty_lines_are_rows,
                ),
                convert_options=csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    null_values=self._style.nulls,
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowException as error:
            if str(error) == "Empty CSV file":  # nothing but the header
                return
            raise csv_error(self.label, error) from None
        with reader:  # also for one who stops early: a thread reads ahead
            yield from self._csv_pieces(self._csv_batches(reader, text), RowLines(text), short, skip)

    def _csv_batches(self, reader: Iterable[pa.RecordBatch], text: CsvText) -> Iterator[pa.RecordBatch]:
        held: pa.RecordBatch | None = None
        try:
            for batch in reader:
                if batch.num_rows:
                    if held is not None:
                        yield held
                    held = batch
        except pa.ArrowException as error:
            raise csv_error(self.label, error) from None
        if held is not None:
            check_quotes(self.label, held.columns[-1][-1].as_py(), text.last)
            yield held

    def _csv_pieces(
        self, batches: Iterator[pa.RecordBatch], row_lines: RowLines, short: deque[BadLine], skip: int
    ) -> Iterator[FilePiece]:
        next_row = 0
        waiting: list[BadLine] = []
        for batch in batches:
            positions: list[int] | range
            waiting = _taken(waiting, short)
            if waiting and waiting[0].row <= next_row + batch.num_rows:
                taken = {one.row for one in waiting}
                free = (row for row in itertools.count(next_row) if row not in taken)
                positions = list(itertools.islice(free, batch.num_rows))
            else:
                positions = range(next_row, next_row + batch.num_rows)
            end = positions[-1] + 1 if len(positions) else next_row
            mine = [one for one in waiting if one.row < end]
            waiting = [one for one in waiting if one.row >= end]
            start, next_row = next_row, end
            breaks = row_lines.breaks_of(batch)
            if mine:
                before = [one.row - start - number for number, one in enumerate(mine)]
                breaks = np.insert(breaks, before, line_breaks(one.text for one in mine))
            lines = row_lines.take(breaks)
            mine = [replace(one, line=int(lines[one.row - start])) for one in mine]
            if end > skip:
                yield from self._csv_piece(batch, positions, start, lines, mine, skip)
        if waiting := _taken(waiting, short):
            lines = row_lines.take(np.array(line_breaks(one.text for one in waiting), np.int64))
            bad = [replace(one, line=line) for one, line in zip(waiting, lines.tolist()) if one.row >= skip]
            if bad:
                empty = pa.RecordBatch.from_pylist([], self._schema)
                yield FilePiece(empty, bad[-1].row + 1 - max(next_row, skip), bad, 0)

    def _csv_piece(
        self,
        batch: pa.RecordBatch,
        positions: Sequence[int],
        start: int,
        lines: np.ndarray[Any, np.dtype[np.int64]],
        short: list[BadLine],
        skip: int,
    ) -> Iterator[FilePiece]:
        if start < skip:
            left = [index for index, row in enumerate(positions) if row >= skip]
            batch, positions = batch.slice(left[0] if left else batch.num_rows), [positions[index] for index in left]
            short = [one for one in short if one.row >= skip]
            lines = lines[skip - start :]
            start = skip
        errors: Errors = {}
        arrays = []
        for column, target in zip(self.columns, self._schema):
            if column.name not in batch.schema.names:
                arrays.append(pa.nulls(batch.num_rows, target.type))
                continue
            arrays.append(self._from_text(batch.column(column.name), column, target.type, errors))
        rows = (positions[-1] + 1 if len(positions) else start) - start

        yield self._piece(
            arrays,
            errors,
            rows,
            lambda position: int(lines[positions[position] - start]),
            lambda position: positions[position],
            lambda position: ",".join(
                "" if v is None else str(v) for v in batch.slice(position, 1).to_pylist()[0].values()
            ),
            short,
        )

    def _from_text(self, values: pa.Array, column: Column, target: pa.DataType, errors: Errors) -> pa.Array:
        kind = column.data_type
        if values.type == target or not isinstance(
            kind, (t.ArrayType, t.MapType, t.RowType, t.BytesType, t.BinaryType)
        ):
            try:
                return self._cast(values.cast(wide(target)), column, target, errors)
            except pa.ArrowException:
                pass  # one of them does not fit, or is written in a way that Arrow does not read
        converted: list[Any] = []
        for position, text in enumerate(values.to_pylist()):
            try:
                converted.append(None if text is None else text_value(text, kind, column.name))
            except InvalidRowError as error:
                errors.setdefault(position, (column.name, error.reason))
                converted.append(None)
        return self._converted(converted, column, target, errors)

    # -- JSON -----------------------------------------------------------------------------------------------------

    def _json(self, lines: Iterator[bytes], skip: int) -> Iterator[FilePiece]:
        numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
        row = 0
        while chunk := list(itertools.islice(numbered, _LINES_AT_ONCE)):
            start, row = row, row + len(chunk)
            if row <= skip:
                continue
            if start < skip:
                chunk, start = chunk[skip - start :], skip
            yield self._json_piece(chunk, start)

    def _json_piece(self, chunk: list[tuple[int, bytes]], start: int) -> FilePiece:
        errors: Errors = {}
        rows: list[dict[str, Any]] = []
        known = set(self._known)
        names = dict.fromkeys(column.name for column in self.columns).keys()
        for position, (_, line) in enumerate(chunk):
            row: Any = {}
            try:
                row = self._loads(line)
                if not isinstance(row, dict):
                    errors[position] = None, f"it is {NOT_AN_OBJECT}"
                elif row.keys() - known:
                    name = next(name for name in row if name not in known)
                    errors[position] = name, f"{self.what} has no such column{did_you_mean(name, self._known)}"
            except (ValueError, RecursionError) as error:
                errors[position] = None, f"it is not JSON: {error}"
            rows.append(row if isinstance(row, dict) else {})
        arrays = []
        for column, target in zip(self.columns, self._schema):
            values: list[Any] = []
            for position, row in enumerate(rows):
                value = row.get(column.name)
                try:
                    values.append(None if value is None else from_json(value, column.data_type, column.name))
                except InvalidRowError:
                    values.append(self._exact_value(chunk[position][1], column, position, errors))
            arrays.append(self._converted(values, column, target.type, errors))
        for position, row in enumerate(rows) if self._whole else ():
            if not row.keys() >= names:
                lacking = next(name for name in names if name not in row)
                errors.setdefault(position, (lacking, f"it is not given; {_LOST}"))
        return self._piece(
            arrays,
            errors,
            len(chunk),
            lambda position: chunk[position][0],
            lambda position: start + position,
            lambda position: chunk[position][1].decode(errors="replace").rstrip("\r\n"),
        )

    def _exact_value(self, line: bytes, column: Column, position: int, errors: Errors) -> Any:
        """Read a value with all its digits: an integer may be written as 1e18, and a float has not all of them."""
        try:
            return from_json(exact_json(line)[column.name], column.data_type, column.name)
        except InvalidRowError as error:
            errors.setdefault(position, (column.name, error.reason))
            return None

    def _converted(self, values: list[Any], column: Column, target: pa.DataType, errors: Errors) -> pa.Array:
        """Python values as an array; those that do not fit become errors, and null for the time being."""
        converter = self._converters[self.columns.index(column)]
        try:
            return converter.to_arrow(values)
        except BadValues as found:
            for position, error in found.errors.items():
                errors.setdefault(position, (column.name, error.reason))
            left = [None if position in errors else value for position, value in enumerate(values)]
            nullable = ColumnConverter(column.data_type.with_nullable(True), column.name)
            array = nullable.to_arrow(left)
            filler = _filler(target)
            return pc.fill_null(array, filler) if not column.data_type.nullable and filler is not None else array


def _taken(waiting: list[BadLine], short: deque[BadLine]) -> list[BadLine]:
    """Add the rows that the parser has found meanwhile, in its own thread."""
    return sorted([*waiting, *(short.popleft() for _ in range(len(short)))], key=lambda one: one.row)


def _header(source: IO[bytes], path: str, label: str) -> tuple[list[str], str]:
    """The names in the first line of a CSV file, and what is between them."""
    import csv

    line = header_of(source, label)
    delimiter = delimiter_of(path, line)
    names = next(csv.reader([line], delimiter=delimiter), [])
    if not names or not any(names):
        raise InvalidArgumentError(
            f"{'standard input' if path == '-' else path} is empty; a CSV file begins with a header"
        )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InvalidArgumentError(f"the header of {path} names {twice[0]!r} twice")
    return names, delimiter


def _cast(values: pa.Array, target: pa.DataType) -> pa.Array:
    found = values.cast(target)
    check_overflow(values, found)
    return found


def _filler(target: pa.DataType) -> Any:
    """A value for places that are left out anyway."""
    kinds = pa.types
    if kinds.is_integer(target) or kinds.is_floating(target):
        return pa.scalar(0, target)
    if kinds.is_string(target):
        return pa.scalar("", target)
    return None
