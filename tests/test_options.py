# SPDX-License-Identifier: Apache-2.0
"""What options take: every type, its refusals and how it shows values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import ConfigError
from fluss.options import (
    INT_MAX,
    LONG_MAX,
    Addresses,
    Boolean,
    Choice,
    Duration,
    Names,
    Number,
    Option,
    OptionTable,
    OptionType,
    Pairs,
    Size,
    Text,
    Whole,
)

TYPES: tuple[OptionType[Any], ...] = (
    *(Text(), Whole(), Whole(-5, LONG_MAX), Number(), Boolean(), Names(), Names(distinct=True), Pairs(), Addresses()),
    *(Duration(), Duration(1, 1_000, bare=True), Size(), Size(1, INT_MAX)),
    *(Choice("all", "-1", "0"), Choice("LZ4_FRAME", "exactly-once")),
)


@pytest.mark.parametrize(
    ("type", "given_value", "value"),
    [
        (Whole(), " +7 ", 7),
        (Whole(-5), -5, -5),
        (Number(), "0.95", 0.95),
        (Number(), 1, 1.0),
        (Boolean(), " TRUE ", True),
        (Boolean(), False, False),
        (Duration(), "10 min", 600_000),
        (Duration(bare=True), "250", 250),
        (Duration(bare=True), 250, 250),
        (Duration(bare=True), "2 s", 2_000),
        (Size(), "64kb", 65536),
        (Size(), 5, 5),
        (Choice("LZ4_FRAME", "ZSTD"), "lz4-frame", "LZ4_FRAME"),
        (Choice("all", "-1"), -1, "-1"),
        (Choice("exactly-once"), "Exactly-Once", "exactly-once"),
        (Names(), "a; b,c,", ("a", "b", "c")),
        (Names(distinct=True), "a, b", ("a", "b")),
        (Names(), "", ()),
        (Pairs(), "a:1, b:x:y,", {"a": "1", "b": "x:y"}),
        (Addresses(), "h:1,[::1]:2", "h:1,[::1]:2"),
    ],
)
def test_values(type: OptionType[Any], given_value: object, value: object) -> None:
    assert type.convert(given_value) == value


@pytest.mark.parametrize(
    ("type", "given_value"),
    [
        (Text(), 5),
        (Whole(), True),
        (Whole(), "1.0"),
        (Whole(), INT_MAX + 1),
        (Whole(), "9" * 30),
        (Number(), "nan"),
        (Number(), "inf"),
        (Number(), -0.5),
        (Number(), True),
        (Number(), 10**400),
        (Boolean(), "yes"),
        (Boolean(), 1),
        (Duration(), "10"),
        (Duration(), 10),
        (Duration(1), "0 ms"),
        (Duration(bare=True), "10 fortnights"),
        (Size(1), "0"),
        (Size(0, INT_MAX), "2 gb"),
        (Choice("all", "-1"), "_1"),
        (Choice("a"), True),
        (Names(distinct=True), "a,a"),
        (Names(distinct=True), ","),
        (Pairs(), "a"),
        (Pairs(), ":a"),
        (Addresses(), "h"),
    ],
)
def test_refusals(type: OptionType[Any], given_value: object) -> None:
    assert type.convert(given_value) is None


@pytest.mark.parametrize(
    ("type", "text"),
    [
        (Whole(), "a whole number from 0 to 2147483647"),
        (Whole(1, LONG_MAX), "a whole number from 1 on"),
        (Duration(1), "a number and a unit such as '100 ms', '30 s', '10 min' or '7 d', from 1 ms"),
        (Size(1024), "'64 kb', '32 mb' or '1 gb', from 1 kb"),
        (Choice("a", "b"), "one of 'a', 'b'"),
    ],
)
def test_words(type: OptionType[Any], text: str) -> None:
    assert text in type.allowed()


@given(st.sampled_from(TYPES), st.one_of(st.text(max_size=12), st.integers(), st.floats(), st.booleans(), st.none()))
def test_any_value_is_read_or_refused_and_what_is_shown_can_be_read(type: OptionType[Any], value: object) -> None:
    assert type.allowed()
    converted = type.convert(value)
    if converted is None:
        return
    shown = type.show(converted)
    if shown != "no limit":
        assert type.convert(shown) == converted


RETRIES = Option("writer.retries", Whole(), 3, "How often.", aliases=("retries",))
TIMEOUT = Option("request-timeout", Duration(1), 30_000, "How long.", dynamic=True)
PASSWORD = Option("password", Text(), None, "The password.", secret=True)
TABLE = OptionTable(
    "option", (RETRIES, TIMEOUT, PASSWORD), prefix="client.", refused={"writer.pages": "there are no pages"}
)


def test_an_option_names_itself_the_value_and_what_it_takes() -> None:
    assert RETRIES.parse("5") == 5
    with pytest.raises(ConfigError) as caught:
        RETRIES.parse("many")
    assert caught.value.message == "writer.retries: got 'many', but it takes a whole number from 0 to 2147483647"
    with pytest.raises(ConfigError) as caught:
        PASSWORD.parse(b"hunter2")
    assert "hunter2" not in caught.value.message
    assert (RETRIES.kind, RETRIES.default_text, RETRIES.choices) == ("int", "3", ())
    assert (TIMEOUT.default_text, PASSWORD.default_text) == ("30 s", "")
    assert repr(TIMEOUT) == "Option('request-timeout')"


@pytest.mark.parametrize("key", ["writer.retries", "retries", "client.writer.retries", "client.retries"])
def test_an_option_is_found_by_its_key_an_alias_and_with_the_prefix(key: str) -> None:
    assert TABLE.find(key) is RETRIES
    assert TABLE.require(key) is RETRIES
    assert TABLE.find(key.upper()) is None


def test_case_can_be_ignored() -> None:
    table = OptionTable("option", (Option("minPartitions", Whole(), 1, "x"),), ignore_case=True)
    assert table.find("minpartitions") is table["minPartitions"]
    assert table.suggest("MINpartition") == "minPartitions"


def test_unknown_keys() -> None:
    assert TABLE.find("nothing") is None
    with pytest.raises(ConfigError, match=r"'client\.writer\.retires'; did you mean 'writer\.retries'\?"):
        TABLE.require("client.writer.retires")
    with pytest.raises(ConfigError, match=r"unknown option 'zzz'; docs/configuration\.md lists the options"):
        TABLE.require("zzz")
    with pytest.raises(ConfigError, match=r"option 'client\.writer\.pages' cannot be used: there are no pages\."):
        TABLE.require("client.writer.pages")


def test_a_table_is_a_mapping_in_order() -> None:
    assert list(TABLE) == ["writer.retries", "request-timeout", "password"]
    assert len(TABLE) == 3
    assert TABLE["password"] is PASSWORD
    assert "retries" not in TABLE
