# SPDX-License-Identifier: Apache-2.0
"""What the annotations of a call let pass, what they refuse, and in which words."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fluss
from fluss.client.admin.types import AlterConfig
from fluss.client.arguments import all_checked
from fluss.metadata import TableBucket, TablePath


@all_checked
class Calls:
    """Gives back what its calls were given."""

    def number(self, value: int) -> Any:
        return value

    def numbers(self, bucket_ids: Sequence[int]) -> Any:
        return bucket_ids

    def names(self, names: Iterable[str]) -> Any:
        return names

    def offsets(self, offsets: Mapping[TableBucket, int] | None = None) -> Any:
        return offsets

    def pairs(self, pairs: Mapping[tuple[int, int], int]) -> Any:
        return pairs

    def flag(self, flag: bool) -> Any:
        return flag

    def path(self, table_path: TablePath) -> Any:
        return table_path

    def path_or_text(self, name: str | TablePath) -> Any:
        return name

    async def later(self, database_name: str, *, timeout: float | None = None) -> Any:
        return database_name, timeout

    def properties(self, properties: Mapping[str, str]) -> Any:
        return properties

    def changes(self, changes: Iterable[AlterConfig]) -> Any:
        return changes

    def anything(self, row: Any) -> Any:
        return row


CALLS = Calls()
BUCKET = TableBucket(1, 0)
SCHEMA = fluss.Schema(pa.schema([("id", pa.int64())]))


@pytest.mark.parametrize(
    ("call", "given", "taken"),
    [
        (CALLS.number, np.int32(7), 7),
        (CALLS.numbers, range(3), [0, 1, 2]),
        (CALLS.numbers, np.arange(2), [0, 1]),
        (CALLS.numbers, (number for number in (1, 2)), [1, 2]),
        (CALLS.names, {"a": 1}, ["a"]),
        (CALLS.offsets, None, None),
        (CALLS.offsets, {BUCKET: 7}, {BUCKET: 7}),
        (CALLS.pairs, {(1, 2): 3}, {(1, 2): 3}),
        (CALLS.flag, 1, True),
        (CALLS.flag, np.False_, False),
        (CALLS.path, "shop.users", TablePath("shop", "users")),
        (CALLS.path_or_text, "users", "users"),
        (CALLS.anything, 1.5, 1.5),
    ],
)
def test_what_is_taken(call: Any, given: Any, taken: Any) -> None:
    assert call(given) == taken
    assert type(call(given if not inspect.isgenerator(given) else [1, 2])) is type(taken)


@pytest.mark.parametrize(
    ("call", "given", "text"),
    [
        (CALLS.number, 1.5, r"number\(\): value must be an integer of at most 64 bits, got float 1\.5"),
        (CALLS.number, True, r"got bool True"),
        (CALLS.number, 2**70, r"got int 1180591620717411303424"),
        (CALLS.number, None, r"an integer of at most 64 bits, got None"),
        (
            CALLS.numbers,
            [2**40],
            r"bucket_ids must be a list of integers of at most 32 bits, got list \[1099511627776\]",
        ),
        (CALLS.numbers, {0: 1}, r"got dict"),
        (CALLS.names, "abc", r"names must be a list of strings, got str 'abc'"),
        (
            CALLS.offsets,
            {0: 1},
            r"offsets must be a dict of TableBucket objects to integers .* or None, got dict \{0: 1\}",
        ),
        (CALLS.offsets, {TableBucket(2**70, 0): 1}, r"got dict"),
        (CALLS.pairs, {(1,): 3}, r"pairs must be a dict of pairs"),
        (CALLS.flag, "yes", r"flag must be True or False, got str 'yes'"),
        (CALLS.flag, 2, r"got int 2"),
        (CALLS.path, 7, r"table_path must be a TablePath or 'database\.table', got int 7"),
        (CALLS.path_or_text, 7, r"name must be a TablePath or 'database\.table', got int 7"),
        (CALLS.number, "x" * 10_000, r"got str 'x{20,40}\.\.\.x{20,40}'$"),
    ],
)
def test_what_is_refused(call: Any, given: Any, text: str) -> None:
    with pytest.raises(fluss.InvalidArgumentError, match=text):
        call(given)


def test_errors_show_no_values_of_options() -> None:
    """A dict with text keys may be options, and those may be secrets."""
    secret = fluss.AlterConfig("security.password", "s3cret")
    for call, given in (
        (CALLS.properties, {"security.password": "s3cret", "other": None}),
        (CALLS.properties, {"security.password": "s3cret", 5: "x"}),
        (CALLS.properties, [("security.password", "s3cret")]),
        (CALLS.changes, [secret, 5]),
        (lambda given: fluss.AlterConfig("security.password", given), ["s3cret"]),
        (lambda given: fluss.TableDescriptor(SCHEMA, properties=given), [("security.password", "s3cret")]),
        (lambda given: fluss.connect("127.0.0.1:1", options=given), [("security.password", "s3cret")]),
        (lambda given: fluss.connect("127.0.0.1:1", password=given), ["s3cret"]),
    ):
        with pytest.raises(fluss.InvalidArgumentError) as caught:
            call(given)
        assert "s3cret" not in str(caught.value)
    with pytest.raises(fluss.InvalidArgumentError, match=r"got dict \{'a': str, 'b': NoneType\}"):
        CALLS.properties({"a": "s3cret", "b": None})  # type: ignore[dict-item]


def test_a_coroutine_function_stays_one() -> None:
    assert inspect.iscoroutinefunction(Calls.later)
    assert list(inspect.signature(Calls.later).parameters) == ["self", "database_name", "timeout"]
    assert asyncio.run(CALLS.later("a", timeout=2)) == ("a", 2)
    assert asyncio.run(CALLS.later(name="a")) == ("a", None)  # type: ignore[call-arg]
    for wrong in (0, -1, True, "5", float("nan")):
        with pytest.raises(
            fluss.InvalidArgumentError, match=r"later\(\): timeout must be a positive number of seconds"
        ):
            asyncio.run(CALLS.later("a", timeout=wrong))  # type: ignore[arg-type]


def test_arguments_that_a_call_does_not_have_are_of_python() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        CALLS.number(1, 2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        CALLS.number(other=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing 1 required"):
        CALLS.number()  # type: ignore[call-arg]


def test_a_call_without_anything_to_check_is_left_as_it_is() -> None:
    assert not hasattr(Calls.anything, "__wrapped__")
