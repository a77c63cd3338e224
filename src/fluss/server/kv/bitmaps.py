# SPDX-License-Identifier: Apache-2.0
"""Unions of serialised roaring bitmaps, for the aggregation functions rbm32 and rbm64."""

from __future__ import annotations

from typing import Any

from fluss.errors import FormatError, MissingDependencyError


def check_available(function: str) -> None:
    """Raise when this server cannot aggregate bitmaps."""
    _kinds(function)


def union32(acc: bytes, new: bytes) -> bytes:
    """The union of two bitmaps of 32-bit integers."""
    return _union("rbm32", _kinds("rbm32")[0], acc, new)


def union64(acc: bytes, new: bytes) -> bytes:
    """The union of two bitmaps of 64-bit integers."""
    return _union("rbm64", _kinds("rbm64")[1], acc, new)


def _kinds(function: str) -> tuple[Any, Any]:
    try:
        from pyroaring import BitMap, BitMap64
    except ImportError:
        raise MissingDependencyError(
            f"the aggregation function '{function}' needs the package pyroaring on the server: pip install pyroaring"
        ) from None
    return BitMap, BitMap64


def _union(function: str, kind: Any, acc: bytes, new: bytes) -> bytes:
    try:
        merged = kind.deserialize(acc) | kind.deserialize(new)
    except ValueError as error:
        raise FormatError(f"a value of a '{function}' column is not a serialised bitmap: {error}") from None
    merged.run_optimize()
    return bytes(merged.serialize())
