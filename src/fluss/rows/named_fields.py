# SPDX-License-Identifier: Apache-2.0
"""Objects with named fields as mappings: dataclasses, pydantic models and named tuples."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import sys
from collections.abc import Mapping
from typing import Any

_ATOMS = frozenset({bool, int, float, str, bytes, decimal.Decimal, dt.datetime, dt.date, dt.time, type(None)})
"""Types of values that a column takes as they are."""


def is_pydantic(value: object) -> bool:
    """Whether a class is a pydantic model; pydantic is not imported to find out."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, type) and issubclass(value, pydantic.BaseModel)


def as_mapping(row: object) -> Mapping[str, Any] | None:
    """The fields of an instance of a model, or the mapping itself; None if it is something else."""
    if isinstance(row, Mapping):
        return row
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        return {field.name: _plain(getattr(row, field.name)) for field in dataclasses.fields(row)}
    if is_pydantic(type(row)):
        return {name: _plain(value) for name, value in row.model_dump().items()}  # type: ignore[attr-defined]
    if isinstance(row, tuple) and hasattr(row, "_fields"):
        return dict(zip(row._fields, row))
    return None


def _plain(value: Any) -> Any:
    """A value of a field as a column takes it: what `python_data_type` reads from annotations, at any depth."""
    if type(value) in _ATOMS:  # nearly all values: every other question costs more than the whole row
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)) and not hasattr(value, "_fields"):
        if set(map(type, value)) <= _ATOMS:  # long lists of numbers, without a call for each
            return value if isinstance(value, (list, tuple)) else list(value)
        return [_plain(item) for item in value]
    mapping = as_mapping(value)
    return value if mapping is None or isinstance(value, tuple) else mapping
