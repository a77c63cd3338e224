# SPDX-License-Identifier: Apache-2.0
"""Primary keys as users write them: a value, a tuple, a dict, a model; or many of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from fluss._text import did_you_mean
from fluss.db.inputs import frame_of
from fluss.db.schemas import frame_to_arrow
from fluss.errors import InvalidArgumentError, NonPrimaryKeyTableError
from fluss.metadata import TableInfo
from fluss.rows.named_fields import as_mapping


def require_key(info: TableInfo, call: str, instead: str) -> None:
    """Refuse a call that only primary-key tables have."""
    if "$" in info.table_path.table_name:
        raise InvalidArgumentError(f"{info.table_path} can only be read, so {call} cannot be used")
    if not info.has_primary_key():
        raise NonPrimaryKeyTableError(
            f"table {info.table_path} has no primary key, so {call} cannot be used: {instead}. A primary key is chosen "
            "when a table is created: create_table(…, primary_key='id')"
        )


def check_rules(info: TableInfo, what: str, *, deletes: bool = False) -> None:
    """Refuse to update or delete rows of a table whose own rules would make something else of it."""
    config = info.config
    if deletes and config.delete_behavior == "IGNORE":  # DISABLE is an error of the server
        raise InvalidArgumentError(
            f"{what} cannot be done: the server does not delete rows of this table ('table.delete.behavior' is IGNORE)"
        )
    if not deletes and config.merge_engine is not None:
        raise InvalidArgumentError(
            f"{what} cannot be done: its merge engine {config.merge_engine!r} decides what becomes of a row that is "
            "written. upsert() and INSERT INTO write rows by its rules"
        )


def key_of(key: Any, columns: Sequence[str], known: Sequence[str]) -> Any:
    """One key in the form that lookups take: a tuple, or a dict with the key columns."""
    if type(key) is tuple:
        if len(key) != len(columns):
            raise InvalidArgumentError(_needs(key, columns))
        return key
    if type(key) in (int, str) and len(columns) == 1:
        return (key,)
    mapping = as_mapping(key)
    if mapping is not None:
        for name in mapping:
            if name not in known:
                raise InvalidArgumentError(f"the key has {name!r}, which is no column{did_you_mean(name, known)}")
        missing = [name for name in columns if name not in mapping]
        if missing:
            raise InvalidArgumentError(f"the key lacks {missing[0]!r}; it needs {', '.join(columns)}")
        return {name: mapping[name] for name in columns}
    if isinstance(key, list):
        raise InvalidArgumentError(f"one key is a value, a tuple or a dict, not the list {key!r:.60}")
    if len(columns) != 1:
        raise InvalidArgumentError(_needs(key, columns))
    return (key,)


def _needs(key: Any, columns: Sequence[str]) -> str:
    if len(columns) == 1:
        return f"the key is the value of {columns[0]!r}, or a tuple of one value, not {key!r:.60}"
    return f"the key has {len(columns)} columns: give a tuple ({', '.join(columns)}) or a dict, not {key!r:.60}"


def keys_of_many(keys: Any, columns: Sequence[str], known: Sequence[str]) -> Any:
    """Many keys: an Arrow table, or a list of keys."""
    frame = frame_to_arrow(keys, columns)
    if frame is not None:
        return frame
    if isinstance(keys, (str, bytes, Mapping)) or not isinstance(keys, Iterable):
        raise InvalidArgumentError(f"many keys are a list, an Arrow table or a data frame, not {keys!r:.60}")
    return [key_of(key, columns, known) for key in _plain_values(keys)]


def rows_of_keys(keys: Any, columns: Sequence[str], known: Sequence[str]) -> Any:
    """What `delete` was given, as rows or frames that hold the key columns."""
    frame = frame_of(keys, columns)
    if frame is not None or isinstance(keys, pa.RecordBatchReader):
        return keys if frame is None else frame
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable) or as_mapping(keys) is not None:
        return [key_of(keys, columns, known)]
    is_key = isinstance(keys, tuple) and len(columns) > 1 and len(keys) == len(columns)
    if is_key and not any(isinstance(item, tuple) or as_mapping(item) is not None for item in keys):
        return [keys]
    items = iter(_plain_values(keys))
    head = list(itertools.islice(items, 1))
    rest = itertools.chain(head, items)
    if head and as_mapping(head[0]) is None and frame_of(head[0], columns) is not None:
        return rest
    return (key_of(key, columns, known) for key in rest)


def _plain_values(keys: Any) -> Any:
    """Keys with Python values: numpy arrays, and columns of Arrow, pandas and polars."""
    for method in ("tolist", "to_list", "to_pylist"):
        if hasattr(keys, method):
            return getattr(keys, method)()
    return keys
