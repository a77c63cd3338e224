# SPDX-License-Identifier: Apache-2.0
"""Results of DuckDB as Arrow tables, whatever its version, and a DuckDB that only computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation


def arrow_of(relation: DuckDBPyRelation | DuckDBPyConnection) -> pa.Table:
    """The rows of a relation, or of what a connection executed."""
    # The name changed with DuckDB 1.4.
    read = relation.to_arrow_table if hasattr(relation, "to_arrow_table") else relation.fetch_arrow_table
    return read()


def arrow_result(connection: DuckDBPyConnection, query: str, params: Any) -> pa.Table:
    """The rows of a query with parameters.

    Before 2.0, `sql()` of DuckDB waits for its threads with the interpreter lock held when there are parameters, and
    they wait for the lock to release the rows they have read. `execute()` gives it away.
    """
    if is_before_2():
        return arrow_of(connection.execute(query, params))
    return arrow_of(connection.sql(query, params=params))


def scratch_duckdb() -> DuckDBPyConnection:
    """An empty DuckDB for one question: without files, network, variables of this program, or a way to change that."""
    import duckdb

    locked = {"enable_external_access": False, "python_enable_replacements": False, "lock_configuration": True}
    return duckdb.connect(":memory:", config={"threads": 1, **locked})


def is_before_2() -> bool:
    """Whether the DuckDB that is installed is older than 2.0."""
    import duckdb

    return bool(duckdb.__version__.startswith("1."))
