# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tests.waiting import at_most, cancel_and_wait

from fluss.errors import ConnectionClosedError, DeadlineExceededError, InvalidArgumentError
from fluss.net import LoopThread, background
from fluss.net.background import CallerLoop


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    with LoopThread("test-io") as running:
        yield running


async def sleep_on(cancelled: threading.Event) -> None:
    """Sleeps until it is cancelled, and tells so."""
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        cancelled.set()
        raise


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return number * 2


def test_run_returns_results_and_raises_errors(thread: LoopThread) -> None:
    assert "not started" in repr(thread)
    assert thread.run(double(4)) == 8
    assert "running" in repr(thread)
    with pytest.raises(KeyError, match="lost"):
        thread.run(fail(KeyError("lost")))
    assert thread.submit(double(5)).result(5) == 10


def test_the_thread_is_a_daemon_with_a_name(thread: LoopThread) -> None:
    async def where() -> threading.Thread:
        return threading.current_thread()

    worker = thread.run(where())
    assert worker.daemon
    assert worker.name == "test-io"
    assert not thread.in_loop_thread()


def test_many_threads_share_one_loop(thread: LoopThread) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: thread.run(double(n)), range(50)))
    assert results == [n * 2 for n in range(50)]


async def fail(error: BaseException) -> None:
    raise error


def test_timeout_cancels(thread: LoopThread) -> None:
    cancelled = threading.Event()
    with pytest.raises(DeadlineExceededError, match=r"did not finish within 0\.05 s"):
        thread.run(sleep_on(cancelled), timeout=0.05)
    assert cancelled.wait(5)


def test_a_timeout_of_the_coroutine_itself_is_passed_on(thread: LoopThread) -> None:
    with pytest.raises(DeadlineExceededError, match="the server was slow"):
        thread.run(fail(DeadlineExceededError("the server was slow")), timeout=5)


def test_a_coroutine_that_cancels_itself(thread: LoopThread) -> None:
    with pytest.raises(concurrent.futures.CancelledError):
        thread.run(fail(asyncio.CancelledError()))


def test_an_interrupt_cancels(thread: LoopThread) -> None:
    cancelled = threading.Event()
    interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))

    async def slow() -> None:
        interrupt.start()  # not sooner: a call that is cancelled before its first step has nothing to tell
        await sleep_on(cancelled)

    with pytest.raises(KeyboardInterrupt):
        thread.run(slow())
    interrupt.join()
    assert cancelled.wait(5)


def test_what_fails_after_its_caller_left_is_not_reported(thread: LoopThread, caplog: pytest.LogCaptureFixture) -> None:
    failed = threading.Event()

    async def stubborn() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            failed.set()
            raise ValueError("on the way out") from None

    with pytest.raises(DeadlineExceededError):
        thread.run(stubborn(), timeout=0.05)
    assert failed.wait(5)
    thread.run(asyncio.sleep(0))
    gc.collect()
    assert caplog.text == ""


def test_a_deadline_that_passes_before_the_loop_gets_to_it(thread: LoopThread) -> None:
    started = threading.Event()
    thread.loop.call_soon_threadsafe(time.sleep, 0.2)

    async def late() -> None:
        started.set()

    with pytest.raises(DeadlineExceededError):
        thread.run(late(), timeout=0.01)
    thread.run(asyncio.sleep(0))
    assert not started.is_set()


def test_tasks_that_refuse_to_end_do_not_hold_their_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss.net.background._CLOSE_TIMEOUT_S", 0.1)
    thread = LoopThread()
    started = threading.Event()
    release = asyncio.Event()

    async def deaf() -> None:
        started.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(thread.run, deaf())
        assert started.wait(5)
        thread.close()
        with pytest.raises(ConnectionClosedError, match="closed while the call was in flight"):
            waiting.result(5)


def test_run_on_its_own_thread_is_refused(thread: LoopThread) -> None:
    async def nested() -> int:
        return thread.run(double(1))

    with pytest.raises(InvalidArgumentError, match="would never return"):
        thread.run(nested())


async def test_wrap_from_another_loop(thread: LoopThread) -> None:
    async def where(seen: list[threading.Thread]) -> str:
        seen.append(threading.current_thread())
        return "done"

    async def inside() -> int:
        return await thread.wrap(double(3))

    seen: list[threading.Thread] = []
    assert await thread.wrap(where(seen)) == "done"
    assert seen[0] is not threading.current_thread()
    assert thread.run(inside()) == 6


async def test_cancelling_wrap_reaches_the_coroutine(thread: LoopThread) -> None:
    cancelled = threading.Event()
    task = asyncio.ensure_future(thread.wrap(sleep_on(cancelled)))
    await asyncio.sleep(0.05)
    await cancel_and_wait(task)
    assert cancelled.wait(5)


def test_close_cancels_what_is_in_flight(thread: LoopThread) -> None:
    started = threading.Event()

    async def slow() -> None:
        started.set()
        await asyncio.sleep(30)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(thread.run, slow())
        assert started.wait(5)
        loop = thread.loop
        thread.close()
        with pytest.raises(ConnectionClosedError, match="closed while the call was in flight"):
            waiting.result(5)
    thread.close()
    assert loop.is_closed()
    assert thread.closed
    assert "closed" in repr(thread)
    with pytest.raises(ConnectionClosedError, match="open a new one"):
        thread.run(double(1))
    with pytest.raises(ConnectionClosedError):
        _ = thread.loop


def test_close_before_start_and_from_inside() -> None:
    LoopThread().close()
    thread = LoopThread()
    with pytest.raises(ConnectionClosedError, match="closed while the call was in flight"):
        thread.run(close_and_wait(thread))
    assert thread.closed


async def close_and_wait(thread: LoopThread) -> None:
    thread.close()
    await asyncio.sleep(30)


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    # Newer Pythons warn about fork in a process with threads; that is the very thing under test.
    command = [sys.executable, "-W", "error", "-W", "ignore:.*fork:DeprecationWarning", "-c", textwrap.dedent(script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_child_of_a_fork_gets_an_error_not_a_hang() -> None:
    done = run_script(
        """
        import asyncio, os, sys
        from fluss.errors import ConnectionClosedError
        from fluss.net import LoopThread

        async def value():
            return 5

        used, fresh = LoopThread(), LoopThread()
        assert used.run(value()) == 5
        child = os.fork()
        if child == 0:
            try:
                used.run(value())
            except ConnectionClosedError as error:
                assert "forked" in str(error), error
                assert used.closed
                used.close()
                assert fresh.run(value()) == 5
                fresh.close()
                os._exit(7)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7, status
        assert used.run(value()) == 5
        print("fine")
        """
    )
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr


def test_the_interpreter_exits_with_work_under_way() -> None:
    started = time.monotonic()
    done = run_script(
        """
        import asyncio
        from fluss.net import LoopThread

        async def slow():
            try:
                await asyncio.sleep(300)
            finally:
                print("cancelled", flush=True)

        thread = LoopThread()
        thread.submit(slow())
        thread.run(asyncio.sleep(0.05))
        print("leaving", flush=True)
        """
    )
    assert (done.stdout, done.stderr, done.returncode) == ("leaving\ncancelled\n", "", 0)
    assert time.monotonic() - started < 20


def test_no_deadline_passes_while_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader may be busy with one batch for longer than a request may take."""
    now = [1000.0]
    monkeypatch.setattr(background, "time", SimpleNamespace(monotonic=lambda: now[0]))
    loop = CallerLoop()
    fired: list[float] = []

    async def ask() -> float:
        asyncio.get_running_loop().call_later(30.0, lambda: fired.append(now[0]))
        return asyncio.get_running_loop().time()

    async def turns() -> float:
        for _ in range(5):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    try:
        asked = loop.run(ask())
        now[0] += 600.0
        assert loop.run(turns()) == asked
        assert not fired
        now[0] += 600.0

        async def wait_long() -> None:
            now[0] += 31.0
            await turns()

        loop.run(wait_long())
        assert fired, "time that is waited counts"
    finally:
        loop.close()


def test_a_loop_here_ends_with_what_is_under_way() -> None:
    loop = CallerLoop()
    ended: list[str] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("lingered")

    async def begin() -> asyncio.Task[None]:
        task = asyncio.create_task(linger())
        await asyncio.sleep(0)
        return task

    task = loop.run(begin())
    loop.close()
    assert (ended, task.cancelled(), loop.closed) == (["lingered"], True, True)
    loop.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")
def test_a_child_that_drops_the_loop_of_its_parent_does_not_disturb_it() -> None:
    """They share what the system knows of the loop's sockets."""
    loops = [CallerLoop()]
    assert loops[0].run(asyncio.to_thread(lambda: 1)) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # to fork beside a thread
        child = os.fork()
    if not child:
        warnings.simplefilter("ignore")
        loops.clear()
        gc.collect()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    try:
        # What a thread has done is told through the loop's own socket; without it, only the deadline wakes the loop.
        with at_most(4):
            loops[0].run(asyncio.wait_for(asyncio.to_thread(time.sleep, 0.05), 5))
    finally:
        loops[0].close()
