# SPDX-License-Identifier: Apache-2.0
"""Files of rows: CSV, JSON lines, Parquet and Arrow. Which format a file has, its columns, and exporting a table."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa

from fluss.db.file_writers import open_writer
from fluss.errors import InvalidArgumentError
from fluss.server.disk import sync_folder

if TYPE_CHECKING:
    from fluss.db.blocking import Table

FORMATS = ("csv", "jsonl", "parquet", "arrow")
STANDARD_INPUT = "-"
_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
_INFER_LINES = 10_000
_INFER_BYTES = 1024 * 1024
_ARRAY_BYTES_MAX = 256 << 20
_DELIMITERS = (",", ";", "\t", "|")
_ITEM = re.compile(r"[^\s,\]]")
"""Where an item of an array begins."""
_CODE = re.compile(rb"""(?:^|[,;\t|"\n\r])-?0[0-9]|[0-9]{19}""")


@dataclass(frozen=True)
class TextStyle:
    """How a CSV or JSON file is written, where its bytes do not say it."""

    encoding: str | None = None
    """None: UTF-8, or UTF-16 if the file begins with its mark."""
    null: str | None = None
    """A text of CSV that means null. Nothing between two commas always does."""

    @property
    def nulls(self) -> list[str]:
        """The texts of CSV that mean null."""
        return [""] if self.null is None else ["", self.null]


UTF8 = TextStyle()


def format_of(path: str, given: str | None = None) -> str:
    """The format of a file: as given, or by the end of its name.

    Example:
        format_of("orders.csv.gz")  # 'csv'
    """
    if given is not None:
        if given not in FORMATS:
            raise InvalidArgumentError(f"the format is one of {', '.join(FORMATS)}, not {given!r}")
        return given
    if path == STANDARD_INPUT:
        return "jsonl"
    name = path.lower().removesuffix(".gz")
    found = _SUFFIXES.get(os.path.splitext(name)[1])
    if found is None:
        raise InvalidArgumentError(
            f"the format of '{path}' is not known from its name; it is one of {', '.join(FORMATS)}: say which"
        )
    return found


def check_file(path: str) -> None:
    """Refuse what is no file to read; ``-`` is standard input."""
    if path == STANDARD_INPUT or os.path.isfile(path):
        return
    if os.path.isdir(path):
        raise InvalidArgumentError(f"'{path}' is a folder: name its files, such as {os.path.join(path, '*.parquet')}")
    if not os.path.exists(path):
        raise InvalidArgumentError(f"there is no file '{path}'")


def is_stream(path: str) -> bool:
    """Whether a path can be read once only: standard input, or a pipe."""
    return path == STANDARD_INPUT or not os.path.isfile(path)


def is_file_name(text: str) -> bool:
    """Whether a text names a file rather than a table.

    Example:
        is_file_name("orders.parquet")  # True
    """
    name = text.lower().removesuffix(".gz")
    return os.sep in text or os.path.splitext(name)[1] in _SUFFIXES


def delimiter_of(path: str, header: str) -> str:
    """What separates the values of a CSV file: what splits its header into most names, a comma if nothing does.

    Example:
        delimiter_of("orders.csv", "id;item")  # ';'
    """
    if path.lower().removesuffix(".gz").endswith(".tsv"):
        return "\t"
    return max(_DELIMITERS, key=lambda one: len(next(csv.reader([header], delimiter=one), [])))


def header_of(source: IO[bytes], label: str) -> str:
    """The first line of a CSV file."""
    try:
        line = source.readline(_INFER_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise not_utf8(label) from None
    if "\r" in line.rstrip("\r\n"):
        raise InvalidArgumentError(f"{label}: a carriage return ends its first line; save it with line feeds")
    return line


def not_utf8(label: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{label} is not a text in UTF-8; convert it, or say what it is: --encoding latin1")


@contextlib.contextmanager
def decoding(label: str) -> Iterator[None]:
    """Report a text that is not in the encoding that was given for it."""
    try:
        yield
    except UnicodeError as error:
        raise InvalidArgumentError(f"{label} is not a text in the encoding that was given for it: {error}") from None


def check_text(schema: pa.Schema, label: str) -> None:
    """Refuse the columns of a CSV file if some are not text: Arrow makes bytes of what it cannot decode."""
    if any(pa.types.is_binary(item.type) for item in schema):
        raise not_utf8(label)


def csv_error(label: str, error: pa.ArrowException) -> InvalidArgumentError:
    """What is wrong with a CSV file, from what Arrow says of it."""
    if "invalid UTF8" in str(error):
        return not_utf8(label)
    return InvalidArgumentError(f"{label} is not a CSV file with a header: {error}")


def check_quotes(label: str, last_value: str | None, last_byte: bytes) -> None:
    """Refuse a CSV file with a quote that is never closed: the value takes in all lines that follow.

    Args:
        last_value: The last one of the file. One with a line end was quoted.
        last_byte: The last one of the file that ends no line.
    """
    if last_value is not None and "\n" in last_value and last_byte != b'"':
        start = last_value.split("\n", 1)[0]
        raise InvalidArgumentError(
            f"{label}: the quote before {start!r:.60} is never closed, so all that follows would be one value. Close "
            'it, or write "" for a quote inside a value'
        )


def open_bytes(path: str, encoding: str | None = None) -> IO[bytes]:
    """Open a text for reading, as UTF-8; ``-`` is standard input, and ``.gz`` is decompressed.

    A file in UTF-16 is known by its first bytes.
    """
    try:
        codecs.lookup(encoding or "utf-8")
    except LookupError:
        raise InvalidArgumentError(f"there is no encoding {encoding!r}; write for instance latin1 or cp1252") from None
    source: Any = sys.stdin.buffer
    if path != STANDARD_INPUT:
        opened = gzip.open if path.lower().endswith(".gz") else open
        source = opened(path, "rb")
        if encoding is None and source.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            encoding = "utf-16"
    if encoding is None:
        return source  # type: ignore[no-any-return]
    return io.BufferedReader(pa.transcoding_input_stream(pa.PythonFile(source, "r"), encoding, "utf-8"))


def open_arrow(path: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The batches of an Arrow file, whether it is a file or a stream."""
    try:
        if path == STANDARD_INPUT:
            stream = pa.ipc.open_stream(sys.stdin.buffer)
            return stream.schema, iter(stream)
        source = pa.memory_map(path)
        try:
            reader = pa.ipc.open_file(source)
        except pa.ArrowInvalid:
            source.seek(0)
            stream = pa.ipc.open_stream(source)
            return stream.schema, iter(stream)
    except pa.ArrowException as error:
        raise InvalidArgumentError(f"'{path}' is not an Arrow file: {error}") from None
    return reader.schema, (reader.get_batch(index) for index in range(reader.num_record_batches))


def open_parquet(path: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch], int]:
    """The columns of a Parquet file, its batches, and how many rows there are."""
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except pa.ArrowException as error:
        raise InvalidArgumentError(f"'{path}' is not a Parquet file: {error}") from None
    return file.schema_arrow, file.iter_batches(), file.metadata.num_rows


def file_schema(path: str, given: str | None = None, style: TextStyle = UTF8) -> pa.Schema:
    """The columns of a file: as the file has them, or as its first rows suggest (CSV and JSON)."""
    kind = format_of(path, given)
    check_file(path)
    if is_stream(path):
        raise InvalidArgumentError(
            f"the columns of '{path}' cannot be known beforehand, because it can be read once only: write it to a file"
        )
    if kind == "parquet":
        return open_parquet(path)[0]
    if kind == "arrow":
        return open_arrow(path)[0]
    with open_bytes(path, style.encoding) as source, decoding(f"'{path}'"):
        return _csv_schema(source, path, style) if kind == "csv" else _json_schema(source, path)


def _csv_schema(source: IO[bytes], path: str, style: TextStyle) -> pa.Schema:
    import pyarrow.csv as pc

    label = f"'{path}'"
    head = source.read(_INFER_BYTES)
    if len(head) == _INFER_BYTES:
        head = _whole_lines(head)
    # Rows that do not fit the header are reported when they are loaded.
    parse = pc.ParseOptions(
        delimiter=delimiter_of(path, header_of(io.BytesIO(head), label)),
        newlines_in_values=True,
        invalid_row_handler=lambda row: "skip",
    )
    try:
        # Not `open_csv`: its thread ends the process with an abort if that exits while it reads.
        nulls = pc.ConvertOptions(null_values=style.nulls)  # not those of Arrow, which reads NA as null too
        schema = pc.read_csv(io.BytesIO(head), pc.ReadOptions(use_threads=False), parse, nulls).schema
        codes = code_columns(head, parse, schema, style.nulls)
    except pa.ArrowException as error:
        raise csv_error(label, error) from None
    check_text(schema, label)
    schema = pa.schema([item.with_type(pa.string()) if item.name in codes else item for item in schema])
    # Times without a zone are the usual case, and seconds are too coarse for what comes later.
    return pa.schema([item.with_type(_wider(item.type)) for item in schema])


def code_columns(head: bytes, parse: Any, schema: pa.Schema, nulls: Sequence[str]) -> set[str]:
    """Columns of digits that are no numbers: zeros lead some (postal codes), or a bigint is too small (hashes)."""
    names = [item.name for item in schema if pa.types.is_integer(item.type) or pa.types.is_floating(item.type)]
    if not _CODE.search(head) or not names or len(set(names)) < len(names):
        return set()
    import pyarrow.compute as compute
    import pyarrow.csv as pc

    as_text = pc.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        include_columns=names,
        null_values=nulls,
        strings_can_be_null=True,
    )
    texts = pc.read_csv(io.BytesIO(head), pc.ReadOptions(use_threads=False), parse, as_text)

    def is_code(name: str) -> bool:
        if pa.types.is_integer(schema.field(name).type):
            return bool(compute.any(compute.match_substring_regex(texts[name], "^-?0[0-9]")).as_py())
        # Arrow takes digits alone for floats if one of them is no int64, and would round them.
        return bool(compute.all(compute.match_substring_regex(texts[name], "^-?[0-9]+$")).as_py())

    return {name for name in names if is_code(name)}


def _whole_lines(text: bytes) -> bytes:
    """A text without what follows its last line break outside of quotes."""
    end, quotes = len(text), text.count(b'"')
    while (at := text.rfind(b"\n", 0, end)) >= 0:
        quotes -= text.count(b'"', at, end)
        if quotes % 2 == 0:
            return text[: at + 1]
        end = at
    return text


NOT_AN_OBJECT = "not a JSON object with the columns as keys"


def json_objects(source: IO[bytes], path: str) -> Iterator[bytes]:
    """The rows of a JSON file, one a line. One that begins with ``[`` is an array of rows, and read as a whole."""
    lines = _lines(source, path)
    for line in lines:
        if not line.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
            yield line
            if line.strip():
                yield from lines
            continue
        text = bytearray(line)
        for more in lines:
            text += more
            _check_size(text, path)
        try:
            array = text.decode("utf-8-sig")
            json.loads(array)
        except ValueError as error:
            raise InvalidArgumentError(f"'{path}' is neither an array of rows nor a row a line: {error}") from None
        yield from _items(array)


def _lines(source: IO[bytes], path: str) -> Iterator[bytes]:
    while line := source.readline(_ARRAY_BYTES_MAX + 1):
        _check_size(line, path)
        yield line


def _check_size(text: bytes | bytearray, path: str) -> None:
    if len(text) > _ARRAY_BYTES_MAX:
        raise InvalidArgumentError(
            f"'{path}' has a line or an array that is larger than {_ARRAY_BYTES_MAX >> 20} MiB; make a line for each "
            f"row first: jq -c '.[]' {shlex.quote(path)}"
        )


def _items(array: str) -> Iterator[bytes]:
    """The items of a JSON array as they are written: its numbers may have more digits than a float."""
    read = json.JSONDecoder().raw_decode
    at = array.index("[") + 1
    while (found := _ITEM.search(array, at)) is not None:
        _, at = read(array, found.start())
        yield array[found.start() : at].encode()


def _json_schema(source: IO[bytes], path: str) -> pa.Schema:
    from fluss.db.schemas import as_arrow

    rows = []
    for number, line in enumerate(json_objects(source, path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InvalidArgumentError(f"'{path}', line {number}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise InvalidArgumentError(f"'{path}', line {number}: {NOT_AN_OBJECT}")
        rows.append(row)
        if len(rows) == _INFER_LINES:
            break
    if not rows:
        raise InvalidArgumentError(f"'{path}' has no rows to infer the columns from")
    return pa.schema([item.with_type(_wider(item.type)) for item in as_arrow(rows).schema])


def _wider(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", kind.tz)
    if pa.types.is_time32(kind) and kind.unit == "s":
        return pa.time32("ms")
    return kind


def write_folders(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, folder: str, keys: list[str], kind: str
) -> None:
    """Write a partitioned table as folders: ``day=2026-07-01/part-0.parquet``."""
    import pyarrow.dataset as ds

    if kind not in ("parquet", "csv", "arrow"):
        raise InvalidArgumentError("folders hold parquet, csv or arrow files: choose one of them")
    if Path(folder).exists() and any(Path(folder).iterdir()):
        raise InvalidArgumentError(f"the folder '{folder}' is not empty: choose another, or empty it")
    fields = pa.schema([schema.field(key) for key in keys])
    reader = pa.RecordBatchReader.from_batches(schema, batches)
    ds.write_dataset(
        reader,
        folder,
        format="feather" if kind == "arrow" else kind,
        partitioning=ds.partitioning(fields, flavor="hive"),
    )


def private_file(path: str, flags: int) -> int:
    """Open a file that only its owner can read; an `opener` for `open`."""
    return os.open(path, flags, 0o600)


def write_json(path: str | Path, document: Any) -> None:
    """Write a JSON document durably and in one step: a crash leaves the old file or the new one."""
    partial = f"{path}.partial"
    with open(partial, "w", encoding="utf-8", opener=private_file) as file:
        json.dump(document, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync_folder(os.path.dirname(os.path.abspath(path)))


def export_table(
    table: Table[Any],
    target: str | IO[bytes],
    *,
    kind: str | None = None,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    partitioned: bool = False,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write the rows a table has now; gives how many there are."""
    rows = 0

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in batches:
            yield batch
            rows += batch.num_rows
            if progress is not None:
                progress(batch.num_rows)

    if partitioned:
        keys = list(table.info.partition_keys)
        if not keys:
            raise InvalidArgumentError(f"table {table.path} is not partitioned: export it to one file")
        if not isinstance(target, str):
            raise InvalidArgumentError("partitions are written to a folder: name one")
        reader = table.to_reader(columns, where)
        missing = [key for key in keys if key not in reader.schema.names]
        if missing:
            raise InvalidArgumentError(
                f"the partition column {missing[0]!r} is needed for folders: add it to the columns"
            )
        write_folders(counted(iter(reader)), reader.schema, target, keys, kind or "parquet")
        return rows
    if isinstance(target, str):
        kind = format_of(target, kind)
    assert kind is not None
    reader = table.to_reader(columns, where)
    with open_writer(target, kind, reader.schema) as write:
        for batch in counted(iter(reader)):
            write(batch)
    return rows
