# SPDX-License-Identifier: Apache-2.0
"""The high-level API: `fluss.connect()` and what it gives. Synchronous in `fluss`, coroutines in `fluss.aio`.

The asynchronous classes are the originals. `make generate` makes the synchronous ones, `blocking.py` and `connect.py`,
from them. What only those have (`len`, `in`, iteration) is in `blocking_base.py`; `bridge.py` runs one on the other.

Modules
-------
connecting    `connect.py`, over `targets.py`: folder, address, environment or profile (`profiles.py`) to a server.
objects       `database.py`; `table.py`, with `table_info.py`, `table_reads.py` and `table_writes.py`; `session.py` is
              the connection that a database and its tables share.
new tables    `schemas.py` (from text, models, data), `models.py` (rows as dataclasses).
writing       `inputs.py` converts what users give to Arrow batches, `bulk_write.py` writes them, `row_writer.py` takes
              single rows, `write_results.py` is what comes back.
reading       `read_plan.py` pins a point in time and reads the partitions and keys that a filter names, `conditions.py`
              reads filters as text, `keys.py` keys as users write them; `read_ahead.py` reads ahead for other threads.
              `file_writers.py` writes rows to files, `plain_values.py` makes values of them that JSON can carry.
following     `follow.py` gives the changes, `changes.py` is what they look like, `group_feed.py` shares them.
SQL           `sql.py` runs DuckDB over `dataset.py`, `expressions.py` reads its filters, `log_cache.py` keeps columns.
              `sql_text.py` splits statements, `sql_catalog.py` answers questions about tables, `sql_changes.py` changes
              them, `sql_bitmaps.py` has functions; `duckdb_setup.py` is what depends on DuckDB and its version.
errors        `suggest.py` names the nearest name that exists.
tools         `internals.py` is what `fluss.tools` and the console use beyond the public methods.
"""
