# SPDX-License-Identifier: Apache-2.0
"""Errors of the driver's side in one sentence.

Spark plans Python sources in processes made for that alone and reports what they raise with its whole traceback. Errors
of our own tree say everything in their text; the traceback would bury it under a page of Spark's and our inner calls.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from fluss.errors import FlussError

P = ParamSpec("P")
T = TypeVar("T")


def driver_side(function: Callable[P, T]) -> Callable[P, T]:
    """For methods that Spark calls in a planning process: our own errors are shown without traceback."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except FlussError as error:
            # Read by pyspark.util.handle_worker_exception in this very process, which runs no user code.
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise error.with_traceback(None) from None

    return call
