# SPDX-License-Identifier: Apache-2.0
"""The table of causes and remedies: complete, and every command and option in it exists."""

from __future__ import annotations

import re
import runpy

import click
import pytest
from tests.docs.blocks import ROOT

from fluss.cli import main as cli
from fluss.config import CONFIG_OPTIONS
from fluss.errors import ERROR_CLASSES, ERROR_NAMES, FlussError
from fluss.metadata.properties import TABLE_PROPERTIES
from fluss.server.config import SERVER_OPTIONS
from fluss.server.foreign_options import PASSED_OVER, REFUSED

REMEDIES = runpy.run_path(str(ROOT / "scripts" / "remedies.py"))["REMEDIES"]
OPTIONS = {*CONFIG_OPTIONS, *SERVER_OPTIONS, *TABLE_PROPERTIES, *PASSED_OVER, *REFUSED}


def test_every_error_has_a_remedy() -> None:
    ours = [found for found in FlussError.__subclasses__() if found.__module__ == "fluss.errors"]
    own = {found.__name__ for found in ours if found not in ERROR_CLASSES.values()}
    assert REMEDIES.keys() == own | {ERROR_NAMES[code] for code in ERROR_CLASSES}


@pytest.mark.parametrize("name", REMEDIES)
def test_what_a_remedy_names_exists(name: str) -> None:
    for text in REMEDIES[name]:
        assert text.endswith("."), text
        for quoted in re.findall(r"`([^`]+)`", text):
            if quoted.startswith("fluss "):
                command: click.Command | None = cli
                for word in re.findall(r" ([a-z]+)", quoted):
                    assert isinstance(command, click.Group), quoted
                    command = command.get_command(click.Context(command), word)
                    assert command is not None, quoted
            elif re.fullmatch(r"[a-z-]+(\.[a-z-]+)+", quoted) and not quoted.startswith(("db.", "error.")):
                assert quoted in OPTIONS, quoted
