# SPDX-License-Identifier: Apache-2.0
"""What of a filter can be used before rows are read: by the server, to choose partitions, and to look up keys.

Each function here gives something *weaker* than the filter: it may let rows through that do not match, and never holds
back one that does. The filter itself is applied to the rows that were read.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from fluss.metadata import types as t
from fluss.metadata.comparison import LeafFunction, is_nan
from fluss.metadata.partition import parse_partition_value, split_partition_name
from fluss.metadata.predicate import (
    Compound,
    CompoundFunction,
    Leaf,
    Like,
    Predicate,
    arrow_array,
    resolved_expression,
    split_pattern,
)
from fluss.metadata.schema import Schema

_DEPTH_MAX = 30
"""Deeper parts of a filter are not sent: servers refuse trees of more than 32 levels."""
_LEAVES_MAX = 2_000
_POSITION = "position of the partition"

_Judge = Callable[[Predicate], "Predicate | None"]
"""Gives something weaker for a leaf (maybe negated), or None for "may be anything"."""


def server_filter(predicate: Predicate, schema: Schema) -> Predicate | None:
    """What of a filter a server can skip batches by, resolved; None if nothing.

    Servers know neither NOT nor LIKE, and compare with the least and the greatest value of a column. Where these leave
    NaN out, a batch with NaN would be skipped although NaN is greater than everything: comparisons of floating point
    columns that NaN satisfies are not sent.
    """
    found = _weaken(predicate.resolve(schema), lambda leaf: _for_server(leaf, schema))
    if found is None or sum(1 for _ in found.leaves()) > _LEAVES_MAX:
        return None
    return found


def _weaken(predicate: Predicate, judge: _Judge, depth: int = 1) -> Predicate | None:
    """Replace the leaves of a resolved predicate by weaker ones; None if what is left says nothing."""
    if not isinstance(predicate, Compound):
        return judge(predicate)
    if depth >= _DEPTH_MAX:
        return None
    found = [_weaken(child, judge, depth + 1) for child in predicate.children]
    known = [child for child in found if child is not None]
    if not known or (predicate.function is CompoundFunction.OR and len(known) < len(found)):
        return None
    return known[0] if len(known) == 1 else Compound(predicate.function, tuple(known))


def _for_server(leaf: Predicate, schema: Schema) -> Predicate | None:
    if isinstance(leaf, Like):
        assert leaf.pattern is not None
        wildcard, text = split_pattern(leaf.pattern, leaf.escape)[0]
        return None if wildcard else Leaf(LeafFunction.STARTS_WITH, leaf.column, (text,))
    if not isinstance(leaf, Leaf):
        return None
    if not isinstance(schema.column(leaf.column).data_type, t.FLOAT_TYPES):
        return leaf
    function, literals = leaf.function, leaf.literals
    if not literals or function is LeafFunction.IS_NULL:
        return leaf
    if any(is_nan(value) for value in literals):
        return None
    # Some servers order the two zeros: both are meant.
    if function in (LeafFunction.EQUAL, LeafFunction.IN):
        signed = [zero for value in literals for zero in ((0.0, -0.0) if value == 0 else (value,))]
        return leaf if len(signed) == len(literals) else Leaf(LeafFunction.IN, leaf.column, tuple(signed))
    if function in (LeafFunction.LESS_THAN, LeafFunction.LESS_OR_EQUAL):
        return Leaf(function, leaf.column, (0.0,)) if literals[0] == 0 else leaf
    return None


def key_values(
    predicate: Predicate, schema: Schema, columns: Sequence[str], count_max: int
) -> list[tuple[Any, ...]] | None:
    """The values that `columns` can have in matching rows, as logical values, if there are few.

    Returns:
        Every combination that can occur, or None if some column may have any value, or if there are more than
        `count_max` combinations. ``id = 3 and kind in ('a', 'b')`` gives ``[(3, 'a'), (3, 'b')]``.
    """
    if any(isinstance(schema.column(name).data_type, t.FLOAT_TYPES) for name in columns):
        return None  # equal numbers with different bytes: zeros, NaN
    sets = _value_sets(predicate.resolve(schema), frozenset(columns), 1)
    if any(name not in sets for name in columns):
        return None
    if math.prod(len(sets[name]) for name in columns) > count_max:
        return None
    return list(itertools.product(*(sets[name] for name in columns)))


def _value_sets(predicate: Predicate, columns: frozenset[str], depth: int) -> dict[str, dict[Any, None]]:
    """For some columns, the values they can have in matching rows."""
    if isinstance(predicate, Leaf):
        if predicate.column in columns and predicate.function in (LeafFunction.EQUAL, LeafFunction.IN):
            return {predicate.column: dict.fromkeys(predicate.literals)}
        return {}
    if not isinstance(predicate, Compound) or depth >= _DEPTH_MAX:
        return {}
    found: dict[str, dict[Any, None]] = {}
    for number, child in enumerate(predicate.children):
        sets = _value_sets(child, columns, depth + 1)
        if predicate.function is CompoundFunction.AND:
            for name, values in sets.items():
                known = found.get(name)
                found[name] = values if known is None else {value: None for value in known if value in values}
        elif number == 0:
            found = sets
        else:
            found = {name: {**values, **sets[name]} for name, values in found.items() if name in sets}
    return found


def matching_partitions(
    predicate: Predicate, schema: Schema, partition_keys: Sequence[str], names: Sequence[str]
) -> list[bool]:
    """For each partition name, whether the partition can hold a matching row."""

    def on_keys(leaf: Predicate) -> Predicate | None:
        return leaf if set(leaf.columns()) <= set(partition_keys) else None

    known = _weaken(predicate.resolve(schema), on_keys)
    if known is None or not names:
        return [True] * len(names)
    types = {key: schema.column(key).data_type for key in partition_keys}
    values: dict[str, list[Any]] = {key: [] for key in partition_keys}
    for name in names:
        for key, text in split_partition_name(name, partition_keys).items():
            values[key].append(parse_partition_value(types[key], text))
    # A value that cannot be read is null here, and its partition is kept whatever the filter says.
    unread = [any(values[key][i] is None for key in partition_keys) for i in range(len(names))]
    table = pa.table({key: arrow_array(values[key], types[key]) for key in partition_keys})
    table = table.append_column(_POSITION, pa.array(range(len(names))))
    kept = set(table.filter(resolved_expression(known, schema))[_POSITION].to_pylist())
    return [unread[i] or i in kept for i in range(len(names))]
