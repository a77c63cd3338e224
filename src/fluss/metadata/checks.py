# SPDX-License-Identifier: Apache-2.0
"""Checks of the values that users make descriptors, rules and specs of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, TypeVar

from fluss.errors import InvalidArgumentError

EnumT = TypeVar("EnumT", bound=IntEnum)


def wrong_value(what: str, accepted: str, value: object) -> InvalidArgumentError:
    """Describe a value that is none of those accepted."""
    return InvalidArgumentError(f"{what} must be {accepted}, not {value!r:.80}")


def member_of(kind: type[EnumT], what: str, value: object) -> EnumT:
    """Return a member of an enum, which may be given by its number."""
    if isinstance(value, kind):
        return value
    if type(value) is int and value in kind._value2member_map_:
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


def list_of(what: str, accepted: str, values: Iterable[Any]) -> list[Any]:
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
