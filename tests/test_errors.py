# SPDX-License-Identifier: Apache-2.0
"""The error tree."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

import fluss
from fluss import errors
from fluss.errors import (
    ERROR_CLASSES,
    ERROR_NAMES,
    ErrorCode,
    FlussError,
    FormatError,
    TableNotExistError,
    error_for_code,
)

RETRIABLE = {1, 3, 9, 10, 11, 12, 14, 21, 25, 26, 28, 29, 44, 70, 72, 73}
STALE_METADATA = {1, 12, 21, 24, 44, 65, 74}


def test_there_is_a_class_for_every_code() -> None:
    assert sorted(ERROR_NAMES) == list(range(-2, 75))
    assert list(ERROR_CLASSES) == [-1, *range(1, 75)]
    assert {code for code in ERROR_CLASSES if error_for_code(code).is_retriable} == RETRIABLE
    assert {code for code in ERROR_CLASSES if error_for_code(code).is_stale_metadata} == STALE_METADATA


@pytest.mark.parametrize(("code", "cls"), ERROR_CLASSES.items())
def test_every_code_makes_its_own_error(code: int, cls: type[FlussError]) -> None:
    error = error_for_code(code)
    assert (type(error), error.error_code, error.message) == (cls, code, cls.__doc__)
    assert getattr(ErrorCode, error.error_name) == code
    assert f"code {code}" in str(error)
    assert cls("told").error_code == code


def test_message_of_the_server_wins_unless_empty() -> None:
    assert error_for_code(7, "Table 'a.b' does not exist.").message == "Table 'a.b' does not exist."
    assert error_for_code(7, "").message == "The table does not exist."


def test_unknown_code_keeps_its_number() -> None:
    error = error_for_code(4711, "new in a later version")
    assert type(error) is FlussError
    assert (error.error_code, error.message, error.error_name) == (4711, "new in a later version", "UNKNOWN")
    assert not error.is_retriable
    assert not error.is_stale_metadata
    assert "4712" in error_for_code(4712, None).message


def test_base_class_with_a_code_knows_its_policy() -> None:
    error = FlussError("gone", 1)
    assert error.is_retriable
    assert error.is_stale_metadata
    assert isinstance(TableNotExistError("x"), FlussError)


def test_client_errors() -> None:
    for cls in (
        FormatError,
        errors.ConfigError,
        errors.InvalidRowError,
        errors.InvalidArgumentError,
        errors.ConnectionClosedError,
        errors.DeadlineExceededError,
        errors.MissingDependencyError,
    ):
        error = cls("what, to what, what next")
        assert error.error_code == ErrorCode.CLIENT_ERROR
        assert error.error_name == "CLIENT_ERROR"
        assert str(error) == "what, to what, what next"
        assert not error.is_retriable
    assert issubclass(errors.InvalidArgumentError, ValueError)
    assert issubclass(errors.DeadlineExceededError, TimeoutError)
    assert issubclass(errors.MissingDependencyError, ImportError)
    assert FlussError("m").error_code == -2


@pytest.mark.parametrize(
    "error",
    [
        TableNotExistError("a", table="d.t", hint="create it"),
        FormatError("b", row=3, column="c", column_type="INT"),
        FlussError("c", 99),
        errors.DeadlineExceededError("d", row=1),
        errors.MissingDependencyError("e", hint="install it"),
    ],
)
def test_errors_survive_pickling(error: FlussError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert (copy.message, str(copy), repr(copy)) == (error.message, str(error), repr(error))


def test_message_is_made_from_the_attributes() -> None:
    error = errors.InvalidRowError(
        "too large", table="d.t", row=0, column="row 7", column_type="INT", hint="use BIGINT"
    )
    assert error.message == "table d.t: row 0, column 'row 7' (INT): too large; use BIGINT"
    assert (error.reason, error.row, error.column) == ("too large", 0, "row 7")
    assert errors.InvalidRowError("too large", column="a").message == "column 'a': too large"
    assert errors.InvalidRowError("too large", table="d.t").message == "table d.t: too large"
    assert errors.InvalidRowError("too large", hint="use BIGINT").message == "too large; use BIGINT"


@pytest.mark.parametrize("cls", [TableNotExistError, errors.DeadlineExceededError, errors.MissingDependencyError])
def test_a_replaced_attribute_leaves_the_others_and_the_original(cls: type[FlussError]) -> None:
    error = cls("it is gone", row=2, hint="call f()")
    copy = error.replace(hint="run g", table="d.t")
    assert type(copy) is cls
    assert copy.message == "table d.t: row 2: it is gone; run g"
    assert (copy.error_code, copy.args[0]) == (error.error_code, copy.message)
    assert error.message == "row 2: it is gone; call f()"
    assert pickle.loads(pickle.dumps(copy)).message == copy.message


def _codes_by_number(tree: ast.AST) -> Iterator[int]:
    """Lines that name an error code by its number."""

    def number(node: ast.AST) -> bool:
        if isinstance(node, ast.UnaryOp):
            node = node.operand
        if isinstance(node, ast.Set | ast.Tuple | ast.List):
            return any(number(item) for item in node.elts)
        return isinstance(node, ast.Constant) and type(node.value) is int

    def is_code(node: ast.AST) -> bool:
        return (isinstance(node, ast.Attribute) and node.attr == "error_code") or (
            isinstance(node, ast.Name) and node.id == "error_code"
        )

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "error_for_code":
            if node.args and number(node.args[0]):
                yield node.lineno
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(is_code, sides)) and any(map(number, sides)):
                yield node.lineno


def test_codes_are_named_and_never_numbered() -> None:
    package = Path(fluss.__file__).parent
    found = [
        f"{path.relative_to(package)}:{line}"
        for path in sorted(package.rglob("*.py"))
        for line in _codes_by_number(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []
