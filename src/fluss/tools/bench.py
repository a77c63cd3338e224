# SPDX-License-Identifier: Apache-2.0
"""A short load test against any server, and a sample table with live data to look at."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss.errors import FlussError

if TYPE_CHECKING:
    from fluss.db.blocking import Database, Table

_BATCH_ROWS = 10_000


@dataclass(frozen=True)
class BenchResult:
    """One part of the test."""

    name: str
    operations: int
    rows: int
    seconds: float
    p50_ms: float
    p99_ms: float

    @property
    def rows_per_second(self) -> float:
        """Rows by seconds."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0


def run_bench(db: Database, seconds: float = 2.0, buckets: int = 1) -> Iterator[BenchResult]:
    """Append, scan, upsert and look up for so long each, in tables of its own that are dropped afterwards."""
    mark = secrets.token_hex(4)
    with _table(db, f"bench_log_{mark}", None, buckets) as log:
        yield _measure("append", seconds, lambda number: _write(log, number))
        yield _measure("scan", seconds, lambda _: sum(batch.num_rows for batch in log.to_reader()))
    with _table(db, f"bench_key_{mark}", "id", buckets) as keyed:
        yield _measure("upsert", seconds, lambda number: _write(keyed, number % 10))
        count = keyed.count()
        chosen = random.Random(1)

        def look_up(_: int) -> int:
            keyed.get(chosen.randrange(count))
            return 1

        yield _measure("lookup", seconds, look_up)


def _write(table: Table[Any], number: int) -> int:
    first = number * _BATCH_ROWS
    ids = pa.array(range(first, first + _BATCH_ROWS), pa.int64())
    texts = pa.array([f"text of row {row}" for row in range(first, first + _BATCH_ROWS)])
    batch = pa.record_batch([ids, texts], names=["id", "text"])
    return int((table.upsert if table.primary_key else table.append)(batch).rows)


@contextlib.contextmanager
def _table(db: Database, name: str, key: str | None, buckets: int) -> Iterator[Table[Any]]:
    table = db.create_table(name, "id bigint not null, text string", primary_key=key, buckets=buckets)
    try:
        yield table
    finally:
        with contextlib.suppress(FlussError):
            db.drop_table(name, missing_ok=True)


def _measure(name: str, seconds: float, work: Callable[[int], int]) -> BenchResult:
    took: list[float] = []
    rows = 0
    started = time.perf_counter()
    while not took or time.perf_counter() - started < seconds:
        before = time.perf_counter()
        rows += work(len(took))
        took.append(time.perf_counter() - before)
    elapsed = time.perf_counter() - started
    took.sort()
    p50, p99 = (took[min(len(took) - 1, int(len(took) * part))] * 1000 for part in (0.5, 0.99))
    return BenchResult(name, len(took), rows, elapsed, p50, p99)


SAMPLE_TABLE = "orders"
_SCHEMA = "id bigint not null, item string, price decimal(10,2), quantity int, country string, at timestamp(3)"
_ITEMS = {"tea": 3.2, "mug": 8.5, "pot": 25.0, "jug": 14.9, "honey": 6.4}
_COUNTRIES = ("AR", "BR", "DE", "FR", "IN", "JP", "KE", "US")
_BATCH_S = 0.2


class LiveOrders:
    """Writes orders to the sample table, some of which change later.

    Example:
        orders = LiveOrders(db, rows_per_second=20)
        orders.run(threading.Event())
    """

    def __init__(self, db: Database, rows_per_second: float = 20.0) -> None:
        self._table = db.create_table(
            SAMPLE_TABLE, _SCHEMA, primary_key="id", buckets=2, comment="orders that come by themselves", exist_ok=True
        )
        self._rate = rows_per_second
        self._random = random.Random()
        self._next = self._table.count()
        self.written = 0

    def write(self, count: int) -> None:
        """Write some orders now."""
        rows = []
        for _ in range(count):
            again = self._next > 0 and self._random.random() < 0.1
            number = self._random.randrange(self._next) if again else self._next
            self._next += 0 if again else 1
            item = self._random.choice(list(_ITEMS))
            rows.append(
                {
                    "id": number,
                    "item": item,
                    "price": Decimal(str(_ITEMS[item])).quantize(Decimal("0.01")),
                    "quantity": self._random.randint(1, 5),
                    "country": self._random.choice(_COUNTRIES),
                    "at": dt.datetime.now(dt.timezone.utc).replace(tzinfo=None, microsecond=0),
                }
            )
        self._table.upsert(rows)
        self.written += count

    def run(self, stop: threading.Event, seconds: float | None = None) -> None:
        """Write at the given rate until the event is set, or for so long."""
        owed, end = 0.0, math.inf if seconds is None else time.monotonic() + seconds
        while time.monotonic() < end and not stop.wait(_BATCH_S):
            owed += self._rate * _BATCH_S
            if owed >= 1:
                self.write(int(owed))
                owed -= int(owed)
