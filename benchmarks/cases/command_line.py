# SPDX-License-Identifier: Apache-2.0
"""The command line against scripts that do the same with the full client, a process each."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

import fluss
from benchmarks.harness import REPOSITORY, Bar, Result, Settings, alternate, ratio_of

ROWS = 5_000_000
LOADS = {"parquet": Bar(0.8, 1.0), "csv": Bar(0.6, 1.0)}
CAT = Bar(0.5, 0.3, "s", False)
FIRST_ROWS = 20

SCRIPT = """
import asyncio
import sys

import pyarrow.csv
import pyarrow.parquet

import fluss

servers, table, path = sys.argv[1:]
if path.endswith(".parquet"):
    batches = pyarrow.parquet.ParquetFile(path).iter_batches(65_536)
else:
    batches = pyarrow.csv.open_csv(path)
connection = asyncio.run(fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": servers})))
writer = asyncio.run(connection.get_table(fluss.TablePath("fluss", table))).new_append().create_writer()
for batch in batches:
    writer.write_arrow_batch(batch)
asyncio.run(writer.flush())
connection.close()
"""


def command_line_cases(settings: Settings) -> Iterator[Result]:
    """`fluss load` of Parquet and CSV, and how long `fluss cat` takes to its first rows."""
    with (
        fluss.LocalServer() as server,
        tempfile.TemporaryDirectory() as folder,
        fluss.connect(server.bootstrap_servers, timeout=30) as db,
    ):
        data = _data(settings.rows(ROWS))
        for kind, bar in LOADS.items():
            if settings.wanted(name := f"command line, load {kind}"):
                path = Path(folder) / f"rows.{kind}"
                _write(data, path)
                db.create_table(f"load_{kind}", data.schema)
                yield _load(settings, name, server.bootstrap_servers, path, data.num_rows, bar)
        if settings.wanted("command line, cat"):
            db.create_table("cat", data, buckets=4)
            yield _cat(settings, server.bootstrap_servers)


def _data(rows: int) -> pa.Table:
    ids = np.arange(rows)
    return pa.table({"id": ids, "name": [f"user-{number}" for number in ids], "score": ids * 0.5})


def _write(data: pa.Table, path: Path) -> None:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(data, path)
    else:
        pyarrow.csv.write_csv(data, path)


def _load(settings: Settings, name: str, servers: str, path: Path, rows: int, bar: Bar) -> Result:
    table = f"load_{path.suffix[1:]}"
    command = ["-m", "fluss", "load", table, str(path), "-b", servers, "--json"]
    ours, peer = alternate(
        lambda: _seconds(*command), lambda: _seconds("-c", SCRIPT, servers, table, str(path)), settings.repeats
    )
    rates = [[rows / seconds / 1e6 for seconds in side] for side in (ours, peer)]
    note = "peer: a script that reads the file with pyarrow and writes its batches"
    return Result(name, rates[0], rates[1], "M rows/s", ratio_of(*rates), bar, note=note)


def _cat(settings: Settings, servers: str) -> Result:
    command = ["-m", "fluss", "cat", "cat", "-b", servers, "-n", str(FIRST_ROWS)]
    ours, _ = alternate(lambda: _seconds(*command), None, settings.repeats)
    return Result("command line, cat", ours, [], "s", None, CAT, note="the first rows of 5 M, from a new process")


def _seconds(*arguments: str) -> float:
    """How long a new process takes from its start to its end."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=environment)
    return time.perf_counter() - began
