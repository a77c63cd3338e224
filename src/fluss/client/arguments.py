# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments where calls of users arrive: what the annotation of a parameter says is what it takes.

`@checked` and `@all_checked` read the annotations at the first call; an annotation that is not understood (`Any`, a
data frame) is not checked here. Calls that are made once per row are not decorated: reading the row finds out.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from fluss.errors import InvalidArgumentError
from fluss.metadata.path import TableBucket, TablePath, table_path_of
from fluss.net.deadline import Deadline

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
ClassT = TypeVar("ClassT", bound=type)

REFUSED = object()
"""What a kind gives for a value that it does not take."""


class Kind(NamedTuple):
    """What a parameter takes: in words, and the value as the call shall have it."""

    one: str
    many: str
    take: Callable[[Any], Any]


def wrong_argument(call: str, name: str, accepted: str, value: object) -> InvalidArgumentError:
    """Describe a value that a parameter of a call does not take."""
    return InvalidArgumentError(f"{call}(): {name} must be {accepted}, got {_shown(value)}")


_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80
_ITEMS_SHOWN = 6
_PLAIN = frozenset({bool, float, int, str, type(None)})


def _shown(value: object) -> str:
    """Show a value with its type. A dict with texts for keys may be options, and those secrets: values stay out."""
    kind = type(value).__name__
    if value is None:
        return "None"
    if isinstance(value, Mapping):
        pairs = itertools.islice(value.items(), _ITEMS_SHOWN)
        items = ", ".join(f"{_short.repr(key)}: {_item(one, type(key) is str)}" for key, one in pairs)
        return f"{kind} {{{items}}}"
    if isinstance(value, (list, tuple)):
        return f"{kind} [{', '.join(_item(one) for one in value[:_ITEMS_SHOWN])}]"
    return f"{kind} {_short.repr(value)}"


def _item(value: object, is_option: bool = False) -> str:
    return _short.repr(value) if type(value) in _PLAIN and not is_option else type(value).__name__


def _is_integer(value: Any) -> bool:
    # Integers of numpy are integers too; True and False are not, though Python counts with them.
    return (isinstance(value, int) or hasattr(type(value), "__index__")) and not isinstance(value, bool)


def _integer(bits: int) -> Kind:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def take(value: Any) -> Any:
        if type(value) is not int:
            if not _is_integer(value):
                return REFUSED
            value = value.__index__()
        return value if low <= value <= high else REFUSED

    return Kind(f"an integer of at most {bits} bits", f"integers of at most {bits} bits", take)


def is_number(value: Any) -> bool:
    """Whether a value is a number; True and False are none, though Python counts with them."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_seconds(value: Any) -> bool:
    """Whether a value is a time to wait that may be none at all."""
    return is_number(value) and value >= 0


def _number(value: Any) -> Any:
    return value if is_number(value) else REFUSED


def _seconds(value: Any) -> Any:
    return value if isinstance(value, Deadline) or (is_number(value) and value > 0) else REFUSED


def _flag(value: Any) -> Any:
    # 0 and 1 are common for flags, and numpy has a type of its own.
    is_flag = isinstance(value, (bool, int)) or type(value).__name__ in ("bool", "bool_")
    return bool(value) if is_flag and value in (0, 1) else REFUSED


def _path(value: Any) -> Any:
    return table_path_of(value) if isinstance(value, (str, TablePath)) else REFUSED


def _bucket(value: Any) -> Any:
    if not isinstance(value, TableBucket) or _INT32.take(value.bucket_id) is REFUSED:
        return REFUSED
    ids = (value.table_id, 0 if value.partition_id is None else value.partition_id)
    return REFUSED if any(_INT64.take(number) is REFUSED for number in ids) else value


def _instance(name: str) -> Kind:
    """Make the kind of a class by its name: the annotation alone must not import the module that defines it."""
    an = "an" if name[0] in "AEIO" else "a"

    def take(value: Any) -> Any:
        return value if any(base.__name__ == name for base in type(value).__mro__) else REFUSED

    return Kind(f"{an} {name}{_CLASSES[name]}", f"{name} objects", take)


def _list_of(item: Kind, *refused: type) -> Kind:
    def take(values: Any) -> Any:
        if isinstance(values, (str, bytes, *refused)) or not isinstance(values, Iterable):
            return REFUSED
        taken = [item.take(value) for value in values]
        return REFUSED if any(value is REFUSED for value in taken) else taken

    return Kind(f"a list of {item.many}", f"lists of {item.many}", take)


def _tuple_of(items: list[Kind]) -> Kind:
    def take(values: Any) -> Any:
        if not isinstance(values, tuple) or len(values) != len(items):
            return REFUSED
        taken = tuple(item.take(value) for item, value in zip(items, values, strict=True))
        return REFUSED if any(value is REFUSED for value in taken) else taken

    text = ", ".join(item.one for item in items)
    return Kind(f"a pair ({text})", f"pairs ({text})", take)


def _dict_of(key: Kind, value: Kind) -> Kind:
    def take(values: Any) -> Any:
        if not isinstance(values, Mapping):
            return REFUSED
        taken = {key.take(one): value.take(other) for one, other in values.items()}
        return REFUSED if REFUSED in taken or any(one is REFUSED for one in taken.values()) else taken

    return Kind(f"a dict of {key.many} to {value.many}", f"dicts of {key.many} to {value.many}", take)


def _any_of(kinds: list[Kind]) -> Kind:
    def take(value: Any) -> Any:
        for kind in kinds:
            if (taken := kind.take(value)) is not REFUSED:
                return taken
        return REFUSED

    # The first that takes a value decides: "str | TablePath" leaves a string as it is.
    # "a TablePath or a string" says the same twice: the words for a path name the string already.
    shown = [kind for kind in kinds if kind.one != "a string" or not any(k.take is _path for k in kinds)]
    return Kind(" or ".join(kind.one for kind in shown), " or ".join(kind.many for kind in shown), take)


_INT32, _INT64 = _integer(32), _integer(64)

_NARROW = frozenset({"bucket_id", "bucket_ids", "schema_id", "tablet_servers"})
"""The parameters whose integers have 32 bits in the protocol."""

_NAMED: dict[str, Kind] = {
    "int": _INT64,
    "float": Kind("a number", "numbers", _number),
    "bool": Kind("True or False", "True or False", _flag),
    "str": Kind("a string", "strings", lambda value: value if isinstance(value, str) else REFUSED),
    "None": Kind("None", "None", lambda value: value if value is None else REFUSED),
    "Any": Kind("a value", "values", lambda value: value),
    "TablePath": Kind("a TablePath or 'database.table'", "TablePath objects or texts 'database.table'", _path),
    "TableBucket": Kind("a TableBucket", "TableBucket objects", _bucket),
    "Callable": Kind("a function", "functions", lambda value: value if callable(value) else REFUSED),
}

_TIMEOUT = _any_of([Kind("a positive number of seconds", "positive numbers of seconds", _seconds), _NAMED["None"]])

_CLASSES = {
    "AclBinding": "",
    "AclFilter": "",
    "AlterConfig": "",
    "Column": "",
    "DatabaseDescriptor": "",
    "GoalType": "",
    "KvSnapshot": "",
    "PartitionSpec": "",
    "Predicate": ", such as fluss.col('id') > 3",
    "TableDescriptor": ", such as TableDescriptor(schema)",
    "TieringStats": "",
    "TieringTable": "",
}
"""The classes whose objects are checked, each with an example where one helps."""


_REFERENCE_NAMES = {"name": "database_name"}
"""Keywords of the reference documents, and the names that the parameters have in the official type stubs and here."""


def _kind_of(node: ast.expr, narrow: bool) -> Kind | None:
    """Make the kind of an annotation; None if it says nothing that can be checked."""
    if isinstance(node, ast.BinOp):
        parts = [_kind_of(part, narrow) for part in _alternatives(node)]
        known = [part for part in parts if part is not None]
        return _any_of(known) if len(known) == len(parts) else None
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        outer = node.value.id
        if outer == "Callable":
            return _NAMED["Callable"]
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        items = [_kind_of(item, narrow) for item in inner]
        known = [item for item in items if item is not None]
        if len(known) < len(items):
            return None
        if outer == "Iterable":
            return _list_of(known[0])
        if outer in ("Sequence", "list"):
            return _list_of(known[0], Mapping)
        if outer in ("Mapping", "dict"):
            return _dict_of(known[0], known[1])
        return _tuple_of(known) if outer == "tuple" else None
    name = node.id if isinstance(node, ast.Name) else str(getattr(node, "value", ""))
    if name == "int" and narrow:
        return _INT32
    return _instance(name) if name in _CLASSES else _NAMED.get(name)


def _alternatives(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [*_alternatives(node.left), *_alternatives(node.right)]
    return [node]


def _kinds_of(function: Callable[..., Any]) -> tuple[list[str], dict[str, Kind]]:
    """Return the names of the parameters in order, without `self`, and the kinds of those that are checked."""
    parameters = inspect.signature(function).parameters
    kinds = {}
    for name, parameter in parameters.items():
        if name == "timeout":
            kinds[name] = _TIMEOUT
        elif isinstance(parameter.annotation, str):
            kind = _kind_of(ast.parse(parameter.annotation, mode="eval").body, name in _NARROW)
            if kind is not None and kind is not _NAMED["Any"]:
                kinds[name] = kind
    return list(parameters)[1:], kinds


def checked(function: FunctionT) -> FunctionT:
    """Let a method refuse arguments that its annotations rule out, before it does anything.

    Lists and mappings reach it as a list and a dict of its own: an iterator can be read only once.
    """
    call_name = function.__name__
    found: list[tuple[list[str], dict[str, Kind]]] = []

    def taken(arguments: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        if not found:
            found.append(_kinds_of(function))
        names, kinds = found[0]
        values = list(arguments)
        # A surplus argument is left for Python to refuse.
        for position, name in enumerate(names[: len(values)]):
            if name in kinds:
                values[position] = _taken(call_name, name, kinds[name], values[position])
        for name in list(named):
            if name not in names and _REFERENCE_NAMES.get(name) in names:
                named[_REFERENCE_NAMES[name]] = named.pop(name)
        for name in named:
            if name in kinds:
                named[name] = _taken(call_name, name, kinds[name], named[name])
        return values

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call(self: Any, *arguments: Any, **named: Any) -> Any:
            return await function(self, *taken(arguments, named), **named)

        return call  # type: ignore[return-value]

    @functools.wraps(function)
    def plain_call(self: Any, *arguments: Any, **named: Any) -> Any:
        return function(self, *taken(arguments, named), **named)

    return plain_call  # type: ignore[return-value]


def _taken(call: str, name: str, kind: Kind, value: Any) -> Any:
    taken = kind.take(value)
    if taken is REFUSED:
        raise wrong_argument(call, name, kind.one, value)
    return taken


def all_checked(cls: ClassT) -> ClassT:
    """Apply `checked` to all public methods that a class itself defines and that take arguments."""
    for name, member in list(vars(cls).items()):
        if not name.startswith("_") and inspect.isfunction(member):
            texts = {text for other, text in member.__annotations__.items() if other != "return"}
            if texts - {"Any", "object"}:
                setattr(cls, name, checked(member))
    return cls
