# SPDX-License-Identifier: Apache-2.0
"""Frames of polars as Arrow."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from fluss.errors import InvalidArgumentError


def polars_to_arrow(frame: Any) -> pa.Table:
    """A polars DataFrame as an Arrow table.

    A column of type Object is refused: polars exports the memory addresses of its values as bytes.
    """
    for name, kind in frame.schema.items():
        if "Object" in str(kind) and _holds_objects(kind):
            raise InvalidArgumentError(
                f"column {name!r} has the polars type Object, which Arrow does not know; convert its values first, "
                "such as to texts or structs"
            )
    return frame.to_arrow()


def _holds_objects(kind: Any) -> bool:
    if type(kind).__name__ == "Object" or getattr(kind, "__name__", "") == "Object":
        return True
    fields = getattr(kind, "fields", None) or ()
    inner = getattr(kind, "inner", None)
    return (inner is not None and _holds_objects(inner)) or any(_holds_objects(field.dtype) for field in fields)
