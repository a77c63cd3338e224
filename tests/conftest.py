# SPDX-License-Identifier: Apache-2.0
"""How the suite is spread over processes: a file stays together, and all of Spark shares one session."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

# How long an example takes says more about the machine than about the code. The same examples each time: a failure
# belongs to the change that is tested. Other ones are drawn by `--hypothesis-profile=search`.
settings.register_profile("fluss", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("fluss")

ASYNC_SECONDS_MAX = 60
"""How long a test on an event loop may take, unless it is marked with another timeout."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run each async test on an asyncio loop of its own."""
    return "asyncio"


@pytest.fixture(autouse=True, scope="session")
def own_profiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the profiles of the home folder out of the tests, and theirs out of the home folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLUSS_CONFIG_DIR", str(tmp_path_factory.mktemp("profiles")))
        yield


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo what a server that was started in this process did to the loggers of the package."""
    logger = logging.getLogger("fluss")
    before = logger.handlers[:], logger.propagate, logger.level
    yield
    logger.handlers[:], logger.propagate = before[:2]
    logger.setLevel(before[2])


@pytest.fixture(scope="module")
def earlier_tests_collected() -> None:
    """Let what the tests of other modules left complain now, not while a test of this module runs."""
    gc.collect()


@pytest.fixture
def no_complaints(earlier_tests_collected: None, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail the test if asyncio logs errors of tasks or futures that were never retrieved."""
    yield
    records = [*caplog.get_records("call"), *caplog.get_records("teardown")]
    complaints = [record.getMessage() for record in records if record.name == "asyncio" and record.levelno >= 40]
    assert complaints == []


@pytest.fixture
async def no_tasks_left(anyio_backend: str) -> AsyncIterator[None]:
    """Fail an async test that leaves tasks behind on its loop."""
    before = len(asyncio.all_tasks())
    yield
    for _ in range(20):
        if len(asyncio.all_tasks()) <= before:
            break
        await asyncio.sleep(0.01)
    left = asyncio.all_tasks()
    assert len(left) <= before, f"tasks left behind: {left}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Handle SIGINT in every test and its child processes: a suite in the background, or a test before, ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


LONG = ("spark", "lake", "abuse", "crash", "faults", "simulation", "damage", "docs", "cli", "console", "db", "client")
"""Folders whose tests start processes, wait or draw many examples. They come first, and short files fill the end."""


class _Scheduling(LoadFileScheduling):
    """Give a file to one process, so that its fixtures are made once, and all of Spark to one, with one session."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/spark" if nodeid.startswith("tests/spark/") else super()._split_scope(nodeid)


# Not `--dist loadgroup` with a mark for Spark: with pytest 9.2 it ignores the marks and spreads each file over all
# processes (pytest-xdist 3.8, issue 1386).
@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _Scheduling:
    config.option.loadscopereorder = False  # the files with the most tests are not those that take longest
    return _Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG.index(item.path.parent.name) if item.path.parent.name in LONG else len(LONG))
    for item in items:
        is_async = isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.function)
        if is_async and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(ASYNC_SECONDS_MAX))


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of later garbage collections: with it, each takes a quarter second."""
    gc.collect()
    gc.freeze()
