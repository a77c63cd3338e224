# SPDX-License-Identifier: Apache-2.0
"""Writes: checked on the driver before anything runs, done by tasks in Arrow batches, acknowledged before they end."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource as d
from pyspark.sql.types import StructType

from fluss.client.blocking_client import BlockingClient
from fluss.errors import ConfigError, TableNotExistError
from fluss.metadata import TableInfo, TablePath
from fluss.spark.connect import client_of
from fluss.spark.failures import driver_side
from fluss.spark.layout import Layout
from fluss.spark.ledger import DRIVER, Attempt, Delivery, Ledger, create_ledger
from fluss.spark.ledger import TABLE as LEDGER_TABLE
from fluss.spark.options import SourceOptions, table_path
from fluss.spark.overwrite import Overwrite, discard
from fluss.spark.rows_in import RowsIn
from fluss.spark.versions import StreamArrowWriter
from fluss.spark.written_rows import NO_DIGESTS, Digests, RowsWritten, WrittenLog
from fluss.tools.drafts import descriptor_of

QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a micro-batch."""


@dataclass
class TaskDone(d.WriterCommitMessage):  # type: ignore[misc]
    """What a task reports to the driver."""

    rows: int
    skipped: int = 0
    delivery: Delivery | None = None
    earlier_rows: int = 0
    """How many rows earlier runs of the batch wrote."""
    left_out: Digests = field(default_factory=lambda: NO_DIGESTS)
    """Those of them that are in the input of the task."""


class SparkWriter:
    """What batch and stream writers share. Made on the driver, sent to the tasks."""

    def __init__(
        self,
        options: SourceOptions,
        schema: StructType,
        *,
        streaming: bool,
        overwrite: bool,
        partitions: Sequence[str] | None = None,
    ) -> None:
        self._options = options
        client = client_of(options.client)
        info = client.info(options.table_path)
        self._rows = RowsIn(info, schema, options)
        self._path = options.table_path
        """The table that tasks write to."""
        self._table_id = info.table_id
        self._streaming = streaming
        self._exactly_once = self._delivery(info, streaming) == "exactly-once"
        self._transaction = f"txn:{options['txnAppId']}:{info.table_id}"
        """What the ledger has a transaction under: a name may be that of several tables, one after another."""
        self._run = str(uuid.uuid4())
        self._job = f"job:{self._run}"
        if streaming and overwrite and not info.has_primary_key():
            raise ConfigError(
                f"log table {info.table_path} cannot take output mode complete, which replaces all rows each time; "
                "use append, or a table with a primary key"
            )
        if self._exactly_once and not client.connection.config.writer_enable_idempotence:
            raise ConfigError(
                "writer.enable-idempotence is false, but exactly-once needs the ids of idempotent writers; leave it "
                "out, or set write.delivery to at-least-once"
            )
        if self._exactly_once and options["write.speculation"]:
            raise ConfigError(
                f"spark.speculation is on, but exactly-once to {info.table_path} needs that no two attempts of a task "
                "write at the same time; start Spark with spark.speculation=false, or set write.delivery to "
                "at-least-once"
            )
        in_ledger = self._exactly_once or options["txnAppId"] is not None
        if in_ledger and options["write.parts"] and not streaming:
            raise ConfigError(
                f"exactly-once to {info.table_path} needs that a task writes its rows in one part; give txnAppId or "
                "write.delivery as an option of this write"
            )
        if in_ledger:
            create_ledger(client, self._ledger_path())
        self._overwrite: Overwrite | None = None
        if overwrite and not streaming:
            generated = info.schema.get_auto_increment_columns()
            if generated:
                raise ConfigError(
                    f"table {info.table_path} cannot be overwritten: all rows would get new numbers in column "
                    f"'{generated[0]}'. Change rows by key, or remove them (TRUNCATE TABLE, DROP PARTITION) and append"
                )
            self._overwrite = Overwrite(info.table_path, descriptor_of(info), partitions)
            self._path = self._overwrite.staging
            self._table_id = self._overwrite.prepare(client).table_id

    def _delivery(self, info: TableInfo, streaming: bool) -> str:
        wanted = self._options["write.delivery"]
        if info.has_primary_key():
            # Writing a row again changes nothing, except where values are summed up.
            aggregates = info.get_properties().get("table.merge-engine") == "aggregation"
            if aggregates and (wanted == "exactly-once" or self._options["txnAppId"] is not None):
                raise ConfigError(
                    f"table {info.table_path} aggregates, and a row that is written again counts again; leave out "
                    "write.delivery 'exactly-once' and txnAppId: only at-least-once can be promised"
                )
            return "at-least-once"
        if wanted is not None:
            return str(wanted)
        return "exactly-once" if streaming or self._options["txnAppId"] is not None else "at-least-once"

    def _ledger_path(self) -> TablePath:
        named = self._options["write.ledger"]
        if named is None:
            return TablePath(self._options.table_path.database_name, LEDGER_TABLE)
        return table_path(named)

    # -- in the tasks ---------------------------------------------------------------------------------------------

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        client = client_of(self._options.client)
        delivery = self._this_delivery()
        if delivery is None:
            return TaskDone(self._write_all(client, iterator, None))
        ledger = Ledger(client, self._ledger_path())
        committed = ledger.committed(delivery.query)
        if committed is not None and committed >= delivery.batch:
            return TaskDone(0, sum(batch.num_rows for batch in iterator), delivery)
        if self._exactly_once:
            return self._write_once(client, iterator, ledger, delivery)
        return TaskDone(self._write_all(client, iterator, None), delivery=delivery)

    def _write_all(self, client: BlockingClient, batches: Iterator[pa.RecordBatch], before: RowsWritten | None) -> int:
        table = client.table(self._path)
        if table.get_table_info().table_id != self._table_id:
            raise TableNotExistError(f"table {self._path} was dropped and created again while it was written to")
        rows = 0
        with self._rows.writer(client, table) as write:
            for batch in batches:
                shaped = self._rows.shape(batch)
                if before is not None:
                    shaped = before.strip(shaped)
                rows += shaped.num_rows
                if shaped.num_rows:
                    write(shaped)
        return rows

    def _write_once(
        self, shared: BlockingClient, iterator: Iterator[pa.RecordBatch], ledger: Ledger, delivery: Delivery
    ) -> TaskDone:
        attempts = ledger.attempts(delivery.query, delivery.batch)
        own = [attempt for attempt in attempts if (attempt.run, attempt.task) == (self._run, delivery.task)]
        log = WrittenLog(shared, shared.table(self._path))
        before = RowsWritten(log, own, self._of_earlier_runs(attempts))
        with self._noted_client(ledger, delivery) as client:
            rows = self._write_all(client, iterator, before)
        return TaskDone(rows, before.skipped, delivery, before.earlier_rows, before.left_out)

    def _of_earlier_runs(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        return [attempt for attempt in attempts if attempt.run != self._run]

    @contextlib.contextmanager
    def _noted_client(self, ledger: Ledger, delivery: Delivery) -> Iterator[BlockingClient]:
        """A connection whose writers are noted in the ledger before they send; their ids are of this attempt alone."""
        shared = client_of(self._options.client)
        layout = Layout.load(shared, shared.info(self._path))
        ends = {bucket.key: end for bucket, end in layout.latest().items()}

        async def note(writer_id: int) -> None:
            await ledger.begin(delivery, writer_id, self._run, ends)

        with BlockingClient(self._options.client) as client:
            client.connection.on_writer_id(note)
            yield client

    def _this_delivery(self) -> Delivery | None:
        """What the ledger has the rows of this task under; None if it has nothing about them."""
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
        if self._options["txnAppId"] is not None and self._overwrite is None:
            return Delivery(self._transaction, self._options["txnVersion"], task)
        if not self._exactly_once:
            return None
        query = None if context is None else context.getLocalProperty(QUERY_PROPERTY)
        batch = None if context is None else context.getLocalProperty(BATCH_PROPERTY)
        # A function for micro-batches (foreachBatch) may write to a table more than once.
        if not self._streaming or query is None or batch is None:
            return Delivery(self._job, 0, task)
        return Delivery(f"query:{query}:{self._table_id}", int(batch), task)

    # -- on the driver --------------------------------------------------------------------------------------------

    def finish(self, messages: Sequence[TaskDone | None]) -> None:
        """All tasks are done: note it, so that a run of the same batch again does nothing."""
        known = [message for message in messages if message is not None and message.delivery is not None]
        if not known:
            return
        client = client_of(self._options.client)
        ledger = Ledger(client, self._ledger_path())
        first = known[0].delivery
        assert first is not None
        self._restore(client, ledger, Delivery(first.query, first.batch, DRIVER), known)
        if first.query == self._job:
            ledger.discard(self._job, 0)  # no other run asks for it
        else:
            ledger.commit(first.query, first.batch)

    def _restore(self, client: BlockingClient, ledger: Ledger, delivery: Delivery, done: Sequence[TaskDone]) -> None:
        """Append the rows that tasks left out too often: rows that are alike, in the input of several tasks."""
        left_out = np.concatenate([message.left_out for message in done])
        earlier_rows = {message.earlier_rows for message in done}
        if len(earlier_rows) == 1 and len(left_out) <= max(earlier_rows):
            return
        earlier = self._of_earlier_runs(ledger.attempts(delivery.query, delivery.batch))
        table = client.table(self._path)
        log = WrittenLog(client, table)
        with (
            self._noted_client(ledger, delivery) as own,
            self._rows.writer(own, own.table(self._path)) as write,
        ):
            log.restore(earlier, left_out, earlier_rows, write)


class FlussWriter(SparkWriter, d.DataSourceArrowWriter):  # type: ignore[misc]
    """Writes a DataFrame to a table."""

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        partitions = options["overwrite.partitions"]
        if partitions is not None and not overwrite:
            raise ConfigError("overwrite.partitions belongs to mode('overwrite')")
        SparkWriter.__init__(self, options, schema, streaming=False, overwrite=overwrite, partitions=partitions)

    @driver_side
    def commit(self, messages: list[Any]) -> None:
        self.finish(messages)
        if self._overwrite is not None:
            self._replace_rows(client_of(self._options.client), self._overwrite)

    def _replace_rows(self, client: BlockingClient, overwrite: Overwrite) -> None:
        if self._options["txnAppId"] is None:
            overwrite.finish(client)
            return
        ledger = Ledger(client, self._ledger_path())
        version = self._options["txnVersion"]
        committed = ledger.committed(self._transaction)
        if committed is not None and committed >= version:
            discard(client, overwrite.staging)
            return
        overwrite.finish(client)
        replaced = client.info(self._options.table_path).table_id  # another one, unless partitions were replaced
        ledger.commit(f"txn:{self._options['txnAppId']}:{replaced}", version)

    @driver_side
    def abort(self, messages: list[Any]) -> None:
        """Rows that are in the log stay there; a run of the same transaction again leaves them out."""
        client = client_of(self._options.client)
        if self._overwrite is not None:
            discard(client, self._overwrite.staging)
        if self._exactly_once:
            Ledger(client, self._ledger_path()).discard(self._job, 0)


class FlussStreamWriter(SparkWriter, StreamArrowWriter):  # type: ignore[misc]
    """Writes the micro-batches of a stream to a table."""

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        for name in ("txnAppId", "overwrite.partitions"):
            if options[name] is not None:
                raise ConfigError(f"{name} is for batch writes; a stream is known by its query and batch ids")
        SparkWriter.__init__(self, options, schema, streaming=True, overwrite=overwrite)

    @driver_side
    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        self.finish(messages)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """The micro-batch runs again; what it wrote is then found in the ledger."""
