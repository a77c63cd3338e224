# SPDX-License-Identifier: Apache-2.0
"""One connection per Python process and set of client options.

Spark forks its Python workers and uses each for many tasks; what a task needs is opened once in its worker.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from fluss.client.blocking_client import BlockingClient, shared_client
from fluss.client.scan.decode import decode_when_taken

_DAEMONS = ("pyspark.daemon", f"{__package__}.daemon")
"""The programs that Spark forks its workers from."""


def client_of(options: dict[str, Any]) -> BlockingClient:
    """The connection of this process for these client options."""
    return _kept(options, here=False)


def reader_of(options: dict[str, Any]) -> BlockingClient:
    """The connection of this process for a task that reads."""
    return _kept(options, here=_is_worker())


def _kept(options: dict[str, Any], *, here: bool) -> BlockingClient:
    return shared_client(BlockingClient, options, here=here, on_open=_prepare_worker if _is_worker() else None)


def _prepare_worker() -> None:
    freeze_loaded_modules()
    decode_when_taken()


def _is_worker() -> bool:
    """Tell whether this process is one of Spark's own, for planning or for tasks, and not a user's."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(spec, "name", None) in _DAEMONS


def freeze_loaded_modules() -> None:
    """Exclude everything loaded so far from garbage collection (`gc.freeze`).

    A Spark worker collects garbage after every task. That takes 50 ms for the objects of all loaded modules, none of
    which ever becomes garbage, and next to nothing once they are frozen.
    """
    gc.collect()
    gc.freeze()
