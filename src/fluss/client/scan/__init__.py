# SPDX-License-Identifier: Apache-2.0
"""Reading: log scanners for records and Arrow batches, bounded reads and limit scans."""

from fluss._lazy import lazy_names

NAMES = {
    "fluss.client.scan.batch_scanner": "BatchScanner",
    "fluss.client.scan.plan": "ScanPlan",
    "fluss.client.scan.records": "RecordBatch ScanRecord ScanRecords",
    "fluss.client.scan.scanner": "LogScanner",
    "fluss.client.scan.table_batch_scanner": "TableBatchScanner",
    "fluss.client.scan.table_scan": "TableScan",
}

__getattr__, __all__ = lazy_names(__name__, NAMES)
