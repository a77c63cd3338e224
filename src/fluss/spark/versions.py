# SPDX-License-Identifier: Apache-2.0
"""What differs between the supported versions of PySpark, in one place.

| PySpark | lacks |
| --- | --- |
| 4.0 | Arrow batches for sinks of streams, TIME, a plan kept by its DataFrame, a source of the session's own |
| | in place of one that was found, and what 4.1 lacks |
| 4.1 | a start and a limit in `latestOffset`, `availableNow` in several micro-batches, lag; TIME is an option |
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import datasource as d
from pyspark.sql import types as s
from pyspark.sql.pandas.types import to_arrow_schema

VERSION: tuple[int, int] = tuple(int(part) for part in pyspark.__version__.split(".")[:2])  # type: ignore[assignment]
"""Major and minor version of PySpark."""

TimeType: Any = getattr(s, "TimeType", None)
"""Spark's type of times of day; None before 4.1."""

StreamArrowWriter: Any = getattr(d, "DataSourceStreamArrowWriter", None) or type(
    # 4.0 hands Arrow batches to every writer that is one of batches as well.
    "DataSourceStreamArrowWriter",
    (d.DataSourceStreamWriter, d.DataSourceArrowWriter),
    {},
)

_ARROW_ZONE = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def arrow_schema(schema: s.StructType) -> pa.Schema:
    """The Arrow schema of batches for Spark, with times in UTC: before 4.2 that goes without saying."""
    return to_arrow_schema(schema, **_ARROW_ZONE)


try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    KNOWS_START = True
    """Whether Spark says where a stream is when it asks how far the next micro-batch goes."""
except ImportError:
    KNOWS_START = False

    class ReadLimit:  # type: ignore[no-redef]
        """How much a micro-batch may hold."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef,misc]
        """Everything there is."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef,misc]
        """At most so many rows."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef,misc]
        """At most about so many bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Nothing: this version takes the whole backlog in one micro-batch."""


__all__ = [
    "KNOWS_START",
    "VERSION",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "StreamArrowWriter",
    "SupportsTriggerAvailableNow",
    "TimeType",
    "arrow_schema",
]
