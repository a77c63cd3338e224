# SPDX-License-Identifier: Apache-2.0
"""Filters: a small tree of comparisons, and its exact meaning.

``(col("id") >= 200) & ~col("name").like("a%z")`` builds the tree, and `fluss.metadata.where` reads one from text.
`Predicate.resolve` fits it to a schema: literals become logical values of their columns, comparisons with values that a
column cannot hold are rewritten into ones it can (``id > 2.5`` of an integer column becomes ``id >= 3``), and negations
are moved down to the leaves. `Predicate.to_arrow_expression` filters rows by it.

Nulls are SQL's: no comparison with null holds, nor does its negation, so rows with a null match only ``is_null()``.
NaN is that of Spark and DuckDB: it equals itself, and is greater than every other number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from fluss._arrow_buffers import typed_array
from fluss._lazy import LazyModule
from fluss.errors import InvalidArgumentError
from fluss.metadata import types as t
from fluss.metadata.comparison import (
    COMPARISONS,
    NULL_TESTS,
    OPPOSITES,
    TEXT_FUNCTIONS,
    UNITS_PER_SECOND,
    LeafFunction,
    check_text,
    fit_comparison,
    fit_list,
    fit_text,
)
from fluss.metadata.schema import Schema

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")

LITERALS_MAX = 10_000
"""The most values of one `is_in`."""


class CompoundFunction(IntEnum):
    """How a compound joins its children. The numbers are those of the protocol."""

    AND = 0
    OR = 1


class Predicate:
    """A filter. Build one from `col`, join them with ``&`` and ``|``, and negate them with ``~``."""

    def and_(self, other: Predicate) -> Predicate:
        """Rows that satisfy both."""
        return joined(CompoundFunction.AND, (self, other))

    def or_(self, other: Predicate) -> Predicate:
        """Rows that satisfy either."""
        return joined(CompoundFunction.OR, (self, other))

    def not_(self) -> Predicate:
        """Rows that do not satisfy it. Where it is unknown because of a null, so is its negation."""
        return self.child if isinstance(self, Not) else Not(self)

    def __invert__(self) -> Predicate:
        return self.not_()

    def __and__(self, other: Predicate) -> Predicate:
        if not isinstance(other, Predicate):
            return NotImplemented
        return self.and_(other)

    def __or__(self, other: Predicate) -> Predicate:
        if not isinstance(other, Predicate):
            return NotImplemented
        return self.or_(other)

    def __bool__(self) -> NoReturn:
        raise TypeError("a Predicate is neither true nor false; join predicates with &, | and ~, not with and, or, not")

    def columns(self) -> list[str]:
        """The names of the columns it looks at, each once."""
        return list(dict.fromkeys(leaf.column for leaf in self.leaves()))

    def leaves(self) -> Iterable[Leaf | Like]:
        """Every leaf, left to right."""
        raise InvalidArgumentError("a Predicate is built with col(...)")

    def resolve(self, schema: Schema) -> Predicate:
        """The same filter for the columns of a schema, with logical values as literals."""
        raise InvalidArgumentError("a Predicate is built with col(...)")

    def negate(self) -> Predicate:
        """The opposite, with negations moved down to the leaves."""
        raise InvalidArgumentError("a Predicate is built with col(...)")

    def to_arrow_expression(self, schema: Schema) -> pc.Expression:
        """An expression over batches with the Arrow schema of `schema` that keeps exactly the matching rows."""
        return resolved_expression(self.resolve(schema), schema)


def joined(function: CompoundFunction, parts: Sequence[Predicate]) -> Predicate:
    """Join predicates by AND or OR."""
    if len(parts) == 1:
        return parts[0]
    children: list[Predicate] = []
    for part in parts:
        if not isinstance(part, Predicate):
            raise InvalidArgumentError(f"a Predicate can be joined with a Predicate, not with {part!r:.80}")
        # Flat lists keep long chains of & from becoming deep trees.
        if isinstance(part, Compound) and part.function is function:
            children += part.children
        else:
            children.append(part)
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

    def leaves(self) -> Iterable[Leaf | Like]:
        return (self,)

    def negate(self) -> Predicate:
        if self.function in TEXT_FUNCTIONS:
            return Not(self)
        return Leaf(OPPOSITES[self.function], self.column, self.literals)

    def resolve(self, schema: Schema) -> Predicate:
        data_type = schema.column(self.column).data_type
        function = self.function
        if function in NULL_TESTS:
            return Leaf(function, self.column)
        if function in TEXT_FUNCTIONS:
            function, literals = fit_text(function, self.column, data_type, self.literals[0])
        elif function in COMPARISONS:
            function, literals = fit_comparison(function, self.column, data_type, self.literals[0])
        else:
            function, literals = fit_list(function, self.column, data_type, self.literals)
        return Leaf(function, self.column, literals)


@dataclass(frozen=True)
class Like(Predicate):
    """Whether the text of a column has the form of a pattern: ``%`` stands for any text, ``_`` for one character."""

    column: str
    pattern: str | None
    escape: str | None = None
    """A character that makes the next one of the pattern an ordinary one. None: there is no such character."""

    def __post_init__(self) -> None:
        if self.escape is not None and (not isinstance(self.escape, str) or len(self.escape) != 1):
            raise InvalidArgumentError(f"the escape of like is one character, not {self.escape!r:.80}")
        if self.escape is not None and isinstance(self.pattern, str):
            rest = self.pattern.replace(self.escape * 2, "")
            if rest.endswith(self.escape):
                raise InvalidArgumentError(f"the pattern {self.pattern!r:.80} ends with its escape character")

    def leaves(self) -> Iterable[Leaf | Like]:
        return (self,)

    def negate(self) -> Predicate:
        return Not(self)

    def resolve(self, schema: Schema) -> Predicate:
        """A simpler leaf where the pattern has one of its forms: those can be judged by the statistics of batches."""
        if self.pattern is None:
            return Leaf(LeafFunction.IN, self.column)
        check_text("like", self.column, schema.column(self.column).data_type, self.pattern)
        parts = split_pattern(self.pattern, self.escape)
        plain = [text for wildcard, text in parts if not wildcard]
        shape = "".join(text if wildcard else "x" for wildcard, text in parts)
        if shape == "%":
            return Leaf(LeafFunction.IS_NOT_NULL, self.column)
        simple = {
            "": LeafFunction.EQUAL,
            "x": LeafFunction.EQUAL,
            "x%": LeafFunction.STARTS_WITH,
            "%x": LeafFunction.ENDS_WITH,
            "%x%": LeafFunction.CONTAINS,
        }
        return Leaf(simple[shape], self.column, ("".join(plain),)) if shape in simple else self


@dataclass(frozen=True)
class Compound(Predicate):
    """Several predicates joined by AND or OR. Without children, AND holds for every row and OR for none."""

    function: CompoundFunction
    children: tuple[Predicate, ...]

    def leaves(self) -> Iterable[Leaf | Like]:
        return (leaf for child in self.children for leaf in child.leaves())

    def negate(self) -> Predicate:
        opposite = CompoundFunction.OR if self.function is CompoundFunction.AND else CompoundFunction.AND
        return Compound(opposite, tuple(child.negate() for child in self.children))

    def resolve(self, schema: Schema) -> Predicate:
        return Compound(self.function, tuple(child.resolve(schema) for child in self.children))


@dataclass(frozen=True)
class Not(Predicate):
    """The negation of a predicate. `Predicate.resolve` leaves it only around text functions and LIKE."""

    child: Predicate

    def leaves(self) -> Iterable[Leaf | Like]:
        return self.child.leaves()

    def negate(self) -> Predicate:
        return self.child

    def resolve(self, schema: Schema) -> Predicate:
        opposite = self.child.negate()
        if not isinstance(opposite, Not):
            return opposite.resolve(schema)
        child = opposite.child.resolve(schema)
        if isinstance(child, Leaf) and child == Leaf(LeafFunction.IN, child.column):
            return child  # compared with null: unknown, and so is its negation
        if child == Leaf(LeafFunction.IS_NOT_NULL, self.columns()[0]):
            return Leaf(LeafFunction.IN, self.columns()[0])  # `not like '%'`: false or unknown
        if isinstance(child, Leaf) and child.function in OPPOSITES:
            return child.negate()
        return Not(child)


EVERYTHING = Compound(CompoundFunction.AND, ())
"""Holds for every row."""
NOTHING = Compound(CompoundFunction.OR, ())
"""Holds for no row."""


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

    def between(self, low: Any, high: Any) -> Predicate:
        """Rows where the column is at least `low` and at most `high`.

        Example:
            wanted = fluss.col("price").between(10, 20)
        """
        return self.greater_or_equal(low) & self.less_or_equal(high)

    def like(self, pattern: str, escape: str | None = None) -> Predicate:
        """Rows where the text of the column has the form of a pattern: ``%`` is any text, ``_`` any one character.

        Example:
            wanted = fluss.col("name").like("A%n") | fluss.col("code").like("50!%", escape="!")
        """
        return Like(self._name, pattern, escape)

    def is_in(self, values: Iterable[Any]) -> Predicate:
        """Rows where the column equals one of `values`."""
        return Leaf(LeafFunction.IN, self._name, self._list("is_in", values))

    isin = is_in
    """The same under the name that pandas and PySpark give it."""

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


# -- Arrow expressions --------------------------------------------------------------------------------------------
#
# Floating point numbers are ordered as Spark and DuckDB order them: NaN equals itself and is greater than every other
# number, and the two zeros are equal. Arrow's own comparisons never hold for NaN, so they are completed here.

_EXPRESSIONS: dict[LeafFunction, Callable[[Any, Any], Any]] = {
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

_NAN_COMPARISONS: dict[LeafFunction, Callable[[Any], Any]] = {
    LeafFunction.EQUAL: lambda field: pc.is_nan(field),
    LeafFunction.NOT_EQUAL: lambda field: ~pc.is_nan(field),
    LeafFunction.LESS_THAN: lambda field: ~pc.is_nan(field),
    LeafFunction.LESS_OR_EQUAL: lambda field: field.is_valid(),
    LeafFunction.GREATER_THAN: lambda field: pc.scalar(False),
    LeafFunction.GREATER_OR_EQUAL: lambda field: pc.is_nan(field),
}
"""Comparisons of a floating point column with the literal NaN."""


def resolved_expression(predicate: Predicate, schema: Schema) -> pc.Expression:
    """The Arrow expression of a resolved predicate."""
    if isinstance(predicate, Compound):
        every = predicate.function is CompoundFunction.AND
        if not predicate.children:
            return pc.scalar(every)
        children = [resolved_expression(child, schema) for child in predicate.children]
        return _balanced((lambda a, b: a & b) if every else (lambda a, b: a | b), children)
    if isinstance(predicate, Not):
        return ~resolved_expression(predicate.child, schema)
    if isinstance(predicate, Like):
        assert predicate.pattern is not None
        return _like_expression(predicate.column, predicate.pattern, predicate.escape)
    assert isinstance(predicate, Leaf)
    data_type = schema.column(predicate.column).data_type
    return _leaf_expression(predicate.function, predicate.column, predicate.literals, data_type)


def _balanced(join: Callable[[Any, Any], Any], items: Sequence[Any]) -> Any:
    """Join many expressions as a balanced tree: a chain of thousands would be too deep to evaluate."""
    if len(items) == 1:
        return items[0]
    middle = len(items) // 2
    return join(_balanced(join, items[:middle]), _balanced(join, items[middle:]))


def _leaf_expression(
    function: LeafFunction, column: str, literals: Sequence[Any], data_type: t.DataType
) -> pc.Expression:
    """An expression that holds exactly for the rows in which a leaf holds; `literals` are logical values."""
    field = pc.field(column)
    if function is LeafFunction.IS_NULL:
        return field.is_null()
    if function is LeafFunction.IS_NOT_NULL:
        return field.is_valid()
    if isinstance(data_type, t.BinaryType):
        field = field.cast(pa.binary())  # literals may be shorter or longer
    if function in TEXT_FUNCTIONS:
        return _EXPRESSIONS[function](field, literals[0])
    if function in _EXPRESSIONS:
        value = literals[0]
        if not isinstance(data_type, t.FLOAT_TYPES):
            return _EXPRESSIONS[function](field, pc.scalar(arrow_array((value,), data_type)[0]))
        if math.isnan(value):
            return _NAN_COMPARISONS[function](field)
        found = _EXPRESSIONS[function](field, pc.scalar(typed_array((value,), data_type.to_arrow())[0]))
        above = function in (LeafFunction.GREATER_THAN, LeafFunction.GREATER_OR_EQUAL)
        return found | pc.is_nan(field) if above else found
    if isinstance(data_type, t.FLOAT_TYPES) and any(value == 0 for value in literals):
        # The set is looked up by hash, which distinguishes the two zeros.
        literals = [*(value for value in literals if value != 0), 0.0, -0.0]
    found = field.isin(arrow_array(literals, data_type))
    return found if function is LeafFunction.IN else field.is_valid() & ~found


def _like_expression(column: str, pattern: str, escape: str | None) -> pc.Expression:
    """An expression that holds for the rows whose text has the form of a LIKE pattern."""
    parts = [
        ".*" if wildcard and text == "%" else "." if wildcard else re.escape(text)
        for wildcard, text in split_pattern(pattern, escape)
    ]
    return pc.match_substring_regex(pc.field(column), "(?s)^" + "".join(parts) + "$")


def split_pattern(pattern: str, escape: str | None) -> list[tuple[bool, str]]:
    """The parts of a LIKE pattern: ``(True, "%")``, ``(True, "_")`` and runs of plain text as ``(False, text)``."""
    parts: list[tuple[bool, str]] = []
    plain: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            plain.append(next(characters, character))
        elif character in "%_":
            if plain:
                parts.append((False, "".join(plain)))
                plain = []
            if character == "_" or not parts or parts[-1] != (True, "%"):
                parts.append((True, character))
        else:
            plain.append(character)
    if plain:
        parts.append((False, "".join(plain)))
    return parts


def arrow_array(values: Sequence[Any], data_type: t.DataType) -> pa.Array:
    """Logical values as an Arrow array to compare a column with."""
    if isinstance(data_type, t.BinaryType):
        return typed_array(values, pa.binary())
    arrow_type = data_type.to_arrow()
    if isinstance(data_type, t.TimeType):
        values = [v if v is None else v * UNITS_PER_SECOND[arrow_type.unit] // 1_000 for v in values]
    elif isinstance(data_type, t.TIMESTAMP_TYPES):
        values = [v if v is None else v * UNITS_PER_SECOND[arrow_type.unit] // 1_000_000_000 for v in values]
    return typed_array(values, arrow_type)
