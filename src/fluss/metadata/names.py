# SPDX-License-Identifier: Apache-2.0
"""The rules for names of databases, tables and partition values."""

from __future__ import annotations

import re

from fluss.errors import InvalidDatabaseError, InvalidTableError

NAME_LENGTH_MAX = 200
RESERVED_PREFIX = "__"

_LEGAL = re.compile(r"[A-Za-z0-9_-]+")


def name_problem(name: str) -> str | None:
    """Why a name is not legal, or None."""
    if not name:
        return "it must not be empty"
    if name in (".", ".."):
        return "it must not be '.' or '..'"
    if len(name) > NAME_LENGTH_MAX:
        return f"it has {len(name)} characters, {NAME_LENGTH_MAX} are allowed"
    if not _LEGAL.fullmatch(name):
        return "it may contain only ASCII letters, digits, '_' and '-'"
    return None


def reserved_prefix_problem(name: str) -> str | None:
    """Why a name may not be created, or None: ``__`` is kept for internal use."""
    return f"the prefix '{RESERVED_PREFIX}' is reserved" if name.startswith(RESERVED_PREFIX) else None


def validate_database_name(name: str) -> None:
    """Check the name of a database that is to be created (code 16)."""
    problem = name_problem(name) or reserved_prefix_problem(name)
    if problem:
        raise InvalidDatabaseError(f"Database name {name!r:.300} is invalid: {problem}.")


def validate_table_name(name: str) -> None:
    """Check the name of a table that is to be created (code 15)."""
    problem = name_problem(name) or reserved_prefix_problem(name)
    if problem:
        raise InvalidTableError(f"Table name {name!r:.300} is invalid: {problem}.")
