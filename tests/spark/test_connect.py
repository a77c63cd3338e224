# SPDX-License-Identifier: Apache-2.0
"""The connection of a process."""

from __future__ import annotations

import gc
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

import fluss
from fluss.spark import connect


@pytest.mark.parametrize(
    ("main", "frozen"), [("pyspark.daemon", 1), ("fluss.spark.daemon", 1), ("pytest", 0), (None, 0)]
)
def test_a_worker_of_spark_sets_aside_what_it_has_loaded_and_no_other_process_does(
    server: fluss.LocalServer, monkeypatch: pytest.MonkeyPatch, main: str | None, frozen: int
) -> None:
    """Once, with its first connection: Spark has it collect garbage after every task."""
    module = ModuleType("__main__")
    module.__spec__ = None if main is None else ModuleSpec(main, None)
    monkeypatch.setitem(sys.modules, "__main__", module)
    calls: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    options = {"bootstrap.servers": server.bootstrap_servers, "writer.retries": 1_000 + len(str(main))}
    client = connect.client_of(options)
    try:
        assert connect.client_of(options) is client
        assert len(calls) == frozen
    finally:
        client.close()
