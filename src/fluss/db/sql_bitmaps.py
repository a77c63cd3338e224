# SPDX-License-Identifier: Apache-2.0
"""The functions ``rb_*`` of SQL: roaring bitmaps of 32-bit integers, as columns with the aggregation rbm32 have them.

Names, arguments and results are those of the functions that Apache Fluss has for Flink. DuckDB takes no aggregate
functions from Python, so these are macros that collect a list.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fluss.errors import InvalidArgumentError
from fluss.rows.bitmaps import Keep, bitmap32, cardinality32, combine32, contains32, values32

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_JOINS: dict[str, Keep] = {"or": np.logical_or, "and": np.logical_and, "xor": np.logical_xor, "andnot": np.greater}
_AGGREGATES = ("or", "and", "xor")


def add_bitmap_functions(connection: DuckDBPyConnection) -> None:
    """Make the functions known to a DuckDB and all its cursors."""
    connection.create_function("rb_build", _build, ["BIGINT[]"], "BLOB")
    connection.create_function("rb_cardinality", cardinality32, ["BLOB"], "BIGINT")
    connection.create_function("rb_contains", _contains, ["BLOB", "BIGINT"], "BOOLEAN")
    connection.create_function("rb_to_array", _to_array, ["BLOB"], "INTEGER[]")
    connection.execute("create macro rb_build_agg(number) as rb_build(list(number) filter (number is not null))")
    for name, join in _JOINS.items():
        connection.create_function(f"rb_{name}", functools.partial(combine32, join), ["BLOB", "BLOB"], "BLOB")
    for name in _AGGREGATES:
        joined = functools.partial(_join_all, _JOINS[name])
        connection.create_function(f"rb_{name}_all", joined, ["BLOB[]"], "BLOB")
        some = "list(bitmap) filter (octet_length(bitmap) > 0)"
        connection.execute(f"create macro rb_{name}_agg(bitmap) as rb_{name}_all({some})")


def _join_all(join: Keep, bitmaps: Sequence[bytes]) -> bytes:
    return functools.reduce(functools.partial(combine32, join), bitmaps)


def _build(numbers: Sequence[int | None]) -> bytes:
    return bitmap32(np.array([_unsigned(number) for number in numbers if number is not None], np.uint32))


def _contains(bitmap: bytes, number: int) -> bool:
    return contains32(bitmap, _unsigned(number))


def _to_array(bitmap: bytes) -> list[int]:
    return list(values32(bitmap).astype(np.int32).tolist())


def _unsigned(number: int) -> int:
    """An INT as bitmaps have it: negative ones come after the others."""
    if not -(2**31) <= number < 2**31:
        raise InvalidArgumentError(f"the bitmaps of rb_ functions hold 32-bit integers, not {number}")
    return number & 0xFFFFFFFF
