# SPDX-License-Identifier: Apache-2.0
"""The option `scan.filter`: comparisons joined by `and`, as in SQL, read into a predicate."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from typing import Any

from fluss.errors import ConfigError
from fluss.metadata import (
    BinaryType,
    BytesType,
    CharType,
    Compound,
    CompoundFunction,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    Predicate,
    Schema,
    StringType,
    TimestampLtzType,
    TimestampType,
    col,
)

_TOKENS = re.compile(r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<quoted>`[^`]+`)|(?P<number>-?\d+(?:\.\d+)?)|"
                     r"(?P<word>[A-Za-z_]\w*)|(?P<sign><=|>=|<>|!=|=|<|>|\(|\)|,))")  # fmt: skip
_COMPARISONS = {
    "=": "equal",
    "<>": "not_equal",
    "!=": "not_equal",
    "<": "less_than",
    "<=": "less_or_equal",
    ">": "greater_than",
    ">=": "greater_or_equal",
}
_LENGTH_MAX = 10_000


class _Reader:
    def __init__(self, text: str, schema: Schema) -> None:
        self._text = text
        self._schema = schema
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            found = _TOKENS.match(text, at)
            if found is None:
                raise self._error(f"{text[at : at + 20].strip()!r} is not understood")
            assert found.lastgroup is not None
            self._tokens.append((found.lastgroup, found.group(found.lastgroup)))
            at = found.end()
        self._at = 0

    def _error(self, what: str) -> ConfigError:
        return ConfigError(
            f"scan.filter: {what} in {self._text!r:.200}; write comparisons joined by and, such as id > 5 and s = 'x'"
        )

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise self._error("something is missing at the end")
        self._at += 1
        return self._tokens[self._at - 1]

    def _is_word(self, word: str) -> bool:
        if self._at >= len(self._tokens) or self._tokens[self._at][0] != "word":
            return False
        if self._tokens[self._at][1].lower() != word:
            return False
        self._at += 1
        return True

    def read(self) -> Predicate:
        found = [self._comparison()]
        while self._at < len(self._tokens):
            if not self._is_word("and"):
                raise self._error(f"'and' is expected before {self._tokens[self._at][1]!r}")
            found.append(self._comparison())
        return found[0] if len(found) == 1 else Compound(CompoundFunction.AND, tuple(found))

    def _comparison(self) -> Predicate:
        kind, text = self._next()
        name = text[1:-1] if kind == "quoted" else text
        if kind not in ("quoted", "word") or name not in self._schema.column_names:
            raise self._error(f"{name!r:.60} is no column ({', '.join(self._schema.column_names)})")
        column, data_type = col(name), self._schema.column(name).data_type
        if self._is_word("is"):
            negated = self._is_word("not")
            if not self._is_word("null"):
                raise self._error("'null' is expected after 'is'")
            return column.is_not_null() if negated else column.is_null()
        negated = self._is_word("not")
        if self._is_word("in"):
            values = self._list(data_type)
            return column.not_in(values) if negated else column.is_in(values)
        if negated:
            raise self._error("'in' is expected after 'not'")
        if self._is_word("like"):
            return self._like(column, data_type)
        kind, sign = self._next()
        if sign not in _COMPARISONS:
            raise self._error(f"a comparison is expected, not {sign!r}")
        predicate: Predicate = getattr(column, _COMPARISONS[sign])(self._value(data_type))
        return predicate

    def _list(self, data_type: DataType) -> list[Any]:
        if self._next()[1] != "(":
            raise self._error("'(' is expected after 'in'")
        values = [self._value(data_type)]
        while (sign := self._next()[1]) == ",":
            values.append(self._value(data_type))
        if sign != ")":
            raise self._error("')' is expected after the values of 'in'")
        return values

    def _like(self, column: Any, data_type: DataType) -> Predicate:
        pattern = self._value(data_type)
        inner = pattern.strip("%")
        if not isinstance(pattern, str) or "%" in inner or "_" in inner or not inner or pattern == inner:
            raise self._error("like takes 'x%', '%x' or '%x%'")
        start, end = pattern.startswith("%"), pattern.endswith("%")
        method = "contains" if start and end else "ends_with" if start else "starts_with"
        predicate: Predicate = getattr(column, method)(inner)
        return predicate

    def _value(self, data_type: DataType) -> Any:
        kind, text = self._next()
        try:
            if kind == "word" and text.lower() in ("true", "false"):
                return text.lower() == "true"
            if kind == "number":
                if isinstance(data_type, DecimalType):
                    return Decimal(text)
                return float(text) if isinstance(data_type, (FloatType, DoubleType)) else int(text)
            if kind == "text":
                return _typed(text[1:-1].replace("''", "'"), data_type)
        except ValueError:
            raise self._error(f"{text!r:.60} is no {data_type}") from None
        raise self._error(f"a value is expected, not {text!r:.60}")


def _typed(text: str, data_type: DataType) -> Any:
    if isinstance(data_type, (CharType, StringType)):
        return text
    if isinstance(data_type, DateType):
        return datetime.date.fromisoformat(text)
    if isinstance(data_type, TimestampType):
        return datetime.datetime.fromisoformat(text)
    if isinstance(data_type, TimestampLtzType):
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
        return moment.astimezone(datetime.timezone.utc)
    if isinstance(data_type, (BinaryType, BytesType)):
        return bytes.fromhex(text)
    raise ValueError(text)


def parse_filter(text: str, schema: Schema) -> Predicate:
    """The predicate a filter text stands for, checked against the columns of the table."""
    if len(text) > _LENGTH_MAX:
        raise ConfigError(f"scan.filter: the text is longer than {_LENGTH_MAX} characters")
    predicate = _Reader(text, schema).read()
    predicate.to_arrow_expression(schema)
    return predicate
