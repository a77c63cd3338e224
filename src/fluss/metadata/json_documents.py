# SPDX-License-Identifier: Apache-2.0
"""Reading and writing JSON documents with errors that name the place."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from fluss.errors import FormatError

_T = TypeVar("_T")

_KIND_NAMES = {dict: "an object", list: "a list", str: "a string", int: "a whole number", bool: "true or false"}


def parse_json(data: bytes | bytearray | memoryview | str, where: str) -> Any:
    """Parse UTF-8 JSON text; `where` names the document in error messages."""
    try:
        text = data if isinstance(data, str) else bytes(data).decode("utf-8")
        return json.loads(text)
    except UnicodeDecodeError as error:
        raise FormatError(f"{where}: not UTF-8 at byte {error.start}") from error
    except RecursionError:
        raise FormatError(f"{where}: the document is nested too deeply") from None
    except ValueError as error:
        # A JSONDecodeError says the place itself; other ValueErrors come from absurdly long numbers.
        raise FormatError(f"{where}: not a JSON document: {error}") from error


def json_bytes(document: Any) -> bytes:
    """The one way documents are written: UTF-8, sorted keys, no spaces; equal documents have equal bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def require(value: Any, kind: type[_T], where: str) -> _T:
    """`value` if it is of the kind, else a FormatError that names the place."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise FormatError(f"{where}: expected {_KIND_NAMES[kind]}, not {value!r:.80}")
    return value


def optional(value: Any, kind: type[_T], where: str) -> _T | None:
    """`value` if it is absent or of the kind, else a FormatError that names the place."""
    return None if value is None else require(value, kind, where)


def read_document(document: Any, where: str, version_max: int) -> dict[str, Any]:
    """Check that a document is an object of a version we can read."""
    found: dict[str, Any] = require(document, dict, where)
    version = require(found.get("version", 1), int, f"{where}.version")
    if not 1 <= version <= version_max:
        raise FormatError(f"{where}.version: version {version} is not supported, the newest known is {version_max}")
    return found


def read_strings(value: Any, where: str) -> dict[str, str]:
    """A map of strings to strings."""
    pairs = require(value, dict, where)
    return {key: require(text, str, f"{where}[{key!r}]") for key, text in pairs.items()}


def read_names(document: dict[str, Any], key: str, where: str) -> list[str]:
    """A list of strings under `key`; empty if absent."""
    names = require(document.get(key, []), list, f"{where}.{key}")
    return [require(name, str, f"{where}.{key}[{index}]") for index, name in enumerate(names)]
