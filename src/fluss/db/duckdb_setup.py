# SPDX-License-Identifier: Apache-2.0
"""Results of DuckDB as Arrow tables, whatever its version, and a DuckDB that only computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LOCKED = ("enable_external_access=false", "python_enable_replacements=false", "lock_configuration=true")
"""Settings for no files, no network, no variables of this program, and no way to change that. They come last."""


def arrow_result(connection: DuckDBPyConnection, query: str, params: Any) -> pa.Table:
    """The rows of a query with parameters.

    Before 2.0, `sql()` of DuckDB waits for its threads with the interpreter lock held when there are parameters, and
    they wait for the lock to release the rows they have read. `execute()` gives it away.
    """
    if is_before_2():
        return connection.execute(query, params).to_arrow_table()
    return connection.sql(query, params=params).to_arrow_table()


def scratch_duckdb() -> DuckDBPyConnection:
    """An empty DuckDB that only computes."""
    import duckdb

    connection = duckdb.connect(":memory:")
    for setting in ("timezone='UTC'", "threads=1", *LOCKED):  # times without a zone are UTC, as everywhere
        connection.execute(f"set {setting}")
    return connection


def is_before_2() -> bool:
    """Whether the DuckDB that is installed is older than 2.0."""
    import duckdb

    return bool(duckdb.__version__.startswith("1."))
