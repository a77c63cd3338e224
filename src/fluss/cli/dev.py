# SPDX-License-Identifier: Apache-2.0
"""Trying things out: ``fluss dev``, ``fluss bench``."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator

import click

from fluss.cli.common import CliTarget, Failure, connected, handled_signals, json_option, note, print_json
from fluss.cli.show import Grid


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=9123, show_default=True, help="Port to listen on.")
@click.option(
    "--data-dir", type=click.Path(file_okay=False), help="Keep the data there.  [default: a temporary folder]"
)
@click.option("--rate", type=click.FloatRange(0), default=20.0, show_default=True, help="Rows of live data per second.")
@click.option("--seconds", type=click.FloatRange(min=0), help="Stop by itself after so long.")
@json_option
def dev(port: int, data_dir: str | None, rate: float, seconds: float | None, as_json: bool) -> None:
    """Run a server with a sample table and live data, and the console if it is installed, until Ctrl-C.

    Example: fluss dev
    """
    import fluss
    from fluss.tools.bench import SAMPLE_TABLE, LiveOrders

    stop = threading.Event()
    with tempfile.TemporaryDirectory(prefix="fluss-dev-") as temporary:
        server = fluss.LocalServer(data_dir or temporary, port=port)
        with server, fluss.connect(server.bootstrap_servers) as db, handled_signals(stop.set):
            orders = LiveOrders(db, rate)
            orders.write(100)
            address = server.bootstrap_servers
            with _console(address):
                if as_json:
                    print_json({"address": address, "table": SAMPLE_TABLE, "data_dir": str(server.data_dir)})
                else:
                    where = "" if port == 9123 else f" -b {address}"
                    note(f"server at {address}, data in '{server.data_dir}'; Ctrl-C ends it")
                    note(f"try: fluss tail {SAMPLE_TABLE}{where}")
                    note(f'     fluss sql "select item, count(*) from {SAMPLE_TABLE} group by item"{where}')
                sys.stdout.flush()
                orders.run(stop, seconds)
            note(f"stopped; {orders.written:,} rows of sample data written" + ("" if data_dir else ", and removed"))


@contextlib.contextmanager
def _console(address: str) -> Iterator[None]:
    """The web console in a process of its own, if this installation has it."""
    main = click.get_current_context().find_root().command
    assert isinstance(main, click.Group)
    needed = all(importlib.util.find_spec(name) is not None for name in ("starlette", "uvicorn"))
    if not needed or "ui" not in main.list_commands(click.Context(main)):
        yield
        return
    # Its address goes to standard error: standard output is for data.
    running = subprocess.Popen([sys.executable, "-m", "fluss", "ui", "-b", address], stdout=2, start_new_session=True)
    try:
        yield
    finally:
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


@click.command()
@click.option("--seconds", type=click.FloatRange(0.01), default=2.0, show_default=True, help="Length of each part.")
@click.option("--buckets", type=click.IntRange(1), default=1, show_default=True, help="Buckets of the tables.")
@connected
def bench(link: CliTarget, seconds: float, buckets: int) -> None:
    """Measure a server: rows per second of appends, scans, upserts and lookups, and how long a request takes.

    It uses tables of its own (bench_…) and drops them.

    Example: fluss bench --seconds 5
    """
    from fluss.tools.bench import run_bench

    with link.database() as db:
        grid = Grid(["test", "requests", "rows/s", "p50 ms", "p99 ms"])
        found = []
        try:
            for one in run_bench(db, seconds, buckets):
                found.append(one)
                if not link.as_json:
                    times = round(one.p50_ms, 2), round(one.p99_ms, 2)
                    grid.add([[one.name, one.operations, round(one.rows_per_second), *times]])
        except KeyboardInterrupt:
            raise Failure(f"interrupted after {len(found)} of 4 parts; the tables were dropped") from None
    if link.as_json:
        print_json(
            [
                {
                    "test": one.name,
                    "requests": one.operations,
                    "rows": one.rows,
                    "seconds": round(one.seconds, 3),
                    "rows_per_second": round(one.rows_per_second, 1),
                    "p50_ms": round(one.p50_ms, 3),
                    "p99_ms": round(one.p99_ms, 3),
                }
                for one in found
            ]
        )
