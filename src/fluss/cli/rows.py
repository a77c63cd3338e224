# SPDX-License-Identifier: Apache-2.0
"""Rows from the terminal: ``fluss tail``, ``fluss put``, ``fluss get``."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

import click

from fluss import aio
from fluss.cli.common import connected, parse_path, plain, print_json, run

_POLL_MS = 500


def _row_text(record: aio.ScanRecord, bucket: aio.TableBucket, as_json: bool) -> str:
    if as_json:
        facts = {
            "bucket": bucket.bucket_id,
            "partition": bucket.partition_id,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "change": record.change_type.short_string(),
            "row": plain(record.row),
        }
        return json.dumps(facts, ensure_ascii=False)
    return f"{bucket.bucket_id}:{record.offset} {record.change_type.short_string()} {plain(record.row)}"


@click.command()
@click.argument("table")
@click.option("-n", "--limit", type=click.IntRange(1), help="Stop after this many records.")
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where to begin: with everything there is, or with what comes from now on.",
)
@click.option("--no-follow", is_flag=True, help="Stop at the end of the log instead of waiting for more.")
@click.option("--timeout", type=float, help="Stop after this many seconds.")
@connected
def tail(
    table: str,
    limit: int | None,
    start: str,
    no_follow: bool,
    timeout: float | None,
    bootstrap_servers: str,
    user: str | None,
    password: str | None,
    as_json: bool,
) -> None:
    """Print the log of TABLE (database.table) as it grows; for a primary-key table, its changes."""
    path = parse_path(table)
    deadline = None if timeout is None else time.monotonic() + timeout

    async def work(connection: aio.FlussConnection) -> None:
        source = await connection.get_table(path)
        info = source.get_table_info()
        scanner = await source.new_scan().create_log_scanner()
        offset = aio.EARLIEST_OFFSET if start == "earliest" else aio.LATEST_OFFSET
        buckets = range(info.num_buckets)
        if info.is_partitioned():
            partitions = await connection.get_admin().list_partition_infos(path)
            if not partitions:
                raise click.ClickException(f"table {path} has no partitions yet")
            scanner.subscribe_partition_buckets({(p.partition_id, b): offset for p in partitions for b in buckets})
        else:
            scanner.subscribe_buckets(dict.fromkeys(buckets, offset))
        shown = 0
        while limit is None or shown < limit:
            records = await scanner.poll(_POLL_MS)
            for bucket, found in records.items():
                for record in found[: None if limit is None else limit - shown]:
                    click.echo(_row_text(record, bucket, as_json))
                    shown += 1
            at_end = records.is_empty() and all(lag == 0 for lag in scanner.lag().values())
            if (no_follow and at_end) or (deadline is not None and time.monotonic() >= deadline):
                return

    with contextlib.suppress(KeyboardInterrupt):
        run(bootstrap_servers, user, password, work)


def _rows(given: tuple[str, ...], file: TextIO | None) -> Iterator[dict[str, Any]]:
    lines: Iterator[str] = iter(given) if given else iter(file if file is not None else sys.stdin)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise click.ClickException(f"row {number} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise click.ClickException(f"row {number} is not a JSON object with the columns as keys")
        yield row


@click.command()
@click.argument("table")
@click.argument("rows", nargs=-1)
@click.option("-f", "--file", type=click.File("r"), help="Read rows from a file, one JSON object a line.")
@click.option("--delete", is_flag=True, help="Delete the rows with these primary keys.")
@connected
def put(
    table: str,
    rows: tuple[str, ...],
    file: TextIO | None,
    delete: bool,
    bootstrap_servers: str,
    user: str | None,
    password: str | None,
    as_json: bool,
) -> None:
    """Write ROWS, each a JSON object, into TABLE: appended, or upserted where there is a primary key.

    Without ROWS and --file they are read from standard input, one a line.
    """
    path = parse_path(table)

    async def work(connection: aio.FlussConnection) -> int:
        target = await connection.get_table(path)
        written = 0
        if target.has_primary_key():
            upserts = target.new_upsert().create_writer()
            for row in _rows(rows, file):
                upserts.delete(_typed(row, target)) if delete else upserts.upsert(_typed(row, target))
                written += 1
            await upserts.flush()
            return written
        if delete:
            raise click.ClickException(f"table {path} has no primary key: nothing can be deleted from it")
        appends = target.new_append().create_writer()
        for row in _rows(rows, file):
            appends.append(_typed(row, target))
            written += 1
        await appends.flush()
        return written

    count = run(bootstrap_servers, user, password, work)
    if as_json:
        print_json({"written": count})
    else:
        click.echo(f"{count} row{'' if count == 1 else 's'} {'deleted' if delete else 'written'}")


@click.command()
@click.argument("table")
@click.argument("key")
@connected
def get(table: str, key: str, bootstrap_servers: str, user: str | None, password: str | None, as_json: bool) -> None:
    """Look up the row of TABLE with the primary key KEY: a JSON object, or the value itself for a single column.

    Exit code 1 when there is no such row.
    """
    path = parse_path(table)

    async def work(connection: aio.FlussConnection) -> dict[str, Any] | None:
        source = await connection.get_table(path)
        primary_key = source.get_table_info().get_primary_keys()
        if not primary_key:
            raise click.ClickException(f"table {path} has no primary key to look up")
        try:
            given = json.loads(key)
        except ValueError:
            given = key
        wanted = given if isinstance(given, dict) else {primary_key[0]: given}
        return await source.new_lookup().create_lookuper().lookup(_typed(wanted, source))

    row = run(bootstrap_servers, user, password, work)
    if row is None:
        raise click.ClickException(f"no row with key {key} in {path}")
    if as_json:
        print_json(row)
    else:
        for name, value in row.items():
            click.echo(f"{name}: {plain(value)}")


def _typed(row: dict[str, Any], table: aio.FlussTable) -> dict[str, Any]:
    """JSON knows no dates, decimals or bytes: texts are read as what their columns hold."""
    from fluss.cli.json_values import from_json

    types = {column.name: column.data_type for column in table.get_table_info().schema.columns}
    return {name: from_json(value, types[name], name) if name in types else value for name, value in row.items()}
