# SPDX-License-Identifier: Apache-2.0
"""Options of a session for its reads and writes on Spark 4.0, which lets no session replace a source it found itself.

Later versions get a source that knows the options (`presets`). Here the readers and writers of Python add them as
their last step, where the format is `fluss` and the query does not give them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fluss.spark.catalog import session_options
from fluss.spark.options import is_option_of, names_table

_MARK = "_fluss_defaults"
_GIVEN = "_fluss_given"


def wrap_readers_and_writers() -> None:
    """Have `spark.read`, `spark.readStream`, `df.write` and `df.writeStream` add the options of their session."""
    from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    last: list[tuple[type, str, str]] = [
        (DataFrameReader, "load", "reads"),
        (DataStreamReader, "load", "reads"),
        (DataFrameWriter, "save", "writes"),
        (DataStreamWriter, "start", "writes"),
    ]
    if hasattr(DataFrameReader.load, _MARK):
        return
    for kind, name, side in last:
        for step in ("format", "option", "options"):
            setattr(kind, step, _noting(step, getattr(kind, step)))
        setattr(kind, name, _completing(getattr(kind, name), side))


def _noting(step: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = self.__dict__.setdefault(_GIVEN, {})
        if step == "format":
            given["format"] = str(args[0] if args else kwargs.get("source", "")).lower()
        else:
            names = kwargs if step == "options" else [args[0] if args else kwargs.get("key", "")]
            given.setdefault("options", set()).update(str(name).lower() for name in names)
        return original(self, *args, **kwargs)

    return call


def _completing(original: Callable[..., Any], side: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, path: Any = None, format: str | None = None, *args: Any, **kwargs: Any) -> Any:
        given = self.__dict__.get(_GIVEN, {})
        if (format or given.get("format", "")).lower() == "fluss":
            known = given.get("options", set()) | {name.lower() for name in kwargs}
            if path is not None or names_table(dict.fromkeys(known, "")):
                known |= {"table", "path"}
            for name, value in session_options(self._spark).items():
                if name.lower() not in known and is_option_of(name, side):
                    self.option(name, value)
        return original(self, path, format, *args, **kwargs)

    setattr(call, _MARK, True)
    return call
