# SPDX-License-Identifier: Apache-2.0
"""How the suite is spread over processes: a file stays together, and all of Spark shares one session."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("fluss", deadline=None)
settings.load_profile("fluss")

HERE = Path(__file__).resolve().parent
ONE_PROCESS = ("spark",)
"""Folders whose tests share something expensive that must not be started twice."""


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo what a server that was started in this process did to the loggers of the package."""
    logger = logging.getLogger("fluss")
    before = logger.handlers[:], logger.propagate, logger.level
    yield
    logger.handlers[:], logger.propagate = before[:2]
    logger.setLevel(before[2])


@pytest.fixture
def no_complaints(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail the test if asyncio logs errors of tasks or futures that were never retrieved."""
    yield
    complaints = [record.getMessage() for record in caplog.records if record.name == "asyncio" and record.levelno >= 40]
    assert complaints == []


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Handle SIGINT: a process that was started in the background ignores it, and Python then installs no handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        path = item.path.relative_to(HERE)
        group = path.parts[0] if path.parts[0] in ONE_PROCESS else str(path)
        item.add_marker(pytest.mark.xdist_group(group))
