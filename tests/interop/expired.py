# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.interop.expired``: keys of expired partitions, which servers look up in a Paimon lake.

Our client and the Java client of 1.0 look them up on our server, as in `make interop`. With ``--jars``, the class path
of Paimon and the lake plugin of the development line, they do so on a server built from its sources as well.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.interop import environment, flink, peers
from tests.interop.cluster import Server
from tests.interop.context import Mismatch, same
from tests.interop.tables import BIGINT, STRING, required

import fluss
from fluss.lake import TieringService

CLIENT = f"java-{environment.FLUSS_NEXT_VERSION}"
_DAYS = ("20240101", "20240102")
_EXPIRY_S_MAX = 60.0
_PROPERTIES = {
    "table.datalake.enabled": "true",
    "table.datalake.freshness": "1s",
    "table.datalake.historical-partition.enabled": "true",
    "table.auto-partition.enabled": "true",
    "table.auto-partition.key": "day",
    "table.auto-partition.time-unit": "DAY",
    "table.auto-partition.num-precreate": "0",
    "table.auto-partition.num-retention": "100000",
}


def run(server_name: str, logs: Path, jars: str = "") -> None:
    """Run the check on a server with a warehouse of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="fluss-interop-lake-") as folder,
        flink.make_server(server_name, logs, Path(folder), jars) as server,
    ):
        check(server, logs)


def check(server: Server, logs: Path) -> None:
    """Write and tier two partitions, let them expire, and look up their keys; also with a bucket key of its own."""
    with fluss.connect(server.plain, timeout=60) as db, peers.start(CLIENT, logs) as java:
        java.connect(server.plain)
        for name, more in {"plain": "", "prefix": "sub string, "}.items():
            columns = ["id", *(["sub"] if more else []), "day", "name"]
            table = db.create_table(
                name,
                f"id bigint, {more}day string, name string",
                primary_key=columns[:-1],
                partition_by="day",
                bucket_key="id",
                buckets=3,
                properties=_PROPERTIES,
            )
            rows = [{"id": i, "sub": f"s{i}", "day": day, "name": f"n{i} of {day}"} for day in _DAYS for i in range(20)]
            rows = [{column: row[column] for column in columns} for row in rows]
            for day in _DAYS:
                table.add_partition(day)
            table.upsert(rows)
            _tier(server, table, len(rows))
            table.set_properties({"table.auto-partition.num-retention": "1"})
            _wait_until_expired(table)
            keys = [tuple(row[column] for column in table.primary_key) for row in rows]
            absent = (99, *keys[0][1:])
            same([table.get(key) for key in (*keys, absent)], [*rows, None], "rows that our client finds one by one")
            same(list(table.get_many([*keys, absent])), [*rows, None], "rows that our client finds together")
            kinds = {"id": required(BIGINT), "sub": required(STRING), "day": required(STRING), "name": STRING}
            document = {
                "db": db.name,
                "name": name,
                "columns": [{"name": column, "type": kinds[column]} for column in columns],
                "primary_key": list(table.primary_key),
            }
            found = java.call("lookup", table=document, keys=[list(key) for key in (*keys, absent)])
            same(found, [*(list(row.values()) for row in rows), None], f"rows that {CLIENT} finds")


def _tier(server: Server, table: fluss.Table, rows: int) -> None:
    tiered, deadline = 0, time.monotonic() + _EXPIRY_S_MAX
    while tiered < rows:  # a real server offers a table to tier once it is due
        if time.monotonic() > deadline:
            raise Mismatch(f"{tiered} of {rows} rows were tiered within {_EXPIRY_S_MAX:.0f} s")
        reports = TieringService({"bootstrap.servers": server.plain}, tables=[table.path]).run_once()
        tiered += sum(report.rows for report in reports)


def _wait_until_expired(table: fluss.Table) -> None:
    deadline = time.monotonic() + _EXPIRY_S_MAX
    while found := table.partitions():
        if time.monotonic() > deadline:
            raise Mismatch(f"the partitions {found} did not expire within {_EXPIRY_S_MAX:.0f} s")
        time.sleep(0.2)


def main() -> None:
    """Run the check on our server, and with ``--jars`` on the real one."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop.expired", description=__doc__.split("\n\n")[0])
    parser.add_argument("--jars", help="class path of Paimon and the lake plugin of the development line")
    jars = parser.parse_args().jars
    for name in ("ours", f"fluss-{environment.FLUSS_HEAD_VERSION}")[: 2 if jars else 1]:
        run(name, environment.CACHE / "logs" / "expired", jars or "")
        print(f"{name}: passed", flush=True)


if __name__ == "__main__":
    main()
