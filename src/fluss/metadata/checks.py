# SPDX-License-Identifier: Apache-2.0
"""Checks of the values that users make descriptors, rules and specs of, and of the documents that they become."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, ClassVar, TypeVar

from fluss.errors import FormatError, InvalidArgumentError

EnumT = TypeVar("EnumT", bound=IntEnum)


def wrong_value(what: str, accepted: str, value: object) -> InvalidArgumentError:
    """Describe a value that is none of those accepted."""
    return InvalidArgumentError(f"{what} must be {accepted}, not {value!r:.80}")


def member_of(kind: type[EnumT], what: str, value: object) -> EnumT:
    """Return a member of an enum, which may be given by its number."""
    if isinstance(value, kind):
        return value
    if type(value) is int:
        with contextlib.suppress(ValueError):  # which is reported below
            return kind(value)
    raise wrong_value(what, f"a {kind.__name__} such as {kind.__name__}.{next(iter(kind)).name}", value)


def check_string(what: str, value: object) -> None:
    """Refuse what is not a string."""
    if not isinstance(value, str):
        raise wrong_value(what, "a string", value)


def check_optional_string(what: str, value: object) -> None:
    """Refuse what is neither a string nor None."""
    if value is not None:
        check_string(what, value)


def list_of(what: str, accepted: str, values: Iterable[Any] | None) -> list[Any]:
    """Return the items of a list; a lone string would silently be taken for its characters."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise wrong_value(what, accepted, values)
    return list(values)


def mapping_of(what: str, values: Mapping[Any, Any] | None) -> Mapping[Any, Any]:
    """Return a mapping; None stands for an empty one."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        # Properties may be secrets: what was given is not shown.
        raise InvalidArgumentError(f"{what} must be a dict, not {type(values).__name__}")
    return values


_T = TypeVar("_T")
_D = TypeVar("_D", bound="JsonDocument")

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


class JsonDocument:
    """Something with a JSON document; its text is written in one way."""

    __slots__ = ()

    document_name: ClassVar[str]
    """What errors call the document."""

    def to_json(self) -> dict[str, Any]:
        """The document."""
        raise NotImplementedError

    @classmethod
    def from_json(cls: type[_D], document: Any, where: str = "") -> _D:
        """Read the document; `where` names it in error messages."""
        raise NotImplementedError

    def to_json_bytes(self) -> bytes:
        """The document as UTF-8 text."""
        return json_bytes(self.to_json())

    @classmethod
    def from_json_bytes(cls: type[_D], data: bytes | bytearray | memoryview) -> _D:
        """Read the document from UTF-8 text."""
        return cls.from_json(parse_json(data, cls.document_name))


def require(value: Any, kind: type[_T], where: str) -> _T:
    """`value` if it is of the kind, else a FormatError that names the place."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise FormatError(f"{where}: expected {_KIND_NAMES[kind]}, not {value!r:.80}")
    return value


def member(document: dict[str, Any], key: str, kind: type[_T], where: str) -> _T:
    """What a document has under `key`, which must be of the kind."""
    return require(document.get(key), kind, f"{where}.{key}")


def optional_member(document: dict[str, Any], key: str, kind: type[_T], where: str) -> _T | None:
    """What a document has under `key`: of the kind, or None if there is nothing."""
    value = document.get(key)
    return None if value is None else require(value, kind, f"{where}.{key}")


def read_objects(value: Any, where: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the objects of a list, each with its place."""
    for index, item in enumerate(require(value, list, where)):
        place = f"{where}[{index}]"
        yield require(item, dict, place), place


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
