# SPDX-License-Identifier: Apache-2.0
"""Connections from a client to a server, and the thread that runs them for callers without an event loop."""

from __future__ import annotations

from fluss.net.background import LoopThread
from fluss.net.connection import Connection

__all__ = ["Connection", "LoopThread"]
