# SPDX-License-Identifier: Apache-2.0
"""Groups of followers: what membership costs a reader, and how soon many members have divided many buckets.

``python -m benchmarks.cases.groups ADDRESS TABLE COUNT`` is a process of such members: it joins the group that a line
of its input names, and leaves it at the next line.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Any

import pyarrow as pa

import fluss
import fluss.aio
from benchmarks.harness import REPOSITORY, Bar, Result, Settings, alternate, ratio_of
from fluss.metadata.group_rows import GROUPS_TABLE, MemberRow

CHANGES = 1_000_000
BUCKETS = 4
MEMBERS = 64
PROCESSES = 4
SHARED_BUCKETS = 256
_DIVIDE_S_MAX = 60.0


def group_cases(settings: Settings) -> Iterator[Result]:
    """One member against a reader without a group, and the time until many members have divided the buckets."""
    with fluss.LocalServer() as server, fluss.connect(server.bootstrap_servers, timeout=30) as db:
        if settings.wanted("follow() in a group"):
            yield _one_member(settings, db)
        if settings.wanted("64 members divide buckets"):
            yield _dividing(settings, server.bootstrap_servers, db)


def _one_member(settings: Settings, db: fluss.Database) -> Result:
    rows = settings.rows(CHANGES)
    table = db.create_table("followed", "id bigint, s string", bucket_key="id", buckets=BUCKETS)
    for start in range(0, rows, 100_000):
        ids = range(start, min(rows, start + 100_000))
        table.append(pa.table({"id": list(ids), "s": [f"name-{number % 1000}" for number in ids]}))
    groups = iter(range(1_000_000))

    def read(**options: Any) -> float:
        with table.follow("earliest", **options) as changes:
            next(changes)  # joining is not reading
            began = time.perf_counter()
            for change in islice(changes, rows - 1):
                assert change.row
            return time.perf_counter() - began

    mine, peer = alternate(lambda: read(group=f"group-{next(groups)}"), read, settings.repeats, rounds=settings.rounds)
    rates = [[rows / seconds / 1e3 for seconds in side] for side in (mine, peer)]
    return Result(
        "follow() in a group", *rates, "k rows/s", ratio_of(*rates), Bar(0.9, 1.0), note="peer: follow() without one"
    )


def _dividing(settings: Settings, address: str, db: fluss.Database) -> Result:
    table = db.create_table("divided", "id bigint", bucket_key="id", buckets=SHARED_BUCKETS)
    program = [sys.executable, "-m", "benchmarks.cases.groups", address, str(table.path), str(MEMBERS // PROCESSES)]
    with table.follow("latest", group="first", timeout=0) as changes:
        next(changes, None)  # this makes the table of groups
    seconds = []
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
            )
            for _ in range(PROCESSES)
        ]
        stack.callback(lambda: [process.terminate() for process in processes])
        _all_say(processes, "ready")
        for number in range(settings.repeats):
            began = time.monotonic()
            _ask_all(processes, f"dividing-{number}")
            while not _is_divided(db, table, f"dividing-{number}"):
                if time.monotonic() - began > _DIVIDE_S_MAX:
                    raise TimeoutError(f"the members of a group did not divide the buckets within {_DIVIDE_S_MAX:g} s")
                time.sleep(0.05)
            seconds.append(time.monotonic() - began)
            _ask_all(processes, "leave")
            _all_say(processes, "left")
    return Result("64 members divide buckets", seconds, [], "s", None, Bar(5.0, 3.0, "s", False), note="256 buckets")


def _is_divided(db: fluss.Database, table: fluss.Table[Any], group: str) -> bool:
    """Whether all buckets are owned, as many by each member."""
    rows = db.table(str(GROUPS_TABLE)).prefix(group, str(table.path))
    members = [MemberRow.from_json(row["member"], row["state"]) for row in rows]
    return [len(member.owned) for member in members] == [SHARED_BUCKETS // MEMBERS] * MEMBERS


def _ask_all(processes: list[subprocess.Popen[str]], line: str) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()


def _all_say(processes: list[subprocess.Popen[str]], word: str) -> None:
    for process in processes:
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        if said != word:
            raise ChildProcessError(f"a process of members said {said!r} and not {word!r}")


async def _be_members(address: str, table_name: str, count: int) -> None:
    async def be_member(group: str) -> None:
        async with table.follow("latest", group=group) as changes:
            async for _ in changes:
                pass

    async with await fluss.aio.connect(address) as db:
        table = await db.table(table_name)
        print("ready", flush=True)
        while group := (await asyncio.to_thread(sys.stdin.readline)).strip():
            members = [asyncio.ensure_future(be_member(group)) for _ in range(count)]
            await asyncio.to_thread(sys.stdin.readline)
            for member in members:
                member.cancel()
            await asyncio.wait(members)
            print("left", flush=True)


if __name__ == "__main__":
    asyncio.run(_be_members(sys.argv[1], sys.argv[2], int(sys.argv[3])))
