# SPDX-License-Identifier: Apache-2.0
"""How the columns of an Arrow schema flatten into field nodes and buffers of a record batch message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cached_property, lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa

from fluss.errors import InvalidArgumentError, InvalidColumnProjectionError
from fluss.records._bytes import malformed
from fluss.records.arrow_message import ArrowMessage
from fluss.records.log_batch import LogBatchHeader

NESTING_MAX = 64
RECORDS_MAX = 1 << 24
"""Rows of one batch: a few compressed bytes stand for any number of them, and columns added later are as long."""
_REMEMBERED_MAX = 1024

Picker = Callable[[Sequence[int]], tuple[int, ...]]


class NodeKind(IntEnum):
    """How the values of a field node lie in its buffers, apart from the validity bits."""

    FIXED = 0
    """One buffer of values of equal size."""
    TEXT = 1
    """Offsets, and the bytes of strings, which must be UTF-8."""
    BINARY = 2
    """Offsets, and bytes."""
    LIST = 3
    """Offsets into one child."""
    MAP = 4
    """Offsets into one child: a struct of keys and values."""
    STRUCT = 5
    """Nothing: the values are in the children."""


class NodeLayout(NamedTuple):
    """What one field node of a schema needs; nodes are numbered depth first."""

    kind: NodeKind
    buffer: int
    """The number of its first buffer, which holds the validity bits."""
    bits: int
    """Size of one value of a `FIXED` node."""
    children: tuple[int, ...]
    """The numbers of the nodes right below it."""


class Selection(NamedTuple):
    """The nodes and buffers of some top-level columns: each picks its numbers out of the message's."""

    nodes: Picker
    buffers: Picker
    schema: pa.Schema
    """The schema that remains."""


class SchemaLayout:
    """Where the nodes and buffers of each top-level column of a schema are."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        node_starts, buffer_starts = [0], [0]
        flat = _Flattener()
        for field in schema:
            flat.add(field.type, 0)
            node_starts.append(len(flat.nodes))
            buffer_starts.append(flat.buffer_count)
        self.nodes: tuple[NodeLayout, ...] = tuple(flat.nodes)
        self.node_starts = tuple(node_starts)
        self.buffer_starts = tuple(buffer_starts)
        self.node_count = node_starts[-1]
        self.buffer_count = buffer_starts[-1]
        self.column_lengths: Picker = _picker([2 * node for node in node_starts[:-1]])
        """Picks the lengths of the top-level columns out of the numbers of all nodes."""
        self._selections: dict[tuple[int, ...], Selection] = {}

    @cached_property
    def schema_message(self) -> memoryview:
        """The message that a stream of such batches begins with."""
        return memoryview(self.schema.serialize())

    def select(self, positions: Sequence[int]) -> Selection:
        """What a projection keeps: selecting a column selects everything nested in it.

        Raises:
            InvalidColumnProjectionError: The positions are empty, out of range, or not strictly ascending.
        """
        key = tuple(positions)
        selection = self._selections.get(key)
        if selection is None:
            self._check_positions(key)
            selection = Selection(
                _pairs_picker(self.node_starts, key),
                _pairs_picker(self.buffer_starts, key),
                pa.schema([self.schema.field(position) for position in key]),
            )
            if len(self._selections) >= _REMEMBERED_MAX:
                self._selections.clear()
            self._selections[key] = selection
        return selection

    def _check_positions(self, positions: tuple[int, ...]) -> None:
        width = len(self.schema)
        if not positions:
            raise InvalidColumnProjectionError("the projection selects no column; name at least one")
        last = -1
        for position in positions:
            if not 0 <= position < width:
                raise InvalidColumnProjectionError(f"projected column {position} is outside 0..{width - 1}")
            if position <= last:
                raise InvalidColumnProjectionError(
                    f"projected columns must be strictly ascending, found {position} after {last}"
                )
            last = position

    def check(self, message: ArrowMessage, header: LogBatchHeader) -> None:
        """Refuse a message that does not have the shape that schema and batch header promise."""
        nodes, buffers = len(message.nodes) // 2, len(message.buffers) // 2
        if nodes != self.node_count or buffers != self.buffer_count:
            malformed(
                "Arrow message",
                "metadata",
                0,
                f"{nodes} field nodes and {buffers} buffers, but schema {header.schema_id} has "
                f"{self.node_count} and {self.buffer_count}",
            )
        count = header.record_count
        if count > RECORDS_MAX:
            malformed("log batch", "record count", 0, f"{count} records are more than {RECORDS_MAX} allowed")
        if message.row_count != count or self.column_lengths(message.nodes).count(count) != len(self.schema):
            malformed(
                "Arrow message", "row count", 0, f"the columns do not have the {count} rows that the batch header says"
            )


_layouts_by_identity: dict[int, tuple[pa.Schema, SchemaLayout]] = {}


def layout_of(schema: pa.Schema) -> SchemaLayout:
    """The layout of a schema; remembered, since every batch of a table asks for it."""
    # Hashing a schema costs more than reading a small message, so an object that was seen before is recognised by its
    # identity; it is kept alive here, so that no other object gets its id.
    found = _layouts_by_identity.get(id(schema))
    if found is not None:
        return found[1]
    layout = _layout(schema)
    if len(_layouts_by_identity) >= _REMEMBERED_MAX:
        _layouts_by_identity.clear()
    _layouts_by_identity[id(schema)] = schema, layout
    return layout


@lru_cache(maxsize=_REMEMBERED_MAX)
def _layout(schema: pa.Schema) -> SchemaLayout:
    return SchemaLayout(schema)


class _Flattener:
    """Numbers nodes and buffers depth first, as Arrow does."""

    def __init__(self) -> None:
        self.nodes: list[NodeLayout] = []
        self.buffer_count = 0

    def add(self, data_type: pa.DataType, depth: int) -> int:
        """Append the nodes of one column; returns the number of its topmost one."""
        if depth > NESTING_MAX:
            raise InvalidArgumentError(f"Arrow types nested deeper than {NESTING_MAX} levels are not supported")
        kind, buffers, nested = _shape(data_type)
        number, first_buffer = len(self.nodes), self.buffer_count
        bits = data_type.bit_width if kind is NodeKind.FIXED else 0
        self.nodes.append(NodeLayout(kind, first_buffer, bits, ()))
        self.buffer_count += buffers
        children = tuple([self.add(child, depth + 1) for child in nested])
        self.nodes[number] = NodeLayout(kind, first_buffer, bits, children)
        return number


def _shape(data_type: pa.DataType) -> tuple[NodeKind, int, list[pa.DataType]]:
    """Kind and number of buffers of a node, and the types below it."""
    types = pa.types
    if types.is_string(data_type):
        return NodeKind.TEXT, 3, []
    if types.is_binary(data_type):
        return NodeKind.BINARY, 3, []
    if types.is_struct(data_type):
        return NodeKind.STRUCT, 1, [data_type.field(i).type for i in range(data_type.num_fields)]
    if types.is_map(data_type):
        return NodeKind.MAP, 2, [pa.struct([data_type.key_field, data_type.item_field])]
    if types.is_list(data_type):
        return NodeKind.LIST, 2, [data_type.value_type]
    if (
        types.is_boolean(data_type)
        or types.is_integer(data_type)
        or types.is_floating(data_type)
        or types.is_decimal128(data_type)
        or types.is_fixed_size_binary(data_type)
        or (types.is_temporal(data_type) and not types.is_interval(data_type))
    ):
        return NodeKind.FIXED, 2, []
    raise InvalidArgumentError(f"Arrow type {data_type} cannot stand in a log batch; cast the column to its table type")


def _pairs_picker(starts: Sequence[int], positions: Sequence[int]) -> Picker:
    """Picks the pairs of numbers of all entries that belong to the columns at `positions`."""
    return _picker(list(chain.from_iterable(range(2 * starts[p], 2 * starts[p + 1]) for p in positions)))


def _picker(indexes: list[int]) -> Picker:
    if len(indexes) > 1:
        return itemgetter(*indexes)
    index = indexes[0] if indexes else None  # itemgetter would return a bare number

    def pick(numbers: Sequence[Any]) -> tuple[int, ...]:
        return () if index is None else (numbers[index],)

    return pick
