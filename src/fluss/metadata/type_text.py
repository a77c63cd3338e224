# SPDX-License-Identifier: Apache-2.0
"""Types and columns written as SQL text: ``id bigint not null, tags array<string>``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from functools import partial

from fluss.errors import InvalidArgumentError
from fluss.metadata import types as t
from fluss.metadata.schema import Column, Schema

_TOKEN = re.compile(
    r"""\s*(?:(?P<word>[^\W\d]\w*)|(?P<number>\d+)|(?P<quoted>`(?:[^`]|``)*`|"(?:[^"]|"")*")"""
    r"""|(?P<text>'(?:[^']|'')*')|(?P<mark>[(),<>:]))"""
)

_ALIASES = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int": "integer",
    "int32": "integer",
    "long": "bigint",
    "int64": "bigint",
    "real": "float",
    "float32": "float",
    "float64": "double",
    "text": "string",
    "str": "string",
    "blob": "bytes",
}
_PLAIN = {name.lower(): cls for name, cls in t.PLAIN_TYPES.items()}
_PLAIN |= {alias: _PLAIN[name] for alias, name in _ALIASES.items()}
_NAMES = sorted(
    {*_PLAIN, "char", "varchar", "binary", "varbinary", "decimal", "numeric", "time", "timestamp", "datetime"}
    | {"timestamp_ltz", "timestamptz", "array", "map", "row", "struct"}
)


def parse_data_type(text: str) -> t.DataType:
    """Read a type as SQL writes it: ``decimal(10,2) not null``, ``map<string, array<int>>``, ``row<a int, b date>``.

    Example:
        parse_data_type("array<string> not null")
    """
    reader = _TypeParser(text, "type")
    data_type = reader.data_type()
    reader.expect_end()
    return data_type


def parse_schema(text: str) -> Schema:
    """Read a list of columns as SQL writes it, with an optional ``primary key`` of a column or at the end.

    Example:
        parse_schema("id bigint primary key, name string, price decimal(10,2) comment 'in euros'")
    """
    reader = _TypeParser(text, "schema")
    columns: list[Column] = []
    primary_key: list[str] = []
    while True:
        if reader.accept("primary", "key"):
            primary_key += reader.names_in_parentheses()
        else:
            column, is_key = reader.column()
            columns.append(column)
            if is_key:
                primary_key.append(column.name)
        if not reader.accept(","):
            break
    reader.expect_end()
    return Schema.of(columns, primary_key)


class _TypeParser:
    """Tokens of a text, read from the left."""

    def __init__(self, text: object, what: str) -> None:
        if not isinstance(text, str) or not text.strip():
            raise InvalidArgumentError(f"a {what} is a text such as 'id bigint not null, name string', not {text!r}")
        self._text = text
        self._what = what
        self._tokens: list[tuple[str, str, int]] = []
        self._at = 0
        end = len(text.rstrip())
        position = 0
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                position += len(text[position:]) - len(text[position:].lstrip())
                raise self._error(f"unexpected {text[position]!r}", position)
            kind = str(match.lastgroup)
            self._tokens.append((kind, match.group(kind), match.start(kind)))
            position = match.end()

    def _error(self, problem: str, position: int) -> InvalidArgumentError:
        shown = self._text if len(self._text) <= 200 else f"{self._text[:200]}…"
        return InvalidArgumentError(f"cannot read the {self._what} {shown!r}: {problem} at position {position}")

    def _fail(self, expected: str) -> InvalidArgumentError:
        if self._at >= len(self._tokens):
            return self._error(f"expected {expected}", len(self._text))
        _, value, position = self._tokens[self._at]
        return self._error(f"expected {expected}, found {value!r}", position)

    def accept(self, *wanted: str) -> bool:
        """Skip these words or marks if they come next."""
        found = self._tokens[self._at : self._at + len(wanted)]
        if [value.lower() for kind, value, _ in found if kind in ("word", "mark")] != list(wanted):
            return False
        self._at += len(wanted)
        return True

    def expect(self, mark: str) -> None:
        if not self.accept(mark):
            raise self._fail(repr(mark))

    def expect_end(self) -> None:
        if self._at < len(self._tokens):
            raise self._fail("',' or the end")

    def _take(self, kinds: tuple[str, ...], expected: str) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at][0] not in kinds:
            raise self._fail(expected)
        kind, value, _ = self._tokens[self._at]
        self._at += 1
        if kind in ("quoted", "text"):
            quote = value[0]
            return value[1:-1].replace(quote * 2, quote)
        return value

    def name(self) -> str:
        return self._take(("word", "quoted"), "the name of a column")

    def names_in_parentheses(self) -> list[str]:
        self.expect("(")
        names = [self.name()]
        while self.accept(","):
            names.append(self.name())
        self.expect(")")
        return names

    def column(self) -> tuple[Column, bool]:
        """A column, and whether it says that it is the primary key."""
        name = self.name()
        self.accept(":")
        data_type = self.data_type()
        is_key = self.accept("primary", "key")
        data_type = self._nullability(data_type)
        comment = self._take(("text",), "a comment in quotes") if self.accept("comment") else None
        return Column(name, data_type, comment), is_key

    def _nullability(self, data_type: t.DataType) -> t.DataType:
        if self.accept("not", "null"):
            return data_type.not_null()
        self.accept("null")
        return data_type

    def data_type(self, depth: int = 1) -> t.DataType:
        if depth > t.MAX_TYPE_DEPTH:
            raise self._fail(f"types nested at most {t.MAX_TYPE_DEPTH} levels deep")
        at = self._at
        name = self._take(("word",), "a type").lower()
        position = self._tokens[at][2]
        make = self._constructor(name, depth)
        if make is None:
            near = difflib.get_close_matches(name, _NAMES, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; the types are {', '.join(_NAMES)}"
            raise self._error(f"unknown type {name!r}{hint}", position)
        try:
            data_type = make()
        except InvalidArgumentError as error:
            raise self._error(error.message, position) from None
        return self._nullability(data_type)

    def _constructor(self, name: str, depth: int) -> Callable[[], t.DataType] | None:
        """Read the parameters of a type; return how to make it, which fails if they are out of range."""
        if name == "double":
            self.accept("precision")
        if name in _PLAIN:
            return _PLAIN[name]
        if name in ("char", "binary"):
            kind: type[t.CharType] | type[t.BinaryType] = t.CharType if name == "char" else t.BinaryType
            return partial(kind, *self._numbers(1))
        if name in ("varchar", "varbinary"):
            self._numbers(1)  # a declared length is not kept: strings and bytes have any length here
            return t.StringType if name == "varchar" else t.BytesType
        if name in ("decimal", "numeric"):
            return partial(t.DecimalType, *self._numbers(2))
        if name == "time":
            return partial(t.TimeType, *self._numbers(1))
        if name in ("timestamp_ltz", "timestamptz"):
            return partial(t.TimestampLtzType, *self._numbers(1))
        if name in ("timestamp", "datetime"):
            numbers = self._numbers(1)
            if self.accept("with", "local", "time", "zone") or self.accept("with", "time", "zone"):
                return partial(t.TimestampLtzType, *numbers)
            self.accept("without", "time", "zone")
            return partial(t.TimestampType, *numbers)
        if name == "array":
            self.expect("<")
            element = self.data_type(depth + 1)
            self.expect(">")
            return partial(t.ArrayType, element)
        if name == "map":
            self.expect("<")
            key = self.data_type(depth + 1)
            self.expect(",")
            value = self.data_type(depth + 1)
            self.expect(">")
            return partial(t.MapType, key, value)
        if name in ("row", "struct"):
            return partial(t.RowType, self._row_fields(depth))
        return None

    def _row_fields(self, depth: int) -> tuple[t.DataField, ...]:
        closing = ")" if self.accept("(") else ">"
        if closing == ">":
            self.expect("<")
        fields: list[t.DataField] = []
        while True:
            name = self.name()
            self.accept(":")
            fields.append(t.DataField(name, self.data_type(depth + 1)))
            if not self.accept(","):
                break
        self.expect(closing)
        return tuple(fields)

    def _numbers(self, count_max: int) -> list[int]:
        if not self.accept("("):
            return []
        numbers = [int(self._take(("number",), "a number"))]
        while len(numbers) < count_max and self.accept(","):
            numbers.append(int(self._take(("number",), "a number")))
        self.expect(")")
        return numbers
