# SPDX-License-Identifier: Apache-2.0
"""Filters: a small tree of comparisons, and its exact meaning.

``(col("id") >= 200) & col("name").starts_with("a")`` builds the tree. `Predicate.resolve` fits it to a schema: literals
become logical values of their columns, and comparisons with values a column cannot hold are rewritten into ones it can
(``id > 2.5`` of an integer column becomes ``id >= 3``). `Predicate.to_arrow_expression` filters rows by it.

Nulls are SQL's: no comparison with null holds, so rows with a null match only ``is_null()``.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pyarrow as pa

from fluss._lazy import LazyModule
from fluss.errors import InvalidArgumentError
from fluss.metadata.schema import Schema
from fluss.metadata.types import (
    BigIntType,
    BinaryType,
    BooleanType,
    BytesType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    SmallIntType,
    StringType,
    TimestampLtzType,
    TimestampType,
    TimeType,
    TinyIntType,
    arrow_time_unit,
)

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")

LITERALS_MAX = 10_000
"""The most values of one `is_in`."""


class LeafFunction(IntEnum):
    """What a leaf asks of its column. The numbers are those of the protocol."""

    EQUAL = 0
    NOT_EQUAL = 1
    LESS_THAN = 2
    LESS_OR_EQUAL = 3
    GREATER_THAN = 4
    GREATER_OR_EQUAL = 5
    IS_NULL = 6
    IS_NOT_NULL = 7
    STARTS_WITH = 8
    CONTAINS = 9
    ENDS_WITH = 10
    IN = 11
    NOT_IN = 12


class CompoundFunction(IntEnum):
    """How a compound joins its children. The numbers are those of the protocol."""

    AND = 0
    OR = 1


_COMPARISONS = frozenset(LeafFunction(number) for number in range(6))
_TEXT_FUNCTIONS = (LeafFunction.STARTS_WITH, LeafFunction.CONTAINS, LeafFunction.ENDS_WITH)


class Predicate:
    """A filter. Build one from `col`, and join them with ``&`` and ``|``."""

    def and_(self, other: Predicate) -> Predicate:
        """Rows that satisfy both."""
        return _join(CompoundFunction.AND, self, other)

    def or_(self, other: Predicate) -> Predicate:
        """Rows that satisfy either."""
        return _join(CompoundFunction.OR, self, other)

    def __and__(self, other: Predicate) -> Predicate:
        if not isinstance(other, Predicate):
            return NotImplemented
        return self.and_(other)

    def __or__(self, other: Predicate) -> Predicate:
        if not isinstance(other, Predicate):
            return NotImplemented
        return self.or_(other)

    def __bool__(self) -> NoReturn:
        raise TypeError("a Predicate is neither true nor false; join predicates with & and |, not with and / or")

    def columns(self) -> list[str]:
        """The names of the columns it looks at, each once."""
        return list(dict.fromkeys(leaf.column for leaf in self.leaves()))

    def leaves(self) -> Iterable[Leaf]:
        """Every leaf, left to right."""
        raise InvalidArgumentError("a Predicate is built with col(...)")

    def resolve(self, schema: Schema) -> Predicate:
        """The same filter for the columns of a schema, with logical values as literals."""
        raise InvalidArgumentError("a Predicate is built with col(...)")

    def to_arrow_expression(self, schema: Schema) -> pc.Expression:
        """An expression over batches with the Arrow schema of `schema` that keeps exactly the matching rows."""
        return _expression(self.resolve(schema), schema)


def _join(function: CompoundFunction, left: Predicate, right: Predicate) -> Predicate:
    if not isinstance(right, Predicate):
        raise InvalidArgumentError(f"a Predicate can be joined with a Predicate, not with {right!r:.80}")
    children: list[Predicate] = []
    for side in (left, right):
        # Flat lists keep long chains of & from becoming deep trees.
        if isinstance(side, Compound) and side.function is function:
            children += side.children
        else:
            children.append(side)
    return Compound(function, tuple(children))


@dataclass(frozen=True)
class Leaf(Predicate):
    """One question about one column."""

    function: LeafFunction
    column: str
    literals: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if self.function in (LeafFunction.IN, LeafFunction.NOT_IN):
            return
        wanted = 0 if self.function in (LeafFunction.IS_NULL, LeafFunction.IS_NOT_NULL) else 1
        if len(self.literals) != wanted:
            raise InvalidArgumentError(
                f"{self.function.name} of column {self.column!r} takes {wanted} literals, not {len(self.literals)}"
            )

    def leaves(self) -> Iterable[Leaf]:
        return (self,)

    def resolve(self, schema: Schema) -> Predicate:
        data_type = schema.column(self.column).data_type
        function = self.function
        if function in (LeafFunction.IS_NULL, LeafFunction.IS_NOT_NULL):
            return Leaf(function, self.column)
        if function in _TEXT_FUNCTIONS:
            text = self.literals[0]
            if text is None:
                return _nothing(self.column)
            if not isinstance(data_type, (CharType, StringType)) or not isinstance(text, str):
                raise InvalidArgumentError(
                    f"{function.name.lower()} compares a string column with a string, "
                    f"not column {self.column!r} of type {data_type} with {text!r:.80}"
                )
            return Leaf(function, self.column, (text,))
        if function in _COMPARISONS:
            return _resolve_comparison(function, self.column, data_type, self.literals[0])
        return _resolve_list(function, self.column, data_type, self.literals)


@dataclass(frozen=True)
class Compound(Predicate):
    """Several predicates joined by AND or OR."""

    function: CompoundFunction
    children: tuple[Predicate, ...]

    def leaves(self) -> Iterable[Leaf]:
        return (leaf for child in self.children for leaf in child.leaves())

    def resolve(self, schema: Schema) -> Predicate:
        return Compound(self.function, tuple(child.resolve(schema) for child in self.children))


class ColumnRef:
    """A column to build predicates from: ``col("id") >= 200`` is ``col("id").greater_or_equal(200)``.

    Literals are plain Python values. A datetime without a zone filters TIMESTAMP columns, one with a zone filters
    TIMESTAMP_LTZ columns.
    """

    __slots__ = ("_name",)
    __hash__ = None  # type: ignore[assignment]  # == builds a predicate

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(f"col takes the name of a column, not {name!r}")
        self._name = name

    @property
    def name(self) -> str:
        """The name of the column."""
        return self._name

    def _compare(self, function: LeafFunction, value: Any) -> Predicate:
        if isinstance(value, (ColumnRef, Predicate)):
            raise InvalidArgumentError(f"column {self._name!r} can be compared with a value, not with {value!r:.80}")
        return Leaf(function, self._name, (value,))

    def equal(self, value: Any) -> Predicate:
        """Rows where the column equals `value`."""
        return self._compare(LeafFunction.EQUAL, value)

    def not_equal(self, value: Any) -> Predicate:
        """Rows where the column is not null and differs from `value`."""
        return self._compare(LeafFunction.NOT_EQUAL, value)

    def less_than(self, value: Any) -> Predicate:
        """Rows where the column is less than `value`."""
        return self._compare(LeafFunction.LESS_THAN, value)

    def less_or_equal(self, value: Any) -> Predicate:
        """Rows where the column is at most `value`."""
        return self._compare(LeafFunction.LESS_OR_EQUAL, value)

    def greater_than(self, value: Any) -> Predicate:
        """Rows where the column is greater than `value`."""
        return self._compare(LeafFunction.GREATER_THAN, value)

    def greater_or_equal(self, value: Any) -> Predicate:
        """Rows where the column is at least `value`."""
        return self._compare(LeafFunction.GREATER_OR_EQUAL, value)

    __eq__ = equal  # type: ignore[assignment]
    __ne__ = not_equal  # type: ignore[assignment]
    __lt__ = less_than
    __le__ = less_or_equal
    __gt__ = greater_than
    __ge__ = greater_or_equal

    def is_null(self) -> Predicate:
        """Rows where the column is null."""
        return Leaf(LeafFunction.IS_NULL, self._name)

    def is_not_null(self) -> Predicate:
        """Rows where the column is not null."""
        return Leaf(LeafFunction.IS_NOT_NULL, self._name)

    def starts_with(self, prefix: str) -> Predicate:
        """Rows where the string column starts with `prefix`."""
        return self._compare(LeafFunction.STARTS_WITH, prefix)

    def ends_with(self, suffix: str) -> Predicate:
        """Rows where the string column ends with `suffix`."""
        return self._compare(LeafFunction.ENDS_WITH, suffix)

    def contains(self, infix: str) -> Predicate:
        """Rows where the string column contains `infix`."""
        return self._compare(LeafFunction.CONTAINS, infix)

    def is_in(self, values: Iterable[Any]) -> Predicate:
        """Rows where the column equals one of `values`."""
        return Leaf(LeafFunction.IN, self._name, self._list("is_in", values))

    def not_in(self, values: Iterable[Any]) -> Predicate:
        """Rows where the column is not null and equals none of `values`."""
        return Leaf(LeafFunction.NOT_IN, self._name, self._list("not_in", values))

    def _list(self, what: str, values: Iterable[Any]) -> tuple[Any, ...]:
        if isinstance(values, (str, bytes)):
            raise InvalidArgumentError(f"{what} of column {self._name!r} takes a list of values, not {values!r:.80}")
        literals = tuple(values)
        if len(literals) > LITERALS_MAX:
            raise InvalidArgumentError(
                f"{what} of column {self._name!r} takes at most {LITERALS_MAX} values, not {len(literals)}"
            )
        return literals

    def __bool__(self) -> NoReturn:
        raise TypeError(f"column {self._name!r} is neither true nor false; compare it with a value first")

    def __repr__(self) -> str:
        return f"ColumnRef({self._name})"


def col(name: str) -> ColumnRef:
    """A column by its name, to build a filter from."""
    return ColumnRef(name)


# -- fitting literals to columns -----------------------------------------------------------------------------------


def _nothing(column: str) -> Leaf:
    """Matches no row."""
    return Leaf(LeafFunction.IN, column, ())


def _bad_literal(column: str, data_type: DataType, literal: object, expected: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"column {column!r} of type {data_type} is compared with {expected}, not {literal!r:.80}"
    )


_INT_BITS: dict[type[DataType], int] = {TinyIntType: 8, SmallIntType: 16, IntType: 32, BigIntType: 64}
_EXPONENT_MAX = 100
_UNITS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True)
class _Grid:
    """The values of a column as whole numbers from `low` to `high`, and the way back to logical values."""

    position: Fraction
    """Where the literal lies, maybe between two numbers."""
    low: int
    high: int
    value: Callable[[int], Any]


def _grid(column: str, data_type: DataType, literal: Any) -> _Grid | None:
    """Place a literal among the values of a column that holds exact values; None for other types."""
    if type(data_type) in _INT_BITS:
        limit = 1 << (_INT_BITS[type(data_type)] - 1)
        return _Grid(_number(column, data_type, literal), -limit, limit - 1, int)
    if isinstance(data_type, DecimalType):
        limit = 10**data_type.precision
        position = _number(column, data_type, literal) * 10**data_type.scale
        scale = data_type.scale

        def to_decimal(unscaled: int) -> decimal.Decimal:
            digits = tuple(int(digit) for digit in str(abs(unscaled)))
            return decimal.Decimal((1 if unscaled < 0 else 0, digits, -scale))

        return _Grid(position, -limit + 1, limit - 1, to_decimal)
    if isinstance(data_type, DateType):
        if not isinstance(literal, datetime.date) or isinstance(literal, datetime.datetime):
            raise _bad_literal(column, data_type, literal, "a datetime.date")
        days = (literal - datetime.date(1970, 1, 1)).days
        return _Grid(Fraction(days), -(2**31), 2**31 - 1, int)
    if isinstance(data_type, TimeType):
        if not isinstance(literal, datetime.time) or literal.tzinfo is not None:
            raise _bad_literal(column, data_type, literal, "a datetime.time without a zone")
        us = ((literal.hour * 60 + literal.minute) * 60 + literal.second) * 1_000_000 + literal.microsecond
        step_ms = 1_000 if data_type.precision == 0 else 1
        return _Grid(Fraction(us, 1_000 * step_ms), 0, 86_400_000 // step_ms - 1, lambda step: step * step_ms)
    if isinstance(data_type, (TimestampType, TimestampLtzType)):
        ns = _datetime_ns(column, data_type, literal)
        step_ns = 1_000_000_000 // _UNITS_PER_SECOND[arrow_time_unit(data_type.precision)]
        return _Grid(Fraction(ns, step_ns), -(2**63), 2**63 - 1, lambda step: step * step_ns)
    return None


def _number(column: str, data_type: DataType, literal: object) -> Fraction:
    if isinstance(literal, bool) or not isinstance(literal, (int, float, decimal.Decimal, np.integer, np.floating)):
        raise _bad_literal(column, data_type, literal, "a number")
    if isinstance(literal, np.integer):
        return Fraction(int(literal))
    if isinstance(literal, (float, np.floating)):
        # 0.1 means one tenth, not the double next to it.
        literal = decimal.Decimal(repr(float(literal)))
    if isinstance(literal, decimal.Decimal) and literal and abs(literal.adjusted()) > _EXPONENT_MAX:
        # Beyond every column, or closer to zero than any: the exact digits do not matter, but would cost memory.
        literal = decimal.Decimal(f"1E{_EXPONENT_MAX if literal.adjusted() > 0 else -_EXPONENT_MAX}").copy_sign(literal)
    return Fraction(literal)


def _datetime_ns(column: str, data_type: TimestampType | TimestampLtzType, literal: object) -> int:
    with_zone = isinstance(data_type, TimestampLtzType)
    if not isinstance(literal, datetime.datetime) or (literal.tzinfo is not None) != with_zone:
        expected = f"a datetime.datetime {'with' if with_zone else 'without'} a zone"
        raise _bad_literal(column, data_type, literal, expected)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc if with_zone else None)
    span = literal - epoch
    us = (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds
    # pandas timestamps carry nanoseconds beyond the microseconds of datetime.
    return us * 1_000 + int(getattr(literal, "nanosecond", 0))


def _is_special(literal: object) -> bool:
    """NaN or an infinity: no place among exact numbers."""
    if isinstance(literal, decimal.Decimal):
        return not literal.is_finite()
    return isinstance(literal, (float, np.floating)) and not math.isfinite(literal)


def _resolve_comparison(function: LeafFunction, column: str, data_type: DataType, literal: Any) -> Leaf:
    if literal is None:
        return _nothing(column)
    everything = Leaf(LeafFunction.IS_NOT_NULL, column)
    exact_number = type(data_type) in _INT_BITS or isinstance(data_type, DecimalType)
    if exact_number and _is_special(literal):
        value = float(literal)
        holds = {
            LeafFunction.EQUAL: False,
            LeafFunction.NOT_EQUAL: True,
            LeafFunction.LESS_THAN: value > 0,
            LeafFunction.LESS_OR_EQUAL: value > 0,
            LeafFunction.GREATER_THAN: value < 0,
            LeafFunction.GREATER_OR_EQUAL: value < 0,
        }[function]
        return everything if holds else _nothing(column)
    grid = _grid(column, data_type, literal)
    if grid is None:
        return Leaf(function, column, (_plain_literal(column, data_type, literal),))
    low, high = math.floor(grid.position), math.ceil(grid.position)
    if function in (LeafFunction.EQUAL, LeafFunction.NOT_EQUAL):
        if low != high or not grid.low <= low <= grid.high:
            return everything if function is LeafFunction.NOT_EQUAL else _nothing(column)
        return Leaf(function, column, (grid.value(low),))
    if low != high:
        # Between two values, "less" means "at most the lower one".
        upward = function in (LeafFunction.GREATER_THAN, LeafFunction.GREATER_OR_EQUAL)
        function = LeafFunction.GREATER_OR_EQUAL if upward else LeafFunction.LESS_OR_EQUAL
        low = high if upward else low
    if grid.low <= low <= grid.high:
        return Leaf(function, column, (grid.value(low),))
    above = low > grid.high
    less = function in (LeafFunction.LESS_THAN, LeafFunction.LESS_OR_EQUAL)
    return everything if above == less else _nothing(column)


def _plain_literal(column: str, data_type: DataType, literal: Any) -> Any:
    """The logical value of a literal for the types that need no rounding."""
    if isinstance(data_type, BooleanType):
        if not isinstance(literal, (bool, np.bool_)):
            raise _bad_literal(column, data_type, literal, "true or false")
        return bool(literal)
    if isinstance(data_type, (FloatType, DoubleType)):
        if isinstance(literal, bool) or not isinstance(literal, (int, float, decimal.Decimal, np.integer, np.floating)):
            raise _bad_literal(column, data_type, literal, "a number")
        try:
            number = float(literal)
        except OverflowError:
            number = math.inf if literal > 0 else -math.inf
        if isinstance(data_type, DoubleType):
            return number
        # A column of 32-bit floats holds 0.1 as its nearest float; that is what 0.1 means here.
        with np.errstate(over="ignore"):
            return float(np.float32(number))
    if isinstance(data_type, (CharType, StringType)):
        if not isinstance(literal, str):
            raise _bad_literal(column, data_type, literal, "a string")
        return literal
    if isinstance(data_type, (BinaryType, BytesType)):
        if not isinstance(literal, (bytes, bytearray, memoryview)):
            raise _bad_literal(column, data_type, literal, "bytes")
        return bytes(literal)
    raise InvalidArgumentError(f"column {column!r} of type {data_type} can be filtered by is_null and is_not_null only")


def _resolve_list(function: LeafFunction, column: str, data_type: DataType, literals: Sequence[Any]) -> Leaf:
    values: dict[Any, None] = {}
    for literal in literals:
        if literal is None:
            if function is LeafFunction.NOT_IN:
                return _nothing(column)  # whether a value differs from null is unknown
            continue
        leaf = _resolve_comparison(LeafFunction.EQUAL, column, data_type, literal)
        values.update(dict.fromkeys(leaf.literals))
    if function is LeafFunction.NOT_IN and not values:
        return Leaf(LeafFunction.IS_NOT_NULL, column)
    return Leaf(function, column, tuple(values))


# -- Arrow -----------------------------------------------------------------------------------------------------------

_ARROW_COMPARISONS: dict[LeafFunction, Callable[[Any, Any], Any]] = {
    LeafFunction.EQUAL: lambda field, value: field == value,
    LeafFunction.NOT_EQUAL: lambda field, value: field != value,
    LeafFunction.LESS_THAN: lambda field, value: field < value,
    LeafFunction.LESS_OR_EQUAL: lambda field, value: field <= value,
    LeafFunction.GREATER_THAN: lambda field, value: field > value,
    LeafFunction.GREATER_OR_EQUAL: lambda field, value: field >= value,
    LeafFunction.STARTS_WITH: lambda field, text: pc.starts_with(field, text),
    LeafFunction.ENDS_WITH: lambda field, text: pc.ends_with(field, text),
    LeafFunction.CONTAINS: lambda field, text: pc.match_substring(field, text),
}


def _balanced(join: Callable[[Any, Any], Any], items: Sequence[Any]) -> Any:
    """Join many expressions as a balanced tree: a chain of thousands would be too deep to evaluate."""
    if len(items) == 1:
        return items[0]
    middle = len(items) // 2
    return join(_balanced(join, items[:middle]), _balanced(join, items[middle:]))


def _expression(predicate: Predicate, schema: Schema) -> pc.Expression:
    if isinstance(predicate, Compound):
        children = [_expression(child, schema) for child in predicate.children]
        join = (lambda a, b: a & b) if predicate.function is CompoundFunction.AND else (lambda a, b: a | b)
        return _balanced(join, children)
    assert isinstance(predicate, Leaf)
    function, field = predicate.function, pc.field(predicate.column)
    if function is LeafFunction.IS_NULL:
        return field.is_null()
    if function is LeafFunction.IS_NOT_NULL:
        return field.is_valid()
    data_type = schema.column(predicate.column).data_type
    if isinstance(data_type, BinaryType):
        field = field.cast(pa.binary())  # literals may be shorter or longer
    if function in _TEXT_FUNCTIONS:
        return _ARROW_COMPARISONS[function](field, predicate.literals[0])
    if function in _COMPARISONS:
        return _ARROW_COMPARISONS[function](field, pc.scalar(_arrow_array((predicate.literals[0],), data_type)[0]))
    if isinstance(data_type, (FloatType, DoubleType)):
        # Compared one by one: a lookup by hash would tell the two zeros apart and match NaN.
        equal = [field == value for value in predicate.literals]
        found = _balanced(lambda a, b: a | b, equal) if equal else pc.scalar(False)
    else:
        found = field.isin(_arrow_array(predicate.literals, data_type))
    return found if function is LeafFunction.IN else field.is_valid() & ~found


def _arrow_array(values: Sequence[Any], data_type: DataType) -> pa.Array:
    """Logical values as an Arrow array to compare a column with."""
    if isinstance(data_type, BinaryType):
        return pa.array(values, pa.binary())
    arrow_type = data_type.to_arrow()
    if isinstance(data_type, TimeType):
        values = [value * _UNITS_PER_SECOND[arrow_type.unit] // 1_000 for value in values]
    elif isinstance(data_type, (TimestampType, TimestampLtzType)):
        values = [value * _UNITS_PER_SECOND[arrow_type.unit] // 1_000_000_000 for value in values]
    return pa.array(values, arrow_type)
