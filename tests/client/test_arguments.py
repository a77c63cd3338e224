# SPDX-License-Identifier: Apache-2.0
"""What the explicit checks of arguments accept and refuse, and in which words."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import fluss
from fluss.client.admin import FlussAdmin
from fluss.client.arguments import also_called, instance, integer, strings

SCHEMA = fluss.Schema(pa.schema([("id", pa.int64())]))


@pytest.mark.parametrize("value", [7, np.int32(7), np.uint8(7)])
def test_integers(value: Any) -> None:
    assert type(integer("limit", "n", value)) is int
    assert integer("limit", "n", value) == 7


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, r"limit\(\): n must be an integer of at most 64 bits, got float 1\.5"),
        (True, "got bool True"),
        (2**70, "got int 1180591620717411303424"),
        (None, "an integer of at most 64 bits, got None"),
        ("x" * 10_000, r"got str 'x{20,40}\.\.\.x{20,40}'$"),
    ],
)
def test_what_is_no_integer(value: Any, text: str) -> None:
    with pytest.raises(fluss.InvalidArgumentError, match=text):
        integer("limit", "n", value)


def test_strings() -> None:
    assert strings("project", "names", (name for name in ("a", "b"))) == ["a", "b"]
    for wrong in ("abc", b"abc", {"a": 1}, [1], None, 7):
        with pytest.raises(fluss.InvalidArgumentError, match=r"project\(\): names must be a list of strings, got "):
            strings("project", "names", wrong)


def test_instances() -> None:
    bucket = fluss.TableBucket(1, 0)
    assert instance("records", "bucket", bucket, fluss.TableBucket) is bucket
    with pytest.raises(fluss.InvalidArgumentError, match="bucket must be a TableBucket, got int 0"):
        instance("records", "bucket", 0, fluss.TableBucket)


def test_errors_show_no_values_of_options() -> None:
    """A dict with text keys may be options, and those may be secrets."""
    secret = {"security.password": "s3cret", "other": None}
    for call, given in (
        (lambda given: strings("alter", "reset", given), secret),
        (lambda given: fluss.AlterConfig("security.password", given), ["s3cret"]),
        (lambda given: fluss.TableDescriptor(SCHEMA, properties=given), [("security.password", "s3cret")]),
        (lambda given: fluss.connect("127.0.0.1:1", options=given), [("security.password", "s3cret")]),
        (lambda given: fluss.connect("127.0.0.1:1", password=given), ["s3cret"]),
    ):
        with pytest.raises(fluss.InvalidArgumentError) as caught:
            call(given)
        assert "s3cret" not in str(caught.value)
    with pytest.raises(fluss.InvalidArgumentError, match=r"got dict \{'a': str, 'b': NoneType\}"):
        strings("alter", "reset", {"a": "s3cret", "b": None})


def test_other_names_of_parameters() -> None:
    class Calls:
        @also_called(name="database_name")
        async def exists(self, database_name: str) -> str:
            return database_name

    assert asyncio.run(Calls().exists(name="a")) == "a"  # type: ignore[call-arg]
    assert asyncio.run(Calls().exists("b")) == "b"
    assert inspect.iscoroutinefunction(FlussAdmin.create_database)
    assert next(iter(inspect.signature(FlussAdmin.database_exists).parameters)) == "self"
