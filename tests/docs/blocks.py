# SPDX-License-Identifier: Apache-2.0
"""The code blocks of a Markdown page, and how they are run.

All blocks of a page run in order and share one namespace and one event loop, as if typed into a notebook:
a block may use a bare `await`. A fenced ``text`` or ``json`` block that follows is what the block must have printed
(`...` stands for anything). A block that needs more than this package says so in the line before it:
`<!-- needs: spark -->`; such a line at the very top of a page speaks for the whole page. The tests of Spark run those
blocks: `tests/spark/test_documents.py`, and `test_clusters.py` the ones that need a cluster.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import os
import re
import shlex
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner
from tests.ports import free_port

import fluss
import fluss.aio
from fluss.cli import main as cli
from fluss.server.command import build_config

ROOT = Path(__file__).resolve().parents[2]

NEEDS = ("spark", "cluster", "java")
"""What a block may need beyond this package. Nothing else excuses a block from running."""

ROUNDS_MAX = 3
"""How often an endless loop goes round, and how many rows an endless scan gives."""

BLOCK_SECONDS_MAX = 60.0

_FENCE = re.compile(r"(?ms)^(?:<!-- needs: ([a-z]+) -->\n)?```([a-z]*)\n(.*?)^```$")
_ADDRESS = re.compile(r"(?:127\.0\.0\.1|localhost):9123")
_PORT = re.compile(r"\bport=9123\b")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    needs: str | None
    expected: str | None

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def read_blocks(path: Path) -> list[Block]:
    """The blocks of a page, each with the output that is shown below it."""
    text = path.read_text(encoding="utf-8")
    whole_page = re.match(r"<!-- needs: ([a-z]+) -->\n\n", text)
    found = list(_FENCE.finditer(text))
    blocks = []
    for match, following in zip(found, [*found[1:], None]):
        expected = None
        if (
            following is not None
            and following[2] in ("text", "json")
            and not text[match.end() : following.start()].strip()
        ):
            expected = following[3]
        needs = match[1] or (whole_page[1] if whole_page else None)
        line = text.count("\n", 0, match.start(3)) + 1
        blocks.append(Block(path.name, line, match[2], match[3], needs, expected))
    return blocks


def check_output(block: Block, printed: str) -> None:
    """Fail unless the block printed what the page shows."""
    if block.expected is None:
        return
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if block.expected.endswith("\n...\n"):
        printed += "...\n"  # "and so on" may stand for nothing at all
    if not doctest.OutputChecker().check_output(block.expected, printed, flags):
        raise AssertionError(f"{block.where} shows\n{block.expected}\nbut this was printed\n{printed}")


# -- Python --------------------------------------------------------------------------------------------------------


class LazyServer:
    """A server that is started when a block needs it: some pages have none."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self._options = options
        self._server: fluss.LocalServer | None = None

    @property
    def address(self) -> str:
        """Of the last listener: the one for clients."""
        if self._server is None:
            self._server = fluss.LocalServer(options=self._options).start()
        return self._server.addresses[-1]

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()


async def run_page(blocks: Iterable[Block], server: LazyServer) -> None:
    """Run blocks in order and compare what they print with what the page shows."""
    names = namespace()
    try:
        for block in blocks:
            printed = ""
            if block.language == "python":
                try:
                    printed = await run_python(block, names, server.address)
                except Exception as error:
                    raise AssertionError(f"{block.where} failed: {type(error).__name__}: {error}") from error
            elif block.language == "bash":
                for line in command_lines(block.text):
                    # The command line runs a loop of its own.
                    address = server.address if "fluss " in line else ""
                    printed += await asyncio.to_thread(run_command, line, address)
            check_output(block, printed)
    finally:
        for value in names.values():
            if isinstance(value, fluss.LocalServer):
                value.stop()  # does nothing where the page stopped it
            elif isinstance(value, fluss.Database):
                value.close()
            elif isinstance(value, fluss.aio.Database):
                await value.close()
            elif isinstance(value, fluss.aio.Table) and isinstance(value._database, fluss.aio.Database):
                await value._database.close()


class _Bounded(ast.NodeTransformer):
    """Endless loops end after a few rounds, so that a page may show the loop people really write."""

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.test, ast.Constant) and node.test.value is True:
            bounded = ast.For(
                target=ast.Name("_round", ast.Store()),
                iter=ast.Call(ast.Name("range", ast.Load()), [ast.Constant(ROUNDS_MAX)], []),
                body=node.body,
                orelse=[],
            )
            return ast.copy_location(bounded, node)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = ast.Call(ast.Name("_some", ast.Load()), [node.iter], [])
        return node

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        self.generic_visit(node)
        node.iter = ast.Call(ast.Name("_some_async", ast.Load()), [node.iter], [])
        return node


def _some(items: Iterable[Any]) -> Iterator[Any]:
    for number, item in enumerate(items):
        yield item
        if isinstance(items, fluss.LogScanner) and number + 1 == ROUNDS_MAX:
            return


async def _some_async(items: Any) -> AsyncIterator[Any]:
    number = 0
    async for item in items:
        yield item
        number += 1
        if isinstance(items, (fluss.LogScanner, fluss.aio.LogScanner)) and number == ROUNDS_MAX:
            return


def namespace() -> dict[str, Any]:
    """A fresh namespace for the blocks of a page."""
    return {"__name__": "__docs__", "_some": _some, "_some_async": _some_async}


async def run_python(block: Block, names: dict[str, Any], address: str) -> str:
    """Run a block; gives what it printed."""
    source = _PORT.sub(f"port={free_port()}", _ADDRESS.sub(address, block.text))
    tree = ast.fix_missing_locations(_Bounded().visit(ast.parse(source, block.where)))
    # Without the future statements of this module: a block has none unless it says so.
    code = compile(tree, block.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if code.co_flags & inspect.CO_COROUTINE:
            await asyncio.wait_for(eval(code, names), BLOCK_SECONDS_MAX)
        elif "asyncio.run(" in source:
            # A whole program, which wants an event loop of its own.
            await asyncio.wait_for(asyncio.to_thread(exec, code, names), BLOCK_SECONDS_MAX)
        else:
            exec(code, names)
    return printed.getvalue()


# -- commands ------------------------------------------------------------------------------------------------------


def command_lines(text: str) -> Iterator[str]:
    """The commands of a bash block, without comments and with continued lines joined."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip()


def run_command(line: str, address: str) -> str:
    """Check one shell command of a page, and run it if it is one of ours; gives what it printed."""
    words = shlex.split(line, comments=True)
    given = None
    if "|" in words:
        bar = words.index("|")
        first, words = words[:bar], words[bar + 1 :]
        if first[0] != "echo" or "|" in words:
            raise AssertionError(f"only `echo TEXT | fluss ...` is understood: {line}")
        given = " ".join(first[1:]) + "\n"
    environment = {"FLUSS_BOOTSTRAP_SERVERS": address}
    while re.match(r"[A-Z_]+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    program, *arguments = words
    if program == "fluss":
        return _run_fluss(arguments, environment, given)
    if program == "mkdir":
        os.makedirs(*arguments)
        return ""
    _check_other(program, arguments, line)
    return ""


def _run_fluss(arguments: list[str], environment: dict[str, str], given: str | None) -> str:
    if not arguments or arguments[0].startswith("-"):
        return _invoke(arguments, environment, given)
    context = click.Context(cli)
    command = cli.get_command(context, arguments[0])
    assert command is not None, f"there is no command 'fluss {arguments[0]}'"
    if arguments[0] == "server":
        parsed = command.make_context("server", arguments[1:], parent=context)
        others = ("watch_stdin", "config_file", "restore_from")
        options = {k: v for k, v in parsed.params.items() if k not in others and not k.startswith("ui")}
        build_config(config_file=None, **options)
        return ""
    if arguments[0] == "ui":
        command.make_context("ui", arguments[1:], parent=context)
        return ""
    if arguments[0] == "tail" and not {"-n", "--limit", "--no-follow", "--timeout"} & set(arguments):
        arguments = [*arguments, "--timeout", "0"]
    return _invoke(arguments, environment, given)


def _invoke(arguments: list[str], environment: dict[str, str], given: str | None) -> str:
    result = CliRunner().invoke(cli, arguments, input=given, env={**environment, "COLUMNS": "100"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code:
        raise AssertionError(f"fluss {shlex.join(arguments)} ended with {result.exit_code}: {result.output}")
    return result.output


def _check_other(program: str, arguments: list[str], line: str) -> None:
    """Commands of other programs are not run, but what they name must be there."""
    if program == "make":
        targets = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"))
        unknown = [word for word in arguments if "=" not in word and word not in targets]
        assert not unknown, f"the Makefile has no target {unknown}: {line}"
    elif program == "pip":
        _check_pip(arguments, line)
    elif program in ("python", "spark-submit", "spark-class"):
        for argument in arguments:
            if argument.endswith(".py"):
                assert (ROOT / argument).is_file(), f"there is no {argument}: {line}"
    else:
        assert program in ("pytest", "curl", "kill", "export", "cd", "git"), f"unknown program {program!r}: {line}"


def _check_pip(arguments: list[str], line: str) -> None:
    """Accept what can work: a clone, a wheel, an extra of an installed package. `make wheel` tries the first two."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert arguments[0] == "install", f"unknown command of pip: {line}"
    for argument in arguments[1:]:
        parts = re.fullmatch(r"(\.|dist/\*\.whl|fluss-python)(?:\[([a-z,]+)\])?", argument)
        assert parts, f"pip cannot install {argument!r}: {line}"
        assert parts[1] != "fluss-python" or parts[2], f"the package is on no index: {line}"
        for extra in filter(None, (parts[2] or "").split(",")):
            assert re.search(rf"(?m)^{extra} = \[", project), f"there is no extra {extra!r}: {line}"
