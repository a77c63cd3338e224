# SPDX-License-Identifier: Apache-2.0
"""An event loop on a virtual clock, and hosts whose processes can be killed on it."""

from __future__ import annotations

import asyncio
import contextvars
import random
import selectors
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any

_EPOCH_S = 1_700_000_000
"""The wall clock at the start of a simulation."""
_WORK_S = 0.0005
"""How long a piece of work in a thread takes, on average."""


class SimulationStuckError(AssertionError):
    """Every task waits, and no timer would wake one."""


class Process:
    """What dies or stops as a whole: callbacks that were scheduled by a dead process never run.

    Its monotonic clock may read another time than those of other processes, and run faster or slower.
    """

    def __init__(self, name: str, clock_s: float = 0.0, rate: float = 1.0) -> None:
        self.name = name
        self.alive = True
        self.held: list[tuple[contextvars.Context, Callable[..., Any], tuple[Any, ...]]] | None = None
        """While it is stopped: what it has to do when it goes on."""
        self.clock_s = clock_s
        """What its clock reads at the beginning of the simulation."""
        self.rate = rate

    def __repr__(self) -> str:
        return f"Process({self.name}, {'alive' if self.alive else 'dead'})"


_NETWORK = Process("network")
_CURRENT: contextvars.ContextVar[Process] = contextvars.ContextVar("process", default=_NETWORK)


def current() -> Process:
    """The process that the caller is part of."""
    return _CURRENT.get()


def run_in_network(call: Callable[..., Any], *args: Any) -> Any:
    """Call a function as part of no process that could end."""
    return run_in(_NETWORK, call, *args)


def run_in(process: Process, call: Callable[..., Any], *args: Any) -> Any:
    """Call a function as part of a process: what it schedules belongs to that process."""
    context = contextvars.copy_context()
    context.run(_CURRENT.set, process)
    return context.run(call, *args)


class SimLoop(asyncio.SelectorEventLoop):
    """Runs callbacks in a deterministic order. Time passes only while nothing is ready."""

    def __init__(self, rng: random.Random) -> None:
        self._now_s = 0.0
        self.rng = rng
        self.steps = 0
        self._watched: dict[int, Process] = {}
        self._unwatched: dict[int, selectors.SelectorKey] = {}
        """Sockets of processes that are stopped."""
        self._sockets = _SimSelector(self)
        super().__init__(self._sockets)
        self.connect: Callable[[str, int], Any] | None = None
        """Opens the client's half of a virtual connection: a coroutine function, set by the network."""
        self._run_executor = SimExecutor(self)

    def time(self) -> float:
        process = _CURRENT.get()
        return process.clock_s + self._now_s * process.rate

    def advance(self, seconds: float) -> None:
        self._now_s += seconds

    def now_ms(self) -> int:
        return _EPOCH_S * 1000 + int(self._now_s * 1000)

    def now_ns(self) -> int:
        return int(self._now_s * 1e9)

    # Callbacks belong to the process that scheduled them -----------------------------------------------------------

    def call_soon(self, callback: Any, *args: Any, context: contextvars.Context | None = None) -> asyncio.Handle:
        return super().call_soon(_guarded(callback, context), *args, context=context)

    def call_soon_threadsafe(
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return super().call_soon_threadsafe(_guarded(callback, context), *args, context=context)

    def call_at(
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        process = _CURRENT.get()
        moment = (when - process.clock_s) / process.rate
        return super().call_at(moment, _guarded(callback, context), *args, context=context)

    def kill(self, process: Process) -> None:
        """End a process: its callbacks never run again, and its sockets are not watched any more."""
        process.alive = False
        process.held = None
        for fd in self._fds(process):
            del self._watched[fd]
            self._unwatched.pop(fd, None)
            self._remove_reader(fd)  # type: ignore[attr-defined]
            self._remove_writer(fd)  # type: ignore[attr-defined]
            transport = self._transports.pop(fd, None)  # type: ignore[attr-defined]
            if transport is not None and transport._sock is not None:
                transport._sock.close()
                transport._sock = None  # it does not warn then of what was not closed

    def stop_process(self, process: Process) -> None:
        """Let nothing of a process run, as SIGSTOP does, until `continue_process`."""
        process.held = []
        for fd in self._fds(process):
            with suppress(KeyError):
                self._unwatched[fd] = self._sockets.unregister(fd)

    def continue_process(self, process: Process) -> None:
        held, process.held = process.held or [], None
        for fd in self._fds(process):
            if fd in self._unwatched:
                key = self._unwatched.pop(fd)
                self._sockets.register(fd, key.events, key.data)
        for context, callback, args in held:
            self.call_soon(callback, *args, context=context)

    def _fds(self, process: Process) -> list[int]:
        return [fd for fd, owner in self._watched.items() if owner is process]

    def _add_reader(self, fd: Any, callback: Any, *args: Any) -> Any:
        self._watched[fd] = _CURRENT.get()
        return super()._add_reader(fd, _guarded(callback, None), *args)  # type: ignore[misc]

    def _add_writer(self, fd: Any, callback: Any, *args: Any) -> Any:
        self._watched[fd] = _CURRENT.get()
        return super()._add_writer(fd, _guarded(callback, None), *args)  # type: ignore[misc]

    # What would leave the process ---------------------------------------------------------------------------------

    def run_in_executor(self, executor: Executor | None, func: Any, *args: Any) -> Any:
        return super().run_in_executor(self._run_executor, func, *args)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **kwargs: Any) -> Any:
        assert self.connect is not None, "this simulation has no network"
        sock = await self.connect(str(host), int(port))
        return await super().create_connection(protocol_factory, sock=sock)


class SimExecutor(Executor):
    """Runs work on the loop after a while, as if a thread had done it; two pieces of work may end in any order."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = _Work(fn, args, kwargs)
        self._loop.call_later(self._loop.rng.expovariate(1 / _WORK_S), future.run)
        return future

    def map(self, fn: Callable[..., Any], *iterables: Any, timeout: float | None = None, chunksize: int = 1) -> Any:
        return iter([fn(*args) for args in zip(*iterables)])

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass


class SimWorker:
    """Runs calls in their order, as a thread of its own would."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._free_at = 0.0

    def submit(self, call: Callable[..., None], /, *args: Any) -> None:
        starts = max(self._free_at, self._loop.time())
        self._free_at = starts + self._loop.rng.expovariate(1 / _WORK_S)
        self._loop.call_at(self._free_at, call, *args)

    def stop(self) -> None:
        pass


class _Work(Future[Any]):
    """Work of an executor. Waiting for it does it: there is no thread that could."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self._call = (fn, args, kwargs)
        self._begun = False

    def run(self) -> None:
        if self._begun or not self.set_running_or_notify_cancel():
            return
        self._begun = True
        fn, args, kwargs = self._call
        try:
            result = fn(*args, **kwargs)
        except Exception as error:
            self.set_exception(error)
        else:
            self.set_result(result)

    def result(self, timeout: float | None = None) -> Any:
        self.run()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.run()
        return super().exception(timeout)


class _SimSelector(selectors.BaseSelector):
    """Reports readiness in the order of file descriptors, and moves the clock instead of waiting."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._real = selectors.DefaultSelector()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.steps += 1
        ready = self._real.select(0)
        if ready:
            return sorted(ready, key=lambda entry: entry[0].fd)
        if timeout is None:
            raise SimulationStuckError(f"every task waits, {self._loop.time():.3f} s into the simulation")
        if timeout > 0:
            self._loop.advance(timeout)
        return []

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.get_key(fileobj)


def _guarded(callback: Callable[..., Any], context: contextvars.Context | None) -> Callable[..., Any]:
    process = _CURRENT.get() if context is None else context.get(_CURRENT, _NETWORK)
    if process is _NETWORK:
        return callback

    def run(*args: Any) -> Any:
        if process.alive and process.held is None:
            return callback(*args)
        if process.held is not None:
            process.held.append((context or contextvars.copy_context(), callback, args))
        return None

    return run
