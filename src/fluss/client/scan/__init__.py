# SPDX-License-Identifier: Apache-2.0
"""Reading: log scanners for records and Arrow batches, bounded reads and limit scans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluss._lazy import lazy_names
from fluss.client.scan.plan import ScanPlan
from fluss.client.scan.records import RecordBatch, ScanRecord, ScanRecords
from fluss.client.scan.scanner import LogScanner
from fluss.client.scan.table_scan import TableScan

if TYPE_CHECKING:
    from fluss.client.scan.batch_scanner import BatchScanner

__all__ = ["BatchScanner", "LogScanner", "RecordBatch", "ScanPlan", "ScanRecord", "ScanRecords", "TableScan"]

__getattr__ = lazy_names(
    __name__,
    {
        "fluss.client.scan.batch_scanner": "BatchScanner",
    },
)
