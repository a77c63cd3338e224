# SPDX-License-Identifier: Apache-2.0
"""The one table of public names, and their loading at first use, so that `import fluss` costs next to nothing.

A new public name is one word here; ``make generate`` writes the stubs that type checkers and editors read
(`__init__.pyi`, `aio.pyi`) from it.
"""

import sys

# `typing` and `__future__` would take longer to import than all of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

COMMON: dict[str, str] = {
    "fluss.client.admin": "FlussAdmin",
    "fluss.client.admin.balance": "BucketMove GoalType RebalanceProgress RebalanceStatus ServerTag",
    "fluss.client.admin.leases": "KvSnapshotLease",
    "fluss.client.admin.types": """
        ClusterHealth DatabaseSummary FileSystemToken HealthStatus KvSnapshot KvSnapshotMetadata ProducerOffsets
        RemoteLogManifest SchemaInfo TableStats TieringHeartbeat TieringStats TieringTable
    """,
    "fluss.client.lookup": "Lookuper PrefixLookuper TableLookup TablePrefixLookup",
    "fluss.client.metrics": "PrometheusCollector",
    "fluss.client.multi_table": "MultiTableRecords",
    "fluss.client.scan": "RecordBatch ScanRecord ScanRecords",
    "fluss.client.table": "TableAppend TableUpsert",
    "fluss.client.write": "WriteResultHandle",
    "fluss.config": "Config",
    "fluss.db.changes": "Change Position",
    "fluss.db.write_results": "WriteResult",
    # The errors that programs handle. All others are in `fluss.errors`.
    "fluss.errors": """
        AuthenticateError AuthorizationError ConfigError ConnectionClosedError DatabaseAlreadyExistError
        DatabaseNotEmptyError DatabaseNotExistError DeadlineExceededError DeletionDisabledError ErrorCode FlussError
        FormatError GroupRebalancedError InvalidAlterTableError InvalidArgumentError InvalidConfigError
        InvalidRowError InvalidTableError InvalidTimestampError LakeSnapshotNotExistError LakeTableAlreadyExistError
        LeaderNotAvailableError LogOffsetOutOfRangeError LogStorageError MissingDependencyError NetworkError
        NonPrimaryKeyTableError PartitionAlreadyExistsError PartitionNotExistsError RecordTooLargeError
        RequestTimeOutError SchemaNotExistError SecurityDisabledError TableAlreadyExistError TableNotExistError
        TableNotPartitionedError UnknownServerError UnsupportedVersionError
    """,
    "fluss.metadata": """
        AggFunction ChangeType Column ColumnRef DataField DataType DataTypes DatabaseDescriptor DatabaseInfo
        EARLIEST_OFFSET LATEST_OFFSET LakeSnapshot MergeMode OffsetSpec PartitionInfo PartitionSpec Predicate Schema
        ServerNode TableBucket TableDescriptor TableInfo TablePath col
    """,
    "fluss.metadata.acl": "AclBinding AclFilter OperationType PermissionType ResourceType",
    "fluss.metadata.info": "AlterConfig AlterConfigOp ConfigEntry",
    "fluss.server.local": "LocalServer",
}
"""The names that mean the same in `fluss` and `fluss.aio`, by the module that defines them."""

OWN: dict[str, dict[str, str]] = {
    "fluss": {
        "fluss.client.blocking_multi_table": """
            MultiTable MultiTableLogScanner MultiTableScan MultiTableWrite MultiTableWriter
        """,
        "fluss.client.blocking_scanners": "BatchScanner LogScanner TableBatchScanner TableScan",
        "fluss.client.blocking_writers": "AppendWriter UpsertWriter",
        "fluss.client.blocking": "FlussConnection FlussTable",
        "fluss.db.blocking": "Database Table",
        "fluss.db.connect": "connect",
    },
    "fluss.aio": {
        "fluss.client.connection": "FlussConnection FlussTable",
        "fluss.client.multi_table": """
            MultiTable MultiTableLogScanner MultiTableScan MultiTableWrite MultiTableWriter
        """,
        "fluss.client.scan": "BatchScanner LogScanner TableBatchScanner TableScan",
        "fluss.client.write": "AppendWriter UpsertWriter",
        "fluss.db.database": "Database connect",
        "fluss.db.table": "Table",
    },
}
"""The names of which each face has its own kind."""

SUBMODULES: dict[str, tuple[str, ...]] = {"fluss": ("aio", "config", "errors", "metadata"), "fluss.aio": ()}
"""The modules that can be reached without an import of their own."""


def homes_of(face: str) -> dict[str, str]:
    """Map each public name of `fluss` or `fluss.aio` to the module that defines it."""
    return {name: module for table in (COMMON, OWN[face]) for module, names in table.items() for name in names.split()}


def lazy(face: str) -> "tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]":
    """Make `__getattr__`, `__dir__` and `__all__` of `fluss` or `fluss.aio`."""
    homes = homes_of(face)
    submodules = SUBMODULES[face]

    def get(name: str) -> "Any":
        if name in homes:
            from fluss import _shadow

            _shadow.check_once()
            value = getattr(__import__(homes[name], fromlist=[name]), name)
        elif name in submodules:
            value = __import__(f"{face}.{name}", fromlist=[name])
        elif name == "__version__":
            from fluss._version import VERSION

            value = VERSION
        else:
            if name.endswith("Error"):  # before release 0.2 every error class was a name of `fluss` as well
                from fluss import errors

                if hasattr(errors, name):
                    return getattr(errors, name)
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        setattr(sys.modules[face], name, value)
        return value

    def names() -> "list[str]":
        dunder = [name for name in vars(sys.modules[face]) if name.startswith("__") and name.endswith("__")]
        return sorted({*dunder, *homes, *submodules, "__version__"})

    return get, names, sorted(homes)
