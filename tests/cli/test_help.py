# SPDX-License-Identifier: Apache-2.0
"""Help: groups by task, one example for each command, and the options every command has."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal

import click
import pytest
from click.testing import CliRunner

from fluss.cli import main

WITHOUT_JSON = {"ui", "server", "completion"}


def leaves(group: click.Group, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, (*prefix, name))
        else:
            yield (*prefix, name), command


def test_commands_are_grouped_by_task() -> None:
    shown = CliRunner().invoke(main, ["--help"]).output
    sections = [line.rstrip(":") for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert sections == ["Options", "Tables", "Rows", "Server", "This machine", "Lake and pipelines"]
    for name in main.list_commands(click.Context(main)):
        assert f"\n  {name} " in shown


def test_every_command_has_one_example_and_json() -> None:
    for path, command in leaves(main):
        text = command.help or ""
        assert text.count(f"Example: fluss {' '.join(path)}") == 1, path
        assert len(text.strip()) < 900, path
        options = {option for parameter in command.params for option in parameter.opts}
        assert "--json" in options or path[0] in WITHOUT_JSON, path


def test_help_fits_a_narrow_terminal() -> None:
    for path, _ in leaves(main):
        shown = CliRunner().invoke(main, [*path, "--help"], env={"COLUMNS": "60"}, terminal_width=60).output
        assert max(len(line) for line in shown.splitlines()) <= 80, path


def test_tables_fit_a_narrow_terminal() -> None:
    from fluss.cli.show import Grid

    @click.command()
    def show() -> None:
        grid = Grid(["id", "a long name", "text"], width=30)
        grid.add([[1, "x" * 50, "short"], [None, "y", "z" * 70]])

    lines = CliRunner().invoke(show).output.splitlines()
    assert max(len(line) for line in lines) <= 30
    assert "…" in lines[1]
    assert "NULL" in lines[2]


def test_numbers_and_times_are_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    from fluss.cli.show import Grid

    grid = Grid(["id", "price", "day", "text"], width=20)
    grid.add([(1, None, None, "x")])
    grid.add([(1001, Decimal("123456.78"), dt.date(2026, 1, 31), "a long text that is cut")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split()[:3] == ["1001", "123456.78", "2026-01-31"]
    assert lines[-1].endswith("…")


def test_columns_grow_with_later_rows(capsys: pytest.CaptureFixture[str]) -> None:
    from fluss.cli.show import Grid

    grid = Grid(["id", "item"], width=40)
    grid.add([(1, "tea")])
    grid.add([(2, "a mug of tea with milk")])
    assert capsys.readouterr().out.splitlines()[-1] == " 2  a mug of tea with milk"
