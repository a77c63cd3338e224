# SPDX-License-Identifier: Apache-2.0
"""Where the public names live: loaded when first used, so that `import fluss` costs next to nothing."""

import sys

# Names for annotations that stand in quotes: `__future__`, which would do without, is a module to load as well.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

COMMON: dict[str, tuple[str, ...]] = {
    "fluss.client.admin": ("FlussAdmin",),
    "fluss.client.admin.types": (
        "AclBinding",
        "AclFilter",
        "AlterConfig",
        "AlterConfigOp",
        "ClusterHealth",
        "ConfigEntry",
        "DatabaseSummary",
        "FileSystemToken",
        "HealthStatus",
        "KvSnapshot",
        "KvSnapshotMetadata",
        "OperationType",
        "PermissionType",
        "ProducerOffsets",
        "RemoteLogManifest",
        "ResourceType",
        "SchemaInfo",
        "TableStats",
        "TieringHeartbeat",
        "TieringStats",
        "TieringTable",
    ),
    "fluss.client.lookup": (
        "Lookuper",
        "PrefixLookuper",
        "TableLookup",
        "TablePrefixLookup",
    ),
    "fluss.client.metrics": ("PrometheusCollector",),
    "fluss.client.scan": (
        "RecordBatch",
        "ScanRecord",
        "ScanRecords",
    ),
    "fluss.client.table": (
        "TableAppend",
        "TableUpsert",
    ),
    "fluss.client.write": ("WriteResultHandle",),
    "fluss.config": ("Config",),
    "fluss.db.changes": ("Change", "Position"),
    "fluss.db.results": ("WriteResult",),
    "fluss.errors": (
        "AuthenticateError",
        "AuthorizationError",
        "BucketMaxNumError",
        "ClusterConfigError",
        "ConfigError",
        "ConnectionClosedError",
        "CorruptMessageError",
        "CorruptRecordError",
        "DatabaseAlreadyExistError",
        "DatabaseNotEmptyError",
        "DatabaseNotExistError",
        "DeadlineExceededError",
        "DeletionDisabledError",
        "DiskWriteLockedError",
        "DuplicateSequenceError",
        "ErrorCode",
        "FencedLeaderEpochError",
        "FencedTieringEpochError",
        "FlussError",
        "FormatError",
        "HistoricalPartitionThrottledError",
        "IneligibleReplicaError",
        "InsufficientKvLeaderReplicaCapacityError",
        "InvalidAlterTableError",
        "InvalidArgumentError",
        "InvalidColumnProjectionError",
        "InvalidConfigError",
        "InvalidCoordinatorError",
        "InvalidDatabaseError",
        "InvalidProducerIdError",
        "InvalidReplicationFactorError",
        "InvalidRequiredAcksError",
        "InvalidRowError",
        "InvalidScanRequestError",
        "InvalidServerRackInfoError",
        "InvalidTableError",
        "InvalidTargetColumnError",
        "InvalidTimestampError",
        "InvalidUpdateVersionError",
        "KvSnapshotNotExistError",
        "KvStorageError",
        "LakeSnapshotNotExistError",
        "LakeStorageNotConfiguredError",
        "LakeTableAlreadyExistError",
        "LeaderNotAvailableError",
        "LogOffsetOutOfRangeError",
        "LogStorageError",
        "MissingDependencyError",
        "NetworkError",
        "NoRebalanceInProgressError",
        "NonPrimaryKeyTableError",
        "NotCoordinatorLeaderError",
        "NotEnoughReplicasAfterAppendError",
        "NotEnoughReplicasError",
        "NotLeaderOrFollowerError",
        "OperationNotAttemptedError",
        "OutOfOrderSequenceError",
        "PartitionAlreadyExistsError",
        "PartitionMaxNumError",
        "PartitionNotExistsError",
        "PartitionSpecInvalidError",
        "RebalanceFailureError",
        "RecordTooLargeError",
        "RequestTimeOutError",
        "RetriableAuthenticateError",
        "ScannerExpiredError",
        "SchemaNotExistError",
        "SecurityDisabledError",
        "SecurityTokenError",
        "ServerNotExistError",
        "SeverTagAlreadyExistError",
        "SeverTagNotExistError",
        "StorageBackpressureError",
        "StorageError",
        "TableAlreadyExistError",
        "TableNotExistError",
        "TableNotPartitionedError",
        "TooManyScannersError",
        "UnknownScannerIdError",
        "UnknownServerError",
        "UnknownTableOrBucketError",
        "UnknownWriterIdError",
        "UnsupportedVersionError",
    ),
    "fluss.server.local": ("LocalServer",),
    "fluss.metadata": (
        "EARLIEST_OFFSET",
        "LATEST_OFFSET",
        "AggFunction",
        "ChangeType",
        "Column",
        "ColumnRef",
        "DatabaseDescriptor",
        "DatabaseInfo",
        "DataField",
        "DataType",
        "DataTypes",
        "LakeSnapshot",
        "OffsetSpec",
        "PartitionInfo",
        "PartitionSpec",
        "Predicate",
        "Schema",
        "ServerNode",
        "TableBucket",
        "TableDescriptor",
        "TableInfo",
        "TablePath",
        "col",
    ),
}
"""The names that are the same in `fluss` and `fluss.aio`, by the module that defines them."""


def lazy(
    package: str, own: dict[str, tuple[str, ...]], submodules: tuple[str, ...] = ()
) -> "tuple[Callable[[str], Any], Callable[[], list[str]]]":
    """`__getattr__` and `__dir__` of a module that exports `COMMON`, its own names and some submodules."""
    homes = {name: module for table in (COMMON, own) for module, names in table.items() for name in names}

    def get(name: str) -> "Any":
        module = sys.modules[package]
        if name in homes:
            from fluss import _shadow

            _shadow.check_once()
            value = getattr(__import__(homes[name], fromlist=[name]), name)
        elif name in submodules:
            value = __import__(f"{package}.{name}", fromlist=[name])
        elif name == "__version__":
            from fluss._version import VERSION

            value = VERSION
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(module, name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes, *submodules, "__version__"})

    return get, names
