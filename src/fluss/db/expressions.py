# SPDX-License-Identifier: Apache-2.0
"""Arrow expressions as predicates: what of a filter that DuckDB, polars or pyarrow hand over can be used for reading.

The tree of an expression is read from its serialised form, the one that pickle uses: an Arrow file whose schema has the
calls and fields as metadata and whose columns are the literals. (Substrait would be the documented form, but pyarrow
writes it in time and space that double with each level of a filter: 1.7 s and 12 MB for 15 conditions.) What cannot be
read, and what means something else than a predicate of ours would, is left out: the result lets through every row that
the expression does, and maybe more. `Translated.exact` says whether it lets through exactly those.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from fluss.errors import FlussError
from fluss.metadata import Predicate, Schema, col
from fluss.metadata import types as t
from fluss.metadata.predicate import EVERYTHING, LITERALS_MAX, NOTHING

if TYPE_CHECKING:
    import pyarrow.compute as pc

_DEPTH_MAX = 200
_MIRRORED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}
_COMPARISONS: dict[str, Callable[[Any, Any], Predicate]] = {
    "equal": lambda column, value: column == value,
    "not_equal": lambda column, value: column != value,
    "less": lambda column, value: column < value,
    "less_equal": lambda column, value: column <= value,
    "greater": lambda column, value: column > value,
    "greater_equal": lambda column, value: column >= value,
}
_ENTRY = re.compile(r"(call|field_ref|literal|options|end): '(.*)'")
_NULL_MATCHES = 0  # `pyarrow.compute.SetLookupOptions`: a null of the set matches null


@dataclass(frozen=True)
class Translated:
    """A predicate that holds wherever an Arrow expression is true."""

    predicate: Predicate
    exact: bool
    """Whether it holds nowhere else. Then its negation means the same as that of the expression, too."""


class _Call(NamedTuple):
    name: str
    arguments: list[Any]
    options: dict[str, Any]


class _Field(NamedTuple):
    name: str


class _Unreadable(Exception):
    """The expression has a form that is not known here."""


_UNREADABLE = (
    _Unreadable,
    pa.ArrowException,
    ValueError,
    OverflowError,  # a date that Python does not have
    TypeError,
    AttributeError,
    IndexError,
    KeyError,
)


def translate(expression: pc.Expression, schema: Schema, *, as_sql: bool = False) -> Translated | None:
    """Read an Arrow expression as a predicate over the columns of a table; None if nothing of it can be used.

    Args:
        expression: The filter, of which every part that can be read is used.
        schema: The columns of the table.
        as_sql: The expression comes from a system that orders NaN above all numbers and takes ``x in (…)`` of a null
            for unknown, as predicates here do and Arrow does not. polars is one, and writes its filters plainly.

    Example:
        found = translate((pc.field("id") > 3) & (pc.field("name") == "x"), schema)
    """
    if any("\n" in name for name in schema.column_names):
        return None  # the form that is read has a line for each field
    try:
        return _Translator(schema, as_sql).translate(_read(expression))
    except _UNREADABLE:
        return None  # another version may write expressions in another form: the rows are filtered all the same


def fields_of(expression: pc.Expression) -> list[str] | None:
    """The names of the columns that an expression looks at; None if that is not known."""
    try:
        names: dict[str, None] = {}
        waiting = [_read(expression)]
        while waiting:
            node = waiting.pop()
            if isinstance(node, _Field):
                names[node.name] = None
            elif isinstance(node, _Call):
                waiting += node.arguments
        return list(names)
    except _UNREADABLE:
        return None


# -- the serialised form -----------------------------------------------------------------------------------------------


def _read(expression: pc.Expression) -> Any:
    _, (data,) = expression.__reduce__()
    with pa.ipc.open_file(data) as reader:
        batch = reader.get_batch(0) if reader.num_record_batches else None
        entries = _metadata(reader.schema)
    literals = [] if batch is None else [column[0] for column in batch.columns]
    node, end = _node(entries, 0, literals, 1)
    if end != len(entries):
        raise _Unreadable
    return node


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """The metadata of a schema in its order and with keys that occur twice, which `schema.metadata`, a dict, lacks."""
    shown = schema.to_string(truncate_metadata=False, show_field_metadata=False)
    entries = []
    for line in shown.partition("-- schema metadata --\n")[2].split("\n"):
        found = _ENTRY.fullmatch(line)
        if found is None:
            raise _Unreadable
        entries.append((found[1], found[2]))
    return entries


def _node(entries: list[tuple[str, str]], at: int, literals: list[Any], depth: int) -> tuple[Any, int]:
    if depth > _DEPTH_MAX:
        raise _Unreadable
    key, value = entries[at]
    if key == "literal":
        return literals[int(value)], at + 1
    if key == "field_ref":
        return _Field(value), at + 1
    if key != "call":
        raise _Unreadable
    arguments: list[Any] = []
    options: dict[str, Any] = {}
    at += 1
    while entries[at][0] != "end":
        if entries[at][0] == "options":
            scalar = literals[int(entries[at][1])]
            options = {field.name: scalar[field.name] for field in scalar.type}
            at += 1
        else:
            argument, at = _node(entries, at, literals, depth + 1)
            arguments.append(argument)
    return _Call(value, arguments, options), at + 1


# -- meaning -----------------------------------------------------------------------------------------------------------


class _Translator:
    def __init__(self, schema: Schema, as_sql: bool) -> None:
        self._schema = schema
        self._as_sql = as_sql

    def translate(self, node: Any) -> Translated | None:
        if isinstance(node, pa.BooleanScalar):
            value = node.as_py()
            # Null is as little true as false is, but its negation is not true.
            return Translated(EVERYTHING if value else NOTHING, value is not None)
        if isinstance(node, _Field):
            if self._type_of(node) is None or not isinstance(self._type_of(node), t.BooleanType):
                return None
            return Translated(col(node.name) == True, True)  # noqa: E712
        if not isinstance(node, _Call):
            return None
        if node.name in ("and_kleene", "or_kleene", "and", "or"):
            return self._join(node)
        if node.name == "invert":
            inner = self.translate(node.arguments[0])
            return Translated(~inner.predicate, True) if inner is not None and inner.exact else None
        if node.name in _COMPARISONS:
            return self._comparison(node)
        if node.name in ("is_null", "is_valid"):
            return self._null_test(node)
        if node.name == "is_in":
            return self._is_in(node)
        if node.name == "if_else":
            return self._guarded(node)
        if node.name in ("starts_with", "ends_with", "match_substring"):
            return self._text(node)
        return None

    def _join(self, node: _Call) -> Translated | None:
        both = [self.translate(argument) for argument in node.arguments]
        known = [one for one in both if one is not None]
        if not known or len(known) < len(both):
            # What stands beside an AND that holds must hold too.
            return Translated(known[0].predicate, False) if known and node.name.startswith("and") else None
        exact = all(one.exact for one in known) and node.name.endswith("_kleene")
        left, right = (one.predicate for one in known)
        return Translated(left & right if node.name.startswith("and") else left | right, exact)

    def _comparison(self, node: _Call) -> Translated | None:
        left, right = node.arguments
        name = node.name
        if isinstance(right, _Field):
            left, right, name = right, left, _MIRRORED.get(name, name)
        data_type = self._type_of(left)
        if data_type is None or not isinstance(right, pa.Scalar):
            return None
        if not right.is_valid:
            return Translated(NOTHING, False)
        literal = _literal(right, data_type)
        if literal is None:
            return None
        # NaN is greater than every number for us; for Arrow it is neither greater nor less, nor equal to itself.
        if not self._as_sql and isinstance(literal, float) and math.isnan(literal):
            return Translated(col(left.name).is_not_null() if name == "not_equal" else NOTHING, False)
        return self._checked(
            _COMPARISONS[name](col(left.name), literal), exact=self._as_sql or not isinstance(data_type, t.FLOAT_TYPES)
        )

    def _null_test(self, node: _Call) -> Translated | None:
        field = node.arguments[0]
        if self._type_of(field) is None:
            return None
        if node.name == "is_valid":
            return Translated(col(field.name).is_not_null(), True)
        if node.options["nan_is_null"].as_py():
            return None
        return Translated(col(field.name).is_null(), True)

    def _is_in(self, node: _Call) -> Translated | None:
        field = node.arguments[0]
        data_type = self._type_of(field)
        if data_type is None:
            return None
        items = node.options["value_set"].values
        if len(items) > LITERALS_MAX:
            return None
        literals = [_literal(item, data_type) for item in items if item.is_valid]
        if any(literal is None for literal in literals):
            return None
        predicate: Predicate = col(field.name).is_in(literals)
        if len(literals) < len(items):
            if node.options["null_matching_behavior"].as_py() != _NULL_MATCHES:
                return None
            predicate = predicate | col(field.name).is_null()
        # Of null Arrow says that it is not in the set, SQL that this is unknown: negations differ.
        return self._checked(predicate, exact=self._as_sql and len(literals) == len(items))

    def _guarded(self, node: _Call) -> Translated | None:
        """``if_else(is_valid(x), is_in(x, set), null)``: DuckDB writes IN of SQL in this way."""
        condition, then, otherwise = node.arguments
        if not isinstance(otherwise, pa.Scalar) or otherwise.is_valid or not isinstance(then, _Call):
            return None
        if (
            not isinstance(condition, _Call)
            or condition.name != "is_valid"
            or condition.arguments != then.arguments[:1]
        ):
            return None
        inner = self.translate(then)
        if inner is None:
            return None
        plain_set = then.name == "is_in" and not any(not item.is_valid for item in then.options["value_set"].values)
        return Translated(
            inner.predicate, plain_set and not isinstance(self._type_of(then.arguments[0]), t.FLOAT_TYPES)
        )

    def _text(self, node: _Call) -> Translated | None:
        field = node.arguments[0]
        if not isinstance(self._type_of(field), t.TEXT_TYPES) or node.options["ignore_case"].as_py():
            return None
        pattern = node.options["pattern"].as_py()
        text = pattern.decode() if isinstance(pattern, bytes) else pattern
        column = col(field.name)
        build = {"starts_with": column.starts_with, "ends_with": column.ends_with, "match_substring": column.contains}
        return self._checked(build[node.name](text), exact=True)

    def _checked(self, predicate: Predicate, *, exact: bool) -> Translated | None:
        try:
            predicate.resolve(self._schema)
        except FlussError:
            return None
        return Translated(predicate, exact)

    def _type_of(self, node: Any) -> t.DataType | None:
        if not isinstance(node, _Field) or node.name not in self._schema.column_names:
            return None
        return self._schema.column(node.name).data_type


_LITERALS: tuple[tuple[tuple[type[t.DataType], ...], tuple[Callable[[pa.DataType], bool], ...]], ...] = (
    (t.INTEGER_TYPES, (pa.types.is_integer,)),
    ((t.DecimalType,), (pa.types.is_decimal, pa.types.is_integer)),
    ((t.BooleanType,), (pa.types.is_boolean,)),
    (t.TEXT_TYPES, (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)),
    (
        t.BYTES_TYPES,
        (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view),
    ),
    ((t.DateType,), (pa.types.is_date32,)),
    ((t.TimeType,), (lambda kind: pa.types.is_time(kind) and kind.unit != "ns",)),
)
"""Types of columns, and of literals whose comparison with them means the same to Arrow and to us.

Arrow casts both sides to a common type, which rounds where that is a floating point number.
"""


def _literal(scalar: Any, data_type: t.DataType) -> Any:
    """A literal that can be compared with a column, as a Python value; else None."""
    kind = scalar.type
    if isinstance(data_type, t.FLOAT_TYPES):
        return _float_literal(scalar, data_type)
    if isinstance(data_type, t.TIMESTAMP_TYPES):
        has_zone = isinstance(data_type, t.TimestampLtzType)
        fits = pa.types.is_timestamp(kind) and (kind.tz is not None) == has_zone
        return np.datetime64(scalar.value, kind.unit) if fits else None
    fits = any(isinstance(data_type, types) and any(is_kind(kind) for is_kind in kinds) for types, kinds in _LITERALS)
    return scalar.as_py() if fits else None


def _float_literal(scalar: Any, data_type: t.DataType) -> Any:
    if not (pa.types.is_integer(scalar.type) or pa.types.is_floating(scalar.type)):
        return None
    value = scalar.as_py()
    if isinstance(value, int):
        return value if abs(value) <= (2**24 if isinstance(data_type, t.FloatType) else 2**53) else None
    if isinstance(data_type, t.FloatType) and not math.isnan(value) and float(np.float32(value)) != value:
        return None
    return value
