# SPDX-License-Identifier: Apache-2.0
"""SQL: queries of a browser tab, their results as files, and the names that the editor completes."""

from __future__ import annotations

from typing import Any

from starlette.responses import FileResponse

from fluss.console.state import Call
from fluss.errors import FlussError, InvalidArgumentError

_TABLES_MAX = 200
_TYPES = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}


async def run(call: Call) -> Any:
    """Run a query and give its first rows."""
    await call.client.require_connected()
    return await call.state.sql.query(call.client, call.text("tab"), call.text("query"))


async def export(call: Call) -> Any:
    """The result that a tab shows, as a file."""
    form = call.text("format")
    if form not in _TYPES:
        raise InvalidArgumentError(f"results are exported as csv or parquet, not {form!r:.40}")
    path = await call.state.sql.export(call.client, call.text("tab"), call.text("result"), form)
    return FileResponse(path, media_type=_TYPES[form], filename=f"result.{form}")


async def cancel(call: Call) -> Any:
    """Stop the query of a tab; also when its page is left."""
    await call.state.sql.cancel(call.client, call.text("tab"), close=bool(call.body.get("close")))
    return {}


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


ROUTES = (
    ("sql", run, True),
    ("sql/export", export, True),
    ("sql/cancel", cancel, True),
    ("sql/words", words, False),
)
