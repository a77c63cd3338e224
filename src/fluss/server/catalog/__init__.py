# SPDX-License-Identifier: Apache-2.0
"""Databases, tables, partitions, access rules and lake bookkeeping: in memory, and crash-safe on disk."""

from __future__ import annotations

from fluss.server.catalog.catalog import DEFAULT_DATABASE, Catalog
from fluss.server.catalog.entries import DamagedTable, DatabaseEntry, Dropped, PartitionEntry, TableEntry

__all__ = ["DEFAULT_DATABASE", "Catalog", "DamagedTable", "DatabaseEntry", "Dropped", "PartitionEntry", "TableEntry"]
