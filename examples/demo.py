# SPDX-License-Identifier: Apache-2.0
"""The main job, live: orders stream in, Spark sums them up per window and country, results are looked up at once.

Half-way the orders are tiered to a Paimon lake; in the end lake and log are read as one table. `make demo`
starts everything it needs and ends by itself, with nothing left running. It needs `pip install 'fluss-python[spark]'`
(and `[jre]` where there is no Java); the part with the lake needs `[paimon]` as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import fluss
from fluss.errors import FlussError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from fluss.lake import TieringService

ORDERS = fluss.TablePath("shop", "orders")
CUSTOMERS = fluss.TablePath("shop", "customers")
SALES = fluss.TablePath("shop", "sales")
COUNTRIES = ("AR", "BR", "DE", "FR", "IN", "JP", "KE", "US")
CUSTOMER_COUNT = 500
WINDOW_S = 10
ROWS_SHOWN = 12
UTC = datetime.timezone.utc
DRAIN_S = 120.0
"""How long the pipeline may take for the orders that are left when no more come."""


class Shop:
    """The tables of the demo and a client of them."""

    def __init__(self, bootstrap: str, *, lake: bool) -> None:
        self.bootstrap = bootstrap
        self.lake = lake
        self.random = random.Random(7)
        self.written = 0
        self.revenue_cents = 0
        self.stop = threading.Event()

    async def connect(self) -> fluss.FlussConnection:
        return await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": self.bootstrap}))

    async def create(self) -> None:
        """Make the tables and fill in the customers."""
        with await self.connect() as connection:
            admin = connection.get_admin()
            await admin.create_database("shop", None, True)
            orders = pa.schema(
                [
                    ("order_id", pa.int64()),
                    ("customer_id", pa.int32()),
                    ("amount", pa.decimal128(10, 2)),
                    ("ts", pa.timestamp("ms", tz="UTC")),
                ]
            )
            customers = pa.schema([("id", pa.int32()), ("name", pa.string()), ("country", pa.string())])
            sales = pa.schema(
                [
                    ("window_start", pa.timestamp("us", tz="UTC")),
                    ("country", pa.string()),
                    ("orders", pa.int64()),
                    ("revenue", pa.decimal128(20, 2)),
                ]
            )
            tables: list[tuple[fluss.TablePath, fluss.Schema, dict[str, str]]] = [
                (ORDERS, fluss.Schema(orders), {"table.datalake.enabled": "true"} if self.lake else {}),
                (CUSTOMERS, fluss.Schema(customers, primary_keys=["id"]), {}),
                (SALES, fluss.Schema(sales, primary_keys=["window_start", "country"]), {}),
            ]
            for path, schema, properties in tables:
                descriptor = fluss.TableDescriptor(schema, bucket_count=2, properties=properties)
                await admin.create_table(path, descriptor, True)
            writer = (await connection.get_table(CUSTOMERS)).new_upsert().create_writer()
            for number in range(CUSTOMER_COUNT):
                country = COUNTRIES[number % len(COUNTRIES)]
                writer.upsert({"id": number, "name": f"Customer {number}", "country": country})
            await writer.flush()

    def generate(self, rows: int, seconds: float) -> None:
        """Orders at an even pace until there are `rows` of them; runs in a thread of its own."""
        asyncio.run(self._generate(rows, seconds))

    async def _generate(self, rows: int, seconds: float) -> None:
        with await self.connect() as connection:
            writer = (await connection.get_table(ORDERS)).new_append().create_writer()
            began, first = time.monotonic(), self.written
            while self.written < rows and not self.stop.is_set():
                due = min(rows, first + int((rows - first) * (time.monotonic() - began) / max(seconds, 0.1)) + 1)
                now = datetime.datetime.now(UTC)
                now = now.replace(microsecond=now.microsecond // 1000 * 1000)
                for order_id in range(self.written, due):
                    cents = self.random.randrange(100, 20_000)
                    customer = self.random.randrange(CUSTOMER_COUNT)
                    order = {"order_id": order_id, "customer_id": customer, "amount": from_cents(cents), "ts": now}
                    writer.append(order)
                    self.revenue_cents += cents
                self.written = due
                await asyncio.sleep(0.05)
            await writer.flush()


def from_cents(cents: int) -> Decimal:
    return Decimal(cents).scaleb(-2)


class Watcher:
    """Follows the changelog of the result table: that is how plain Python sees every update at once."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop
        self.sales: dict[tuple[datetime.datetime, str], dict[str, Any]] = {}
        self.updates = 0
        self.fresh: set[tuple[datetime.datetime, str]] = set()
        self.connection: fluss.FlussConnection | None = None
        self._scanner: fluss.LogScanner | None = None

    async def open(self) -> None:
        self.connection = await self._shop.connect()
        table = await self.connection.get_table(SALES)
        self._scanner = await table.new_scan().create_log_scanner()
        self._scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET, 1: fluss.EARLIEST_OFFSET})

    def poll(self, timeout_ms: int) -> None:
        assert self._scanner is not None
        records = self._scanner.poll(timeout_ms)
        if len(records):
            self.fresh = set()
        for record in records:
            if record.change_type in (fluss.ChangeType.Insert, fluss.ChangeType.UpdateAfter):
                key = (record.row["window_start"], record.row["country"])
                self.sales[key] = record.row
                self.fresh.add(key)
                self.updates += 1

    @property
    def orders(self) -> int:
        return sum(row["orders"] for row in self.sales.values())

    def close(self) -> None:
        if self._scanner is not None:
            self._scanner.close()
        if self.connection is not None:
            self.connection.close()


class Tiering:
    """Brings the orders there are into the lake, once, while more of them come in."""

    def __init__(self, spark: SparkSession, shop: Shop) -> None:
        self._spark = spark
        self._shop = shop
        self._service: TieringService | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.took_s = 0.0
        self.failure: Exception | None = None

    def start(self) -> None:
        """Start it if it is not running; nothing happens where there is no lake."""
        if self._shop.lake and self._service is None:
            from fluss.spark.tiering import tiering_service

            self._service = tiering_service(self._spark, {"bootstrap.servers": self._shop.bootstrap}, tables=[ORDERS])
            self._thread.start()

    def _run(self) -> None:
        assert self._service is not None
        began = time.monotonic()
        try:
            self._service.run_once()
        except Exception as error:
            self.failure = error
        self.took_s = time.monotonic() - began

    def wait(self) -> None:
        if self._service is not None:
            self._thread.join(DRAIN_S)
            if self._thread.is_alive():
                self.failure = TimeoutError(f"still at work after {DRAIN_S:.0f} s")

    def stop(self) -> None:
        if self._service is not None:
            self._service.stop()
            self._thread.join(10)


def start_pipeline(spark: SparkSession, shop: Shop, checkpoint: str) -> StreamingQuery:
    """Orders, each with its customer looked up, summed up per window and country, upserted into the result table."""
    from pyspark.sql import functions as f

    from fluss.spark import lookup_join

    orders = spark.readStream.table(f"fluss.{ORDERS}")
    known = lookup_join(orders, str(CUSTOMERS), {"customer_id": "id"}, shop.bootstrap, columns=["country"])
    sales = (
        known.withWatermark("ts", "1 minute")
        .groupBy(f.window("ts", f"{WINDOW_S} seconds").start.alias("window_start"), "country")
        .agg(f.count("*").alias("orders"), f.sum("amount").alias("revenue"))
    )
    # Rows that changed are upserted by key, so a micro-batch that runs again changes nothing.
    return (
        sales.writeStream.option("checkpointLocation", checkpoint)
        .outputMode("update")
        .trigger(processingTime="1 second")
        .toTable(f"fluss.{SALES}")
    )


def result_table(watcher: Watcher) -> Table:
    table = Table(title=f"shop.sales: {len(watcher.sales)} rows, {watcher.updates} live updates", title_justify="left")
    for name in ("window", "country"):
        table.add_column(name)
    for name in ("orders", "revenue"):
        table.add_column(name, justify="right")
    newest = sorted(watcher.sales, reverse=True)[:ROWS_SHOWN]
    for key in newest:
        row = watcher.sales[key]
        style = "bold green" if key in watcher.fresh else None
        start = key[0].astimezone().strftime("%H:%M:%S")
        table.add_row(start, key[1], f"{row['orders']:,}", f"{row['revenue']:,.2f}", style=style)
    return table


def totals(watcher: Watcher) -> dict[str, tuple[int, Any]]:
    found: dict[str, tuple[int, Any]] = defaultdict(lambda: (0, 0))
    for (_, country), row in watcher.sales.items():
        orders, revenue = found[country]
        found[country] = (orders + row["orders"], revenue + row["revenue"])
    return found


def show_lookups(console: Console, watcher: Watcher) -> None:
    """The same rows by key, from plain Python."""
    assert watcher.connection is not None
    connection = watcher.connection
    keys = sorted(watcher.sales, reverse=True)[:3]

    async def look_up() -> None:
        lookuper = (await connection.get_table(SALES)).new_lookup().create_lookuper()
        for window_start, country in keys:
            began = time.perf_counter()
            row = await lookuper.lookup({"window_start": window_start, "country": country})
            took_ms = (time.perf_counter() - began) * 1000
            console.print(f"  lookup({country}, {window_start:%H:%M:%S}) -> {row}  [dim]{took_ms:.1f} ms[/dim]")

    asyncio.run(look_up())


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rows", default=100_000, show_default=True, type=click.IntRange(1), help="How many orders to generate.")
@click.option("--seconds", default=45.0, show_default=True, type=click.FloatRange(1), help="How long they stream in.")
@click.option("--keep", is_flag=True, help="Keep the data, and say how to open it again.")
@click.option("--ui", is_flag=True, help="Keep the web console open at the end, until Ctrl-C.")
def main(rows: int, seconds: float, keep: bool, ui: bool) -> None:
    """Show the main job: live orders, a Spark pipeline, results to look up, a lake behind it."""
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="fluss-demo-"))
    began = time.monotonic()
    try:
        ok = run(console, folder, rows, seconds, keep, ui)
    except KeyboardInterrupt:
        console.print("[yellow]Stopped.[/yellow]")
        ok = False
    except FlussError as error:
        console.print(f"[red]{error}[/red]")
        ok = False
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    console.print(f"[dim]{time.monotonic() - began:.0f} s in all.[/dim]")
    sys.exit(0 if ok else 1)


def run(console: Console, folder: Path, rows: int, seconds: float, keep: bool, ui: bool) -> bool:
    lake = all(importlib.util.find_spec(name) is not None for name in ("pypaimon", "pypaimon_rust"))
    options = {"datalake.format": "paimon", "datalake.paimon.warehouse": str(folder / "lake")} if lake else {}
    with (
        fluss.LocalServer(folder / "data", options=options) as server,
        web_console(server.bootstrap_servers) as address,
    ):
        console.print(f"[green]1.[/green] Embedded server ready at [bold]{server.bootstrap_servers}[/bold]")
        if address is not None:
            console.print(f"   Look at it in the browser: [bold]{address}[/bold]")
        shop = Shop(server.bootstrap_servers, lake=lake)
        asyncio.run(shop.create())
        console.print(f"[green]2.[/green] Tables shop.orders (log), shop.customers ({CUSTOMER_COUNT} rows), shop.sales")
        with console.status("Starting Spark, which takes some seconds"), quiet(folder / "spark.log"):
            from fluss.spark import session

            config = {
                "spark.sql.shuffle.partitions": "2",
                "spark.fluss.bootstrap.servers": server.bootstrap_servers,
            }
            spark = session("fluss-demo", master="local[2]", config=config)
        watcher, tiering = Watcher(shop), Tiering(spark, shop)
        generator = threading.Thread(target=shop.generate, args=(rows, seconds), daemon=True)
        try:
            query = start_pipeline(spark, shop, str(folder / "checkpoint"))
            asyncio.run(watcher.open())
            with console.status("The first micro-batch, which warms Spark up"):
                shop.generate(max(1, rows // 100), 0)
                wait_for_first(watcher, query)
            console.print("[green]3.[/green] Spark pipeline runs: orders + lookup of customers -> sums per window")
            generator.start()
            complete = follow(console, shop, watcher, query, generator, rows, tiering)
            query.stop()
            console.print()
            complete = report(console, shop, watcher) and complete
            if lake:
                complete = read_lake_and_log(console, spark, shop, tiering) and complete
            else:
                console.print("[dim]6. No lake: pip install 'fluss-python\\[paimon]' to see one.[/dim]")
        finally:
            shop.stop.set()
            tiering.stop()
            if generator.is_alive():
                generator.join(10)
            watcher.close()
            spark.stop()
        if keep:
            console.print(f"\nThe data stays in {folder / 'data'}. Open it again with:")
            again = "".join(f" -D {name}={value}" for name, value in options.items())
            console.print(
                f"  {Path(sys.executable).name} -m fluss.server --data-dir {folder / 'data'}{again}", soft_wrap=True
            )
        say_what_next(console)
        if ui and address is not None:
            console.print(f"The console stays open at [bold]{address}[/bold] until Ctrl-C.")
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
        return complete


@contextlib.contextmanager
def web_console(server: str) -> Iterator[str | None]:
    """Run `fluss ui` meanwhile; gives its address, or None where it is not installed."""
    command = [sys.executable, "-m", "fluss", "ui", "-b", server, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        yield line.removeprefix("console ").strip() or None
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def wait_for_first(watcher: Watcher, query: StreamingQuery) -> None:
    deadline = time.monotonic() + DRAIN_S
    while not watcher.sales and query.exception() is None and time.monotonic() < deadline:
        watcher.poll(250)


@contextlib.contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Have what the Java process says go to a file: it inherits the standard error of the moment it starts in."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def follow(
    console: Console,
    shop: Shop,
    watcher: Watcher,
    query: StreamingQuery,
    generator: threading.Thread,
    rows: int,
    tiering: Tiering,
) -> bool:
    """Show orders coming in and results coming out until all orders are counted."""
    progress = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )
    written = progress.add_task("orders written ", total=rows)
    counted = progress.add_task("orders counted ", total=rows)
    deadline: float | None = None
    with Live(Group(progress, result_table(watcher)), console=console, refresh_per_second=4) as live:
        while True:
            watcher.poll(250)
            if shop.written >= rows // 2:
                tiering.start()
            progress.update(written, completed=shop.written)
            progress.update(counted, completed=watcher.orders)
            live.update(Group(progress, result_table(watcher)))
            error = query.exception()
            if error is not None:
                console.print(f"[red]The pipeline failed: {error}[/red]")
                return False
            if not generator.is_alive():
                if watcher.orders >= shop.written:
                    return bool(watcher.orders == shop.written == rows)
                deadline = deadline if deadline is not None else time.monotonic() + DRAIN_S
                if time.monotonic() > deadline:
                    console.print("[red]The pipeline did not count all orders in time.[/red]")
                    return False


def report(console: Console, shop: Shop, watcher: Watcher) -> bool:
    by_country = totals(watcher)
    orders = sum(count for count, _ in by_country.values())
    revenue = sum(amount for _, amount in by_country.values())
    right = orders == shop.written and revenue == from_cents(shop.revenue_cents)
    mark = "[green]exact[/green]" if right else "[red]differs[/red]"
    console.print(f"[green]4.[/green] {orders:,} orders, revenue {revenue:,.2f}: {mark} against what was generated")
    console.print("[green]5.[/green] Lookups by key from plain Python:")
    show_lookups(console, watcher)
    return right


def read_lake_and_log(console: Console, spark: SparkSession, shop: Shop, tiering: Tiering) -> bool:
    """The orders table in Spark, from both places as one: it must be what was generated."""
    from pyspark.sql import functions as f

    tiering.wait()
    if tiering.failure is not None:
        console.print(f"[red]The orders were not tiered: {tiering.failure}[/red]")
        return False
    began = time.monotonic()
    with console.status("Reading lake and log in Spark"):
        orders = spark.table(f"fluss.{ORDERS}")
        [row] = orders.agg(f.count("*").alias("orders"), f.sum("amount").alias("revenue")).collect()
        took_s = time.monotonic() - began
        tiered = spark.table(f"fluss.{ORDERS.database_name}.`{ORDERS.table_name}$lake`").count()
    right = row.orders == shop.written and row.revenue == from_cents(shop.revenue_cents)
    mark = "[green]exact[/green]" if right else "[red]differs[/red]"
    console.print(
        f"[green]6.[/green] {tiered:,} orders were tiered to Paimon in {tiering.took_s:.1f} s while more came in; lake "
        f"and log read as one table:",
        soft_wrap=True,
    )
    console.print(
        f"  {tiered:,} in the lake + {row.orders - tiered:,} in the log = {row.orders:,} orders, revenue "
        f"{row.revenue:,.2f}: {mark} against the live table  [dim]{took_s:.1f} s[/dim]",
        soft_wrap=True,
    )
    return bool(right)


def say_what_next(console: Console) -> None:
    console.print("\n[bold]What to try next[/bold]")
    console.print("  fluss --help                          tools: ls, describe, tail, put, get")
    console.print("  python -m fluss.server --port 9123    a server of your own, data in ./fluss-data")
    console.print("  docs/spark.md                         every option of the pipeline, other clusters")
    console.print("  docs/lake.md                          the lake: Paimon or Iceberg, tiering, reading both as one")
    console.print("  examples/                             small programs to start from")
    console.print(f"  python examples/demo.py --rows 1000000 --seconds 60  [dim](on {os.cpu_count()} cores here)[/dim]")


if __name__ == "__main__":
    main()
