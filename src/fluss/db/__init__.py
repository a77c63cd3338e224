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
              single rows, `results.py` is what comes back.
reading       `reads.py` pins a point in time and reads the partitions and keys that a filter names, `keys.py` reads
              keys as users write them, `streams.py` reads ahead for other threads.
following     `follow.py` gives the changes, `changes.py` is what they look like.
SQL           `sql.py` runs DuckDB over `dataset.py`, `expressions.py` reads its filters, `log_cache.py` keeps columns.
errors        `suggest.py` names the nearest name that exists.
tools         `internals.py` is what `fluss.tools` and the console use beyond the public methods.
"""
