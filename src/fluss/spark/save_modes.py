# SPDX-License-Identifier: Apache-2.0
"""The save modes `error` (Spark's default) and `ignore` of `df.write.format("fluss")`.

Spark refuses both for every Python source before the source hears of them. So the writer of a DataFrame, where its
format is `fluss`, looks for the table itself: if it is missing, it is created and appended to.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fluss.client.blocking_client import BlockingClient
from fluss.errors import TableAlreadyExistError
from fluss.spark.catalog import session_options
from fluss.spark.options import write_options
from fluss.spark.threads import activate

_MARK = "_fluss_wrapped"
_STATE = "_fluss_state"
_ERROR = ("error", "errorifexists", "default")


def wrap_writers() -> None:
    """Have Spark's writers do what the format `fluss` needs, in whichever thread they are used; others stay as is."""
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    if hasattr(DataFrameWriter.format, _MARK):
        return
    DataStreamWriter.format = _wrapped(DataStreamWriter.format, _activate_for_streams)
    steps: dict[str, Callable[..., None]] = {"format": _format, "mode": _mode, "option": _option, "options": _options}
    for name, before in steps.items():
        setattr(DataFrameWriter, name, _wrapped(getattr(DataFrameWriter, name), before))
    original = DataFrameWriter.save

    @functools.wraps(original)
    def save(
        self: Any,
        path: str | None = None,
        format: str | None = None,
        mode: str | None = None,
        partitionBy: Any = None,  # noqa: N803
        **options: Any,
    ) -> None:
        # As Spark does it, but step by step: each of these is seen by the functions below.
        self.options(**options)
        if mode is not None:
            self.mode(mode)
        if format is not None:
            self.format(format)
        if _state(self).get("format") != "fluss" or _may_write(self, path):
            original(self, path, None, None, partitionBy)

    DataFrameWriter.save = save


def _wrapped(original: Callable[..., Any], before: Callable[..., None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        before(self, *args, **kwargs)
        return original(self, *args, **kwargs)

    setattr(call, _MARK, True)
    return call


def _state(writer: Any) -> dict[str, Any]:
    state: dict[str, Any] = writer.__dict__.setdefault(_STATE, {"mode": "error", "options": {}})
    return state


def _activate_for_streams(writer: Any, source: str) -> None:
    if source.lower() == "fluss":
        activate(writer._spark)


def _format(writer: Any, source: str) -> None:
    _state(writer)["format"] = source.lower()
    if source.lower() == "fluss":
        activate(writer._spark)


def _mode(writer: Any, saveMode: str | None = None) -> None:  # noqa: N803
    if saveMode is not None:
        _state(writer)["mode"] = saveMode.lower()


def _option(writer: Any, key: str, value: Any) -> None:
    _state(writer)["options"][key.lower()] = value


def _options(writer: Any, **options: Any) -> None:
    for key, value in options.items():
        _option(writer, key, value)


def _may_write(writer: Any, path: str | None) -> bool:
    """Whether a save goes on, as an append, after the table was looked for."""
    state = _state(writer)
    mode = state["mode"]
    if mode not in (*_ERROR, "ignore"):
        return True
    given = {key: _text(value) for key, value in state["options"].items() if value is not None}
    if path is not None:
        given["path"] = path
    preset = {name.lower(): value for name, value in session_options(writer._spark).items()}
    options = write_options({**preset, **given})
    with BlockingClient(options.client) as client:
        exists = client.run(client.admin.table_exists(options.table_path))
    if exists and mode == "ignore":
        return False
    if exists:
        raise TableAlreadyExistError(
            f"table {options.table_path} exists, and the save mode is 'error', Spark's default; use mode('append') to "
            "add rows, mode('overwrite') to replace them, or mode('ignore') to leave it alone"
        )
    writer.option("create.table", "true").mode("append")
    return True


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
