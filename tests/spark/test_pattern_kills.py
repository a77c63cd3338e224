# SPDX-License-Identifier: Apache-2.0
"""Patterns of docs/spark-patterns.md that promise exact tables, with drivers that die with SIGKILL in mid-stream."""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.spark import jobs

import fluss
from fluss.client.blocking_client import BlockingClient
from fluss.metadata import Schema, TableDescriptor, TablePath
from fluss.spark.versions import KNOWS_START

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

JOB = Path(__file__).with_name("pattern_job.py")
KEYS, STEPS, COUNTRIES = 400, 6, ("FR", "JP", "IN", "BR", "KE")
START = dt.datetime(2024, 1, 1)
KEY, FROM = pa.field("id", pa.int64(), nullable=False), pa.field("valid_from", pa.timestamp("us"), nullable=False)
NAME = pa.field("country", pa.string())
TABLES: dict[str, tuple[list[pa.Field], list[str]]] = {
    "customers": ([KEY, NAME, pa.field("since", pa.timestamp("us"))], ["id"]),
    "replica": ([KEY, NAME, pa.field("since", pa.timestamp("us"))], ["id"]),
    "history": ([KEY, FROM, NAME, pa.field("valid_to", pa.timestamp("ms", "UTC"))], ["id", "valid_from"]),
    "visits": ([KEY, NAME, pa.field("at", pa.timestamp("us", "UTC"))], []),
    "unique": ([KEY, NAME, pa.field("at", pa.timestamp("us", "UTC"))], []),
    "totals": ([NAME.with_nullable(False), pa.field("count", pa.int64())], ["country"]),
}


class Shop:
    """Tables of a server, what was written to them, and jobs over them."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.client = BlockingClient({"bootstrap.servers": bootstrap})
        self.client.run(self.client.admin.create_database("shop", None, True))
        for name, (fields, keys) in TABLES.items():
            descriptor = TableDescriptor(
                Schema(pa.schema(fields), primary_keys=keys or None),
                bucket_count=2,
                bucket_keys=["id"] if name == "history" else None,
            )
            self.client.run(self.client.admin.create_table(TablePath("shop", name), descriptor))
        self.versions: dict[int, list[dict[str, Any]]] = {}
        self.visits: list[dict[str, Any]] = []
        self.step = 0

    def write(self, steps: int) -> None:
        """New, changed and deleted customers, and visits that come twice."""
        customers, visits = self._writer("customers"), self._writer("visits")
        for _ in range(steps):
            since = START + dt.timedelta(days=self.step)
            for key in range(KEYS):
                version = {"id": key, "country": COUNTRIES[(key + self.step) % 5], "since": since}
                customers.upsert(version)
                for earlier in self.versions.setdefault(key, []):
                    earlier["closed"] = True
                self.versions[key].append({**version, "closed": False})
                visit = {
                    "id": self.step * KEYS + key,
                    "country": version["country"],
                    "at": since.replace(tzinfo=dt.timezone.utc),
                }
                for _ in range(2):
                    visits.append(visit)
                    self.visits.append(visit)
            for key in range(self.step, KEYS, 7):
                customers.delete({"id": key})
                self.versions[key][-1]["closed"] = True
            self.client.run(customers.flush())
            self.client.run(visits.flush())
            self.step += 1

    def _writer(self, name: str) -> Any:
        table = self.client.table(TablePath("shop", name))
        if table.has_primary_key():
            return self.client.call(lambda: table.new_upsert().create_writer())
        return self.client.call(lambda: table.new_append().create_writer())

    def rows(self, name: str) -> list[dict[str, Any]]:
        with fluss.connect(self.bootstrap) as database:
            return database.table(f"shop.{name}").to_arrow().to_pylist()

    def check_replica(self) -> None:
        last = [versions[-1] for versions in self.versions.values()]
        expected = [(one["id"], one["country"], one["since"]) for one in last if not one["closed"]]
        assert 0 < len(expected) < KEYS
        assert _values(self.rows("replica"), ("id", "country", "since")) == sorted(expected)

    def check_history(self) -> None:
        expected = [
            (one["id"], one["since"], one["country"], one["closed"])
            for versions in self.versions.values()
            for one in versions
        ]
        found = [{**row, "closed": row["valid_to"] is not None} for row in self.rows("history")]
        assert _values(found, ("id", "valid_from", "country", "closed")) == sorted(expected)

    def check_totals(self) -> None:
        expected = Counter(visit["country"] for visit in self.visits)
        assert {row["country"]: row["count"] for row in self.rows("totals")} == expected

    def check_unique(self) -> None:
        assert Counter(row["id"] for row in self.rows("unique")) == Counter({visit["id"] for visit in self.visits})


def _values(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in names) for row in rows)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with fluss.LocalServer() as server:
        made = Shop(server.bootstrap_servers, tmp_path)
        yield made
        made.client.close()


LATER = ("batch 1", "batch 3") if KNOWS_START else ("started", "batch 0")
"""Before 4.2 the first micro-batch of a query takes all there is."""


@pytest.mark.parametrize(
    ("pattern", "kills", "check"),
    [
        # Its first micro-batch is the rows there are, the changes follow.
        pytest.param("replica", ("started", "batch 1" if KNOWS_START else "batch 0"), Shop.check_replica, id="replica"),
        pytest.param("history", LATER, Shop.check_history, id="history"),
        pytest.param("totals", LATER, Shop.check_totals, id="totals"),
        pytest.param("unique", LATER, Shop.check_unique, id="unique"),
    ],
)
def test_a_killed_driver_leaves_the_table_exact(
    shop: Shop, pattern: str, kills: Sequence[str], check: Callable[[Shop], None]
) -> None:
    log, checkpoint = shop.folder / "job.log", shop.folder / "c"

    def start() -> Any:
        return jobs.start(JOB, [pattern, shop.bootstrap, str(checkpoint), "300"], log)

    shop.write(STEPS // 2)
    for kill_at in kills:
        job = start()
        try:
            assert kill_at in jobs.lines(job, kill_at), log.read_text()[-3000:]
            if kill_at == "started":
                jobs.wait_for_file(checkpoint / "offsets" / "0")
            time.sleep(0.3)  # into the middle of the next micro-batch
        finally:
            jobs.end(job)
        shop.write(STEPS // 4)
    job = start()
    try:
        assert jobs.lines(job, "complete")[-1:] == ["complete"], log.read_text()[-3000:]
    finally:
        jobs.end(job)
    committed = len([one for one in (checkpoint / "commits").iterdir() if one.name.isdigit()])
    assert committed >= (4 if KNOWS_START else 2)
    check(shop)
