# SPDX-License-Identifier: Apache-2.0
"""One tree of errors.

::

    FlussError                   root; carries message and error_code
    |- <one class per code>      what a server said (TableNotExistError, ...); generated from ERROR_TABLE
    |- FormatError               bytes or a document that cannot be read
    |- ConfigError               an unknown option, or a value it does not take
    |- InvalidRowError           a row or value that does not fit its table
    |- InvalidArgumentError      a call that makes no sense
    |- ConnectionClosedError     use of something that was closed
    |- DeadlineExceededError     a wait that took too long
    `- MissingDependencyError    an optional package that is not installed

Those without a code of the protocol carry `ErrorCode.CLIENT_ERROR` (-2).
"""

from __future__ import annotations

from fluss._error_base import CLIENT_ERROR, ERROR_TABLE, ERRORS_BY_CODE, ErrorRow, FlussError
from fluss._error_classes import (
    ERROR_CLASSES,
    AuthenticateError,
    AuthorizationError,
    BucketMaxNumError,
    ClusterConfigError,
    CorruptMessageError,
    CorruptRecordError,
    DatabaseAlreadyExistError,
    DatabaseNotEmptyError,
    DatabaseNotExistError,
    DeletionDisabledError,
    DiskWriteLockedError,
    DuplicateSequenceError,
    ErrorCode,
    FencedLeaderEpochError,
    FencedTieringEpochError,
    HistoricalPartitionThrottledError,
    IneligibleReplicaError,
    InsufficientKvLeaderReplicaCapacityError,
    InvalidAlterTableError,
    InvalidColumnProjectionError,
    InvalidConfigError,
    InvalidCoordinatorError,
    InvalidDatabaseError,
    InvalidProducerIdError,
    InvalidReplicationFactorError,
    InvalidRequiredAcksError,
    InvalidScanRequestError,
    InvalidServerRackInfoError,
    InvalidTableError,
    InvalidTargetColumnError,
    InvalidTimestampError,
    InvalidUpdateVersionError,
    KvSnapshotNotExistError,
    KvStorageError,
    LakeSnapshotNotExistError,
    LakeStorageNotConfiguredError,
    LakeTableAlreadyExistError,
    LeaderNotAvailableError,
    LogOffsetOutOfRangeError,
    LogStorageError,
    NetworkError,
    NonPrimaryKeyTableError,
    NoRebalanceInProgressError,
    NotCoordinatorLeaderError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OperationNotAttemptedError,
    OutOfOrderSequenceError,
    PartitionAlreadyExistsError,
    PartitionMaxNumError,
    PartitionNotExistsError,
    PartitionSpecInvalidError,
    RebalanceFailureError,
    RecordTooLargeError,
    RequestTimeOutError,
    RetriableAuthenticateError,
    ScannerExpiredError,
    SchemaNotExistError,
    SecurityDisabledError,
    SecurityTokenError,
    ServerNotExistError,
    SeverTagAlreadyExistError,
    SeverTagNotExistError,
    StorageBackpressureError,
    StorageError,
    TableAlreadyExistError,
    TableNotExistError,
    TableNotPartitionedError,
    TooManyScannersError,
    UnknownScannerIdError,
    UnknownServerError,
    UnknownTableOrBucketError,
    UnknownWriterIdError,
    UnsupportedVersionError,
)


class FormatError(FlussError):
    """Bytes or a document that cannot be read; the message names the field and the position."""


class ConfigError(FlussError):
    """An unknown option, or a value the option does not take."""


class InvalidRowError(FlussError):
    """A row or a value that does not fit the table."""


class InvalidArgumentError(FlussError, ValueError):
    """A call whose arguments make no sense."""


class ConnectionClosedError(FlussError):
    """Use of a connection, writer or scanner that was closed."""


class DeadlineExceededError(FlussError, TimeoutError):
    """A wait that took longer than allowed."""


class MissingDependencyError(FlussError, ImportError):
    """An optional package that is not installed; the message says how to install it."""


def error_for_code(code: int, message: str | None = None) -> FlussError:
    """The error of the class that belongs to `code`; an unknown code keeps its number.

    An empty message is replaced by the default text of the code.
    """
    return ERROR_CLASSES.get(code, FlussError)(message or None, code)


__all__ = [
    "CLIENT_ERROR",
    "ERRORS_BY_CODE",
    "ERROR_CLASSES",
    "ERROR_TABLE",
    "ErrorCode",
    "ErrorRow",
    "FlussError",
    "error_for_code",
    "FormatError",
    "ConfigError",
    "ClusterConfigError",
    "InvalidRowError",
    "InvalidArgumentError",
    "ConnectionClosedError",
    "DeadlineExceededError",
    "MissingDependencyError",
    "AuthenticateError",
    "AuthorizationError",
    "BucketMaxNumError",
    "CorruptMessageError",
    "CorruptRecordError",
    "DatabaseAlreadyExistError",
    "DatabaseNotEmptyError",
    "DatabaseNotExistError",
    "DeletionDisabledError",
    "DiskWriteLockedError",
    "DuplicateSequenceError",
    "FencedLeaderEpochError",
    "FencedTieringEpochError",
    "HistoricalPartitionThrottledError",
    "IneligibleReplicaError",
    "InsufficientKvLeaderReplicaCapacityError",
    "InvalidAlterTableError",
    "InvalidColumnProjectionError",
    "InvalidConfigError",
    "InvalidCoordinatorError",
    "InvalidDatabaseError",
    "InvalidProducerIdError",
    "InvalidReplicationFactorError",
    "InvalidRequiredAcksError",
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
]
