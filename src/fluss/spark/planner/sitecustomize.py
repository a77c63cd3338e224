# SPDX-License-Identifier: Apache-2.0
"""Runs at the start of every Python process of a Spark driver; does nothing but for those that plan.

Python runs only the first module of this name that it finds, so the one it hides is run from here.
"""

from __future__ import annotations

import contextlib
import os
import sys


def _run_hidden() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    mine = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if mine is not None:
            sys.modules["sitecustomize"] = mine


def _prepare() -> None:
    arguments = getattr(sys, "orig_argv", [])
    if not any(one.startswith("pyspark.") for one in arguments):
        return
    from fluss.spark.planner import is_spark, planning_step, prefer_compiled, preload

    if is_spark(arguments):
        prefer_compiled()
    step = planning_step(arguments)
    if step is not None:
        preload(step)


_run_hidden()
# Without this the process does the same, just slower: whatever is missing here, Spark reports it better.
with contextlib.suppress(Exception):
    _prepare()
