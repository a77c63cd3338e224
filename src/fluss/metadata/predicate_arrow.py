# SPDX-License-Identifier: Apache-2.0
"""Predicates as Arrow expressions, which filter whole batches at once.

Floating point numbers are ordered as Spark and DuckDB order them: NaN equals itself and is greater than every other
number, and the two zeros are equal. Arrow's own comparisons never hold for NaN, so they are completed here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss._arrow_buffers import typed_array
from fluss._lazy import LazyModule
from fluss.metadata.comparison import FLOAT_TYPES, TEXT_FUNCTIONS, UNITS_PER_SECOND, LeafFunction
from fluss.metadata.types import BinaryType, DataType, TimestampLtzType, TimestampType, TimeType

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")

_COMPARISONS: dict[LeafFunction, Callable[[Any, Any], Any]] = {
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


def constant(value: bool) -> pc.Expression:
    """An expression that holds for every row, or for none."""
    return pc.scalar(value)


def balanced(join: Callable[[Any, Any], Any], items: Sequence[Any]) -> Any:
    """Join many expressions as a balanced tree: a chain of thousands would be too deep to evaluate."""
    if len(items) == 1:
        return items[0]
    middle = len(items) // 2
    return join(balanced(join, items[:middle]), balanced(join, items[middle:]))


def leaf_expression(function: LeafFunction, column: str, literals: Sequence[Any], data_type: DataType) -> pc.Expression:
    """An expression that holds exactly for the rows in which a leaf holds; `literals` are logical values."""
    field = pc.field(column)
    if function is LeafFunction.IS_NULL:
        return field.is_null()
    if function is LeafFunction.IS_NOT_NULL:
        return field.is_valid()
    if isinstance(data_type, BinaryType):
        field = field.cast(pa.binary())  # literals may be shorter or longer
    if function in TEXT_FUNCTIONS:
        return _COMPARISONS[function](field, literals[0])
    if function in _COMPARISONS:
        value = literals[0]
        if not isinstance(data_type, FLOAT_TYPES):
            return _COMPARISONS[function](field, pc.scalar(arrow_array((value,), data_type)[0]))
        if math.isnan(value):
            return _NAN_COMPARISONS[function](field)
        found = _COMPARISONS[function](field, pc.scalar(typed_array((value,), data_type.to_arrow())[0]))
        above = function in (LeafFunction.GREATER_THAN, LeafFunction.GREATER_OR_EQUAL)
        return found | pc.is_nan(field) if above else found
    if isinstance(data_type, FLOAT_TYPES) and any(value == 0 for value in literals):
        # The set is looked up by hash, which distinguishes the two zeros.
        literals = [*(value for value in literals if value != 0), 0.0, -0.0]
    found = field.isin(arrow_array(literals, data_type))
    return found if function is LeafFunction.IN else field.is_valid() & ~found


def like_expression(column: str, pattern: str, escape: str | None) -> pc.Expression:
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


def arrow_array(values: Sequence[Any], data_type: DataType) -> pa.Array:
    """Logical values as an Arrow array to compare a column with."""
    if isinstance(data_type, BinaryType):
        return typed_array(values, pa.binary())
    arrow_type = data_type.to_arrow()
    if isinstance(data_type, TimeType):
        values = [v if v is None else v * UNITS_PER_SECOND[arrow_type.unit] // 1_000 for v in values]
    elif isinstance(data_type, (TimestampType, TimestampLtzType)):
        values = [v if v is None else v * UNITS_PER_SECOND[arrow_type.unit] // 1_000_000_000 for v in values]
    return typed_array(values, arrow_type)
