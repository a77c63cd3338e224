# SPDX-License-Identifier: Apache-2.0
"""The walks of docs/architecture.md name the modules that calls pass: each is traced once, on both sides."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

import fluss
import fluss.aio
from fluss.server.config import ServerConfig
from fluss.server.server import Server

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ROOT / "src" / "fluss"
BRIDGE = ROOT / "src" / "spark-bridge" / "fluss" / "spark"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MODULES_MAX = 20
FORMATS = ("rows", "records", "protocol")
ROWS = [{"id": number, "name": f"name {number}"} for number in range(100)]


def full_name(name: str) -> str:
    """A module as it lies in the package: the page leaves the folder of the server out."""
    return name if (SOURCES / name).exists() else f"server/{name}"


def walks() -> dict[str, list[str]]:
    """The columns of the tables that follow a call, each with its modules."""
    found: dict[str, list[str]] = {}
    for table in re.findall(r"(?:^\| .*\n)+", PAGE, re.MULTILINE):
        lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
        if lines[0][0] == "step":
            for name, *steps, number in list(zip(*lines))[1:]:
                modules = list(dict.fromkeys(re.findall(r"`([^`]+\.(?:py|java))`", " ".join(steps))))
                assert len(modules) == int(number) <= MODULES_MAX, f"{name}: {len(modules)} modules, not {number}"
                found[name] = modules
    return found


def is_left_out(module: str) -> bool:
    section = PAGE.partition("### What a walk leaves out")[2].partition("\n#")[0]
    named = [full_name(name) for name in re.findall(r"`([\w/]+(?:\.py|/))`", section)]
    return any(module.startswith(name) if name.endswith("/") else module == name for name in named)


class Tracer:
    """Notes which modules of the package are entered, from where, and on which side of the wire."""

    def __init__(self) -> None:
        self.entered: set[tuple[bool, str, str]] | None = None
        self._modules: dict[CodeType, str] = {}

    def module_of(self, frame: FrameType) -> str:
        code = frame.f_code
        if code not in self._modules:
            path = Path(code.co_filename)
            inside = path.is_relative_to(SOURCES)
            self._modules[code] = path.relative_to(SOURCES).as_posix() if inside else ""
        return self._modules[code]

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if self.entered is None or event != "call" or not (module := self.module_of(frame)):
            return
        callers: list[str] = []
        outer = frame.f_back
        while outer is not None:
            callers.append(self.module_of(outer))
            outer = outer.f_back
        on_server = any(name.startswith("server/") for name in [module, *callers])
        on_server = on_server or threading.current_thread().name == "server"
        self.entered.add((on_server, module, next(filter(None, callers), "")))

    @contextlib.contextmanager
    def watch(self) -> Iterator[set[tuple[bool, str, str]]]:
        time.sleep(0.2)  # what earlier calls left to do
        self.entered = found = set()
        sys.setprofile(self)
        try:
            yield found
            time.sleep(0.2)  # what the call leaves to do: the next fetch, the flush of the disk
        finally:
            self.entered = None
            sys.setprofile(None)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Note nothing of this thread, nor ever of threads that it starts meanwhile."""
        threading.setprofile(None)  # type: ignore[arg-type]
        sys.setprofile(None)
        yield
        threading.setprofile(self)
        sys.setprofile(None if self.entered is None else self)


def walked(entered: set[tuple[bool, str, str]], *, server: bool = False) -> set[str]:
    """The modules of one side that count."""
    return {
        module
        for on_server, module, caller in entered
        if on_server is server and not is_left_out(module)
        if (package := module.split("/")[0]) not in FORMATS or package != caller.split("/")[0]
    }


@pytest.fixture(scope="module")
def tracer() -> Iterator[Tracer]:
    made = Tracer()
    threading.setprofile(made)  # for threads that are started from now on
    yield made
    threading.setprofile(None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def address(tracer: Tracer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server in a thread of this process."""
    ready, addresses, ended = threading.Event(), list[str](), list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def serve() -> None:
        folder = str(tmp_path_factory.mktemp("data"))
        server = Server(ServerConfig({"data.dir": folder, "bind.listeners": "FLUSS://127.0.0.1:0"}))
        await server.start()
        [listener] = server.listeners.values()
        addresses.append(listener.address.rpartition("//")[2])
        ended.append((asyncio.get_running_loop(), asyncio.Event()))
        ready.set()
        await ended[0][1].wait()
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="server")
    thread.start()
    assert ready.wait(30)
    yield addresses[0]
    loop, event = ended[0]
    loop.call_soon_threadsafe(event.set)
    thread.join()


@pytest.fixture(scope="module")
def db(address: str) -> Iterator[fluss.Database]:
    with fluss.connect(address) as opened:
        opened.create_table("log", {"id": "bigint", "name": "string"}, buckets=1).append(ROWS)
        opened.create_table("keys", {"id": "bigint", "name": "string"}, primary_key="id", buckets=1).upsert(ROWS)
        yield opened


def check(name: str, found: set[str]) -> None:
    named = set(map(full_name, walks()[name]))
    assert found == named, f"{name}: entered and not named {found - named}, named and not entered {named - found}"


def test_walks_name_modules_that_exist() -> None:
    assert len(walks()) == 4 + 4 + 3
    for name, modules in walks().items():
        missing = [one for one in modules if not (SOURCES / full_name(one)).is_file() and not (BRIDGE / one).is_file()]
        assert not missing, f"{name}: {missing} do not exist"


def test_get(db: fluss.Database, tracer: Tracer) -> None:
    table = db.table("keys")
    for number in range(40):
        table.get(number)
    with tracer.watch() as entered:
        assert table.get(7) == ROWS[7]
    check("`table.get(key)`", walked(entered))
    check("LOOKUP (get)", walked(entered, server=True))


async def test_append(address: str, db: fluss.Database, tracer: Tracer) -> None:
    connection = await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": address}))
    with connection, (await connection.get_table("fluss.log")).new_append().create_writer() as writer:
        await writer.append((1, "a")).wait()
        with tracer.watch() as entered:
            await writer.append((2, "b")).wait()
    check("`writer.append(row)`", walked(entered))
    check("PRODUCE_LOG (append)", walked(entered, server=True))


def test_to_arrow(db: fluss.Database, tracer: Tracer) -> None:
    table = db.table("log")
    table.to_arrow()
    with tracer.watch() as entered:
        assert table.to_arrow().num_rows >= len(ROWS)
    check("`table.to_arrow()` of a log table", walked(entered))


def test_follow(address: str, db: fluss.Database, tracer: Tracer) -> None:
    table = db.create_table("followed", {"id": "bigint", "name": "string"}, buckets=1)
    with tracer.pause():
        writer = fluss.connect(address)
        writer.table("followed").append(ROWS)
    with writer, table.follow() as changes:
        for _ in ROWS:
            next(changes)
        with tracer.watch() as entered:
            with tracer.pause():
                writer.table("followed").append(ROWS)
            assert next(changes).row == ROWS[0]
    check("`for change in table.follow()`", walked(entered))


async def test_fetch(address: str, db: fluss.Database, tracer: Tracer) -> None:
    async with await fluss.aio.FlussConnection.create(fluss.Config({"bootstrap.servers": address})) as connection:
        table = await connection.get_table("fluss.log")
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        scan = table.new_scan().project_by_name(["id"])
        with tracer.watch() as entered:
            assert [item async for item in scan.read_batches({bucket: 0}, {bucket: len(ROWS)})]
    check("FETCH_LOG (follow, Spark)", walked(entered, server=True))


def test_spark(address: str, db: fluss.Database, tracer: Tracer) -> None:
    pytest.importorskip("pyspark")
    from fluss.spark.source import FlussDataSource

    options = {"bootstrap.servers": address, "table": "fluss.log", "columns": "id,name", "scan.filter": "id > 10"}
    for _ in range(2):
        with tracer.watch() as to_schema:
            schema = FlussDataSource(options).schema()
        with tracer.watch() as to_tasks:
            reader = FlussDataSource(options).reader(schema)
            tasks = reader.partitions()
        with tracer.watch() as reading:
            assert sum(batch.num_rows for batch in reader.read(tasks[0]))
    check("process for the schema", walked(to_schema))
    check("process for the tasks", walked(to_tasks))
    check("worker of a task", walked(reading))
