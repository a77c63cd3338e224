# SPDX-License-Identifier: Apache-2.0
"""SQL: queries, their export, and the names that the editor completes."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from fluss.console.state import Call
from fluss.errors import FlussError

_TABLES_MAX = 200
_TYPES = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}


async def run(call: Call) -> Any:
    """Run a query and give its first rows."""
    return await call.client.sql.query(call.text("query"))


async def export(call: Call) -> Any:
    """The result of a query as a file."""
    form = call.text("format")
    content = await call.client.sql.export(call.text("query"), form)
    name = f"result.{form}"
    return Response(content, media_type=_TYPES[form], headers={"content-disposition": f'attachment; filename="{name}"'})


async def words(call: Call) -> Any:
    """The names of tables and their columns, for the completion of the editor."""
    db = await call.client.db()
    found: dict[str, list[str]] = {}
    for database in await db.databases():
        for name in await db.tables(database):
            if len(found) >= _TABLES_MAX:
                return {"tables": found}
            try:
                columns = (await db.table(f"{database}.{name}")).columns
            except FlussError:
                continue  # dropped since it was listed, or hidden
            found[name if database == db.name else f"{database}.{name}"] = columns
    return {"tables": found}


ROUTES = (("sql", run, True), ("sql/export", export, True), ("sql/words", words, False))
