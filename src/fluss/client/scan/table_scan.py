# SPDX-License-Identifier: Apache-2.0
"""The builder of scanners."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fluss.client.arguments import instance, integer
from fluss.client.scan.plan import ScanPlan
from fluss.client.scan.records import RecordBatch, ScanRecord
from fluss.client.scan.scanner import LogScanner
from fluss.errors import InvalidArgumentError
from fluss.metadata import Predicate, TableBucket

if TYPE_CHECKING:
    from fluss.client.scan.batch_scanner import BatchScanner
    from fluss.client.scan.table_batch_scanner import TableBatchScanner


class TableScan:
    """Builder of scanners. Obtain it with `table.new_scan()`.

    Example:
        scanner = await table.new_scan().project_by_name(["id", "name"]).create_record_batch_log_scanner()
    """

    def __init__(self, plan: ScanPlan) -> None:
        self._plan = plan

    def project(self, indices: Sequence[int]) -> TableScan:
        """Read only the columns at these positions, in this order.

        Example:
            scan = table.new_scan().project([0, 2])
        """
        return TableScan(self._plan.project(indices))

    def project_by_name(self, names: Sequence[str]) -> TableScan:
        """Read only these columns, in this order.

        Example:
            scan = table.new_scan().project_by_name(["name", "id"])
        """
        return TableScan(self._plan.project_by_name(names))

    def filter(self, predicate: Predicate) -> TableScan:
        """Read only rows that match, for instance `fluss.col("id") > 3`.

        Example:
            scan = table.new_scan().filter((fluss.col("id") > 3) & (fluss.col("name") == "Alice"))
        """
        instance("filter", "predicate", predicate, Predicate, ", such as fluss.col('id') > 3")
        return TableScan(self._plan.with_filter(predicate))

    def limit(self, n: int) -> TableScan:
        """Read at most `n` rows, with `create_bucket_batch_scanner` or `create_table_batch_scanner`.

        Example:
            rows = await table.new_scan().limit(10).create_bucket_batch_scanner(bucket).to_arrow()
        """
        return TableScan(self._plan.with_limit(n))

    def with_fixed_schema(self, fixed_schema: bool) -> TableScan:
        """Whether rows written with an older schema are brought to the schema of this scan (the default).

        Example:
            scan = table.new_scan().with_fixed_schema(False)
        """
        return TableScan(replace(self._plan, fixed_schema=fixed_schema))

    def read_batches(
        self,
        start_offsets: dict[TableBucket, int],
        stop_offsets: dict[TableBucket, int] | None = None,
        *,
        timeout: float | None = None,
    ) -> AsyncGenerator[RecordBatch, None]:
        """Read all rows of these buckets from their start offsets up to (not including) their stop offsets.

        Without stop offsets: up to the ends of the log at the time of the first batch. `timeout` is the time for the
        whole read, in seconds; by default it may take as long as it makes progress. A stop offset behind the end of the
        log is waited for in vain, and ends the read with `DeadlineExceededError`. For a primary-key table these are
        changes, and `change_types` of each batch says what its rows did; the batches have no column of it.

        Example:
            bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
            async for found in table.new_scan().read_batches({bucket: 0}, {bucket: 1000}):
                print(found.base_offset, found.batch.num_rows)
        """
        self._plan.check_has_log()
        missing = [] if stop_offsets is None else [bucket for bucket in start_offsets if bucket not in stop_offsets]
        if missing:
            raise InvalidArgumentError(
                "read_batches(): stop_offsets must have an offset for each bucket of start_offsets; "
                f"{missing[0]} has none"
            )
        return self._plan.read(start_offsets, stop_offsets, self._plan.read_deadline(timeout))

    async def create_log_scanner(self) -> LogScanner[ScanRecord]:
        """A scanner of single records with offset, timestamp and change type, for `poll()`.

        Example:
            scanner = await table.new_scan().create_log_scanner()
        """
        return self._log_scanner(batches=False)

    async def create_record_batch_log_scanner(self) -> LogScanner[RecordBatch]:
        """A scanner of Arrow batches, for `poll_arrow()`, `poll_record_batch()`, `to_arrow()` and the like.

        Batches of a primary-key table are its changelog, and end with a column `_change_type`; see `LogScanner`.

        Example:
            scanner = await table.new_scan().create_record_batch_log_scanner()
        """
        return self._log_scanner(batches=True)

    async def create_batch_scanner(self) -> LogScanner[RecordBatch]:
        """Older name of `create_record_batch_log_scanner`.

        Example:
            scanner = await table.new_scan().create_batch_scanner()
        """
        return await self.create_record_batch_log_scanner()

    def create_bucket_batch_scanner(self, bucket: TableBucket, *, snapshot_id: int | None = None) -> BatchScanner:
        """A scanner that reads one bucket once and ends: the last rows, or (primary-key tables) some or all rows.

        With the id of a snapshot, from `admin.get_latest_kv_snapshots()`, its rows are read, straight from the remote
        storage of the server. The scanner's `log_offset` is where the changelog goes on from it.

        Example:
            bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
            async for found in table.new_scan().limit(100).create_bucket_batch_scanner(bucket):
                print(found.batch)
        """
        self._plan.check_has_log()
        self._plan._check_no_view("a bucket cannot be read alone")
        from fluss.client.scan.batch_scanner import BatchScanner  # log scans do without its modules

        instance("create_bucket_batch_scanner", "bucket", bucket, TableBucket)
        if snapshot_id is not None:
            snapshot_id = integer("create_bucket_batch_scanner", "snapshot_id", snapshot_id)
        return BatchScanner(self._plan, bucket, snapshot_id)

    def create_table_batch_scanner(self) -> TableBatchScanner:
        """A scanner that reads the whole table once and ends: all partitions and buckets, several at a time.

        Example:
            users = await conn.get_table("shop.users")
            rows = await users.new_scan().create_table_batch_scanner().to_arrow()
        """
        from fluss.client.scan.table_batch_scanner import TableBatchScanner  # log scans do without its modules

        return TableBatchScanner(self._plan)

    def _log_scanner(self, *, batches: bool, change_type_column: bool = True) -> LogScanner[Any]:
        self._plan.check_has_log()
        if self._plan.limit is not None:
            raise InvalidArgumentError(
                "a log scanner has no limit; use create_bucket_batch_scanner() or create_table_batch_scanner() "
                "with limit()"
            )
        return LogScanner(self._plan, batches=batches, change_type_column=change_type_column)

    def __repr__(self) -> str:
        return f"TableScan({self._plan.info.table_path})"
