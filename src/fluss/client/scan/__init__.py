# SPDX-License-Identifier: Apache-2.0
"""Reading: log scanners for records and Arrow batches, bounded reads and limit scans."""

from fluss.client.scan.batch_scanner import BatchScanner
from fluss.client.scan.records import RecordBatch, ScanRecord, ScanRecords
from fluss.client.scan.scan import ScanPlan, TableScan
from fluss.client.scan.scanner import LogScanner

__all__ = ["BatchScanner", "LogScanner", "RecordBatch", "ScanPlan", "ScanRecord", "ScanRecords", "TableScan"]
