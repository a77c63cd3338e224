# SPDX-License-Identifier: Apache-2.0
"""The high-level API: `fluss.connect()` and what it gives. Synchronous in `fluss`, coroutines in `fluss.aio`.

The asynchronous classes are the originals. `make generate` makes the synchronous ones, `blocking.py` and `connect.py`,
from them. What only those have (`len`, `in`, iteration) is in `blocking_base.py`; `bridge.py` runs one on the other.

Modules
-------
connecting    `connecting.py`: folder, address, environment or profile (`profiles.py`) to a server; `probing.py` looks
              whether it is there; `connected.py` is what a database and its tables share.
objects       `database.py`; `table.py`, with `table_about.py`, `table_reads.py` and `table_writes.py`; `show.py`.
new tables    `schemas.py` (from text, models, data), `models.py` (rows as dataclasses).
writing       `inputs.py` turns what users give into Arrow batches, `writing.py` writes them, `writer.py` takes single
              rows, `results.py` is what comes back.
reading       `reads.py` pins a point in time and reads it, `pruning.py` finds the partitions and keys that a filter
              names, `keys.py` reads keys as users write them, `streams.py` reads ahead for other threads.
following     `follow.py` gives the changes, `changes.py` is what they look like.
SQL           `sql.py` runs DuckDB over `dataset.py`, `expressions.py` reads its filters, `log_cache.py` keeps columns.
errors        `suggest.py` names the nearest name that exists.

The rest serves the command line and the console, and is no public API:

tables        `likes.py` (drafts of new tables), `altering.py`, `tailing.py`, `sql_session.py`.
files         `files.py` (formats), `row_files.py` and `json_rows.py` (rows that fit, and rows that do not),
              `loading.py`, `exporting.py`, `copying.py`, `backups.py`.
operation     `status.py`, `figures.py`, `server_options.py`, `access.py`, `profile_store.py`, `doctor.py`, `bench.py`,
              `sample.py`.
"""
