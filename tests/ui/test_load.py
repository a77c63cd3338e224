# SPDX-License-Identifier: Apache-2.0
"""Ten browsers look at a large table that changes 5,000 times a second: how late they show it, and what it costs.

Prints the figures; `make test-ui ARGS="-m slow -s tests/ui/test_load.py"`. A change is shown within 200 ms, and the
server takes at least 90 % of the rows it takes without browsers. They would run on ten machines: here one is
Chromium, with what the server and the writer leave of the processor; the others take their streams and draw nothing.
"""

from __future__ import annotations

import itertools
import os
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.console.conftest import Browser, Running

import fluss

from .conftest import Page

BROWSERS = int(os.environ.get("BROWSERS", "10"))
ROWS = int(os.environ.get("ROWS", "1000000"))
SECONDS = float(os.environ.get("SECONDS", "20"))
PER_SECOND = 5_000
STEP_S = 0.05
LATE_MS_MAX = 200.0
KEPT_MIN = 0.9

WATCH = """
window.lateness = [];
new MutationObserver((changes) => {
  for (const change of changes) for (const row of change.addedNodes) {
    // Text by text: a changed cell has the old and the new time, and cells have nothing between them.
    const texts = document.createTreeWalker(row, NodeFilter.SHOW_TEXT);
    let newest = 0;
    while (texts.nextNode()) {
      const text = texts.currentNode.data.trim();
      if (/^\\d{13}$/.test(text)) newest = Math.max(newest, Number(text));
    }
    if (newest) requestAnimationFrame(() => window.lateness.push(Date.now() - newest));
  }
}).observe(document.getElementById("main"), { childList: true, subtree: true });
"""


class Writer:
    """Changes random-looking keys at a steady rate; each row has the time at which it was written."""

    def __init__(self, address: str) -> None:
        self.rows = 0
        self.slowest_s = 0.0
        self._address = address

    @contextmanager
    def running(self) -> Iterator[Writer]:
        ended = threading.Event()
        thread = threading.Thread(target=self._work, args=(ended,))
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            thread.join(60)

    def _work(self, ended: threading.Event) -> None:
        count = int(PER_SECOND * STEP_S)
        with fluss.connect(self._address, timeout=20) as db:
            table = db.table("busy")
            due = time.monotonic()
            number = 0
            while not ended.wait(max(0.0, due - time.monotonic())):
                # A writer that is late does not catch up: what it could not write counts as lost.
                due = max(due + STEP_S, time.monotonic() - STEP_S)
                began = time.monotonic()
                keys = [(number + at) * 7_919 % ROWS for at in range(count)]
                now = str(int(time.time() * 1_000))
                table.upsert(pa.table({"id": keys, "item": ["changed"] * count, "at": [now] * count}))
                number += count
                self.rows += count
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def rate(self, seconds: float) -> float:
        before, began = self.rows, time.monotonic()
        time.sleep(seconds)
        return (self.rows - before) / (time.monotonic() - began)


def yield_processor(pid: int) -> None:
    """Let a process and all that it started run when nothing else does; what it starts later does so too."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit():
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(folder.name))
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        waiting += children.get(one, [])
        with suppress(OSError):
            for thread in Path(f"/proc/{one}/task").iterdir():
                # Not by its nice value: Chromium raises that of its threads.
                os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))


def take_changes(browser: Browser, ended: threading.Event) -> int:
    """Follow the table without drawing it; gives how many changes were counted."""
    with browser.events("live", table="fluss.busy") as events:
        return sum(
            event["count"] for event in itertools.takewhile(lambda _: not ended.is_set(), events) if "count" in event
        )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_browsers_on_a_busy_table(console: Running, driver: Any) -> None:
    with fluss.connect(console.server, timeout=20) as db:
        table = db.create_table("busy", "id bigint not null, item string, at string", primary_key="id", buckets=4)
        for first in range(0, ROWS, 100_000):
            ids = pa.array(range(first, min(ROWS, first + 100_000)), pa.int64())
            table.upsert(pa.table({"id": ids, "item": ["new"] * len(ids), "at": ["0"] * len(ids)}))
        assert table.count() == ROWS
    yield_processor(driver.service.process.pid)
    ended = threading.Event()
    with Writer(console.server).running() as writer, ThreadPoolExecutor(BROWSERS - 1) as others:
        time.sleep(2)
        alone = writer.rate(SECONDS)
        taken = [others.submit(take_changes, Browser(console.port).open(), ended) for _ in range(BROWSERS - 1)]
        page = Page(driver, console.url).open("live", "fluss.busy")
        page.until(lambda: page.elements("tbody tr"))
        page.script(WATCH)
        watched = writer.rate(SECONDS)
        lateness = driver.execute_script("return window.lateness")
        ended.set()
        assert all(one.result(20) >= watched * SECONDS / 2 for one in taken), "a stream stood still"
    p50, p99 = statistics.median(lateness), statistics.quantiles(lateness, n=100)[98]
    figures = (
        f"{BROWSERS} browsers, {ROWS:,} rows, {len(lateness):,} rows rendered: p50 {p50:.0f} ms, p99 {p99:.0f} ms; "
        f"ingest {watched:,.0f} rows/s with browsers, {alone:,.0f} without ({watched / alone:.0%})"
    )
    print(figures)
    assert p50 <= LATE_MS_MAX, figures
    assert watched >= KEPT_MIN * alone, figures
