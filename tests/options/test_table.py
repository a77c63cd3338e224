# SPDX-License-Identifier: Apache-2.0
"""Options and tables of options."""

from __future__ import annotations

import pytest

from fluss.errors import ConfigError
from fluss.options import Duration, Option, OptionTable, Text, Whole

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
