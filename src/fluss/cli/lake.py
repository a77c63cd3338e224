# SPDX-License-Identifier: Apache-2.0
"""`fluss lake`: what is in the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fluss.cli.common import CliTarget, connected, parse_path, print_json, say, table_argument
from fluss.errors import FlussError

if TYPE_CHECKING:
    from fluss.lake.status import TableLakeStatus


@click.group()
def lake() -> None:
    """Tables in the lake."""


@lake.command()
@connected
@table_argument("tables", nargs=-1)
@click.option("--buckets", is_flag=True, help="Show every bucket.")
def status(link: CliTarget, tables: tuple[str, ...], buckets: bool) -> None:
    """Per table: what is tiered up to which offset, how far the lake is behind, files and sizes.

    Example: fluss lake status fluss.events
    """
    from fluss.lake.session import LakeSession
    from fluss.lake.status import lake_status, lake_tables

    try:
        with LakeSession(link.config().to_dict()) as session:
            paths = [parse_path(name) for name in tables] or lake_tables(session)
            found = [lake_status(session, path) for path in paths]
    except FlussError as error:
        raise click.ClickException(error.message) from None
    if link.as_json:
        print_json([_document(one) for one in found])
        return
    if not found:
        click.echo(err=True, message="no table has its lake on (table.datalake.enabled)")
    for one in found:
        _show(one, buckets)


def _document(one: TableLakeStatus) -> dict[str, Any]:
    return {
        "table": str(one.table_path),
        "format": one.lake_format,
        "freshness_ms": one.freshness_ms,
        "snapshot_id": one.snapshot_id,
        "rows_behind": one.rows_behind,
        "seconds_behind": round(one.seconds_behind, 3),
        "files": one.stats.files if one.stats else None,
        "bytes": one.stats.size_bytes if one.stats else None,
        "rows": one.stats.rows if one.stats else None,
        "snapshots": one.stats.snapshots if one.stats else None,
        "problem": one.problem,
        "buckets": [
            {
                "partition": bucket.partition,
                "bucket": bucket.bucket.bucket_id,
                "tiered": bucket.tiered,
                "latest": bucket.latest,
                "rows_behind": bucket.rows_behind,
                "seconds_behind": round(bucket.seconds_behind, 3),
            }
            for bucket in one.buckets
        ],
    }


def _show(one: TableLakeStatus, buckets: bool) -> None:
    where = f"snapshot {one.snapshot_id}" if one.snapshot_id is not None else "nothing tiered yet"
    behind = "up to date"
    if one.rows_behind:
        behind = f"{one.rows_behind:,} rows and {one.seconds_behind:,.0f} s behind"
    say(f"{one.table_path} ({one.lake_format}): {where}, {behind}")
    if one.stats is not None:
        size = one.stats
        say(
            f"  {size.rows:,} rows in {size.files:,} files, {size.size_bytes / 1e6:,.1f} MB, {size.snapshots} snapshots"
        )
    if one.problem is not None:
        say(f"  the lake cannot be read: {one.problem}")
    for bucket in one.buckets if buckets else ():
        name = f"{bucket.partition}/" if bucket.partition is not None else ""
        tiered = "-" if bucket.tiered is None else f"{bucket.tiered:,}"
        say(f"  bucket {name}{bucket.bucket.bucket_id}: {tiered} of {bucket.latest:,}")
