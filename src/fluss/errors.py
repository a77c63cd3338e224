# SPDX-License-Identifier: Apache-2.0
"""One tree of errors: a class for each code of the protocol, then those that no server sends.

Whether an error is worth another try, and whether metadata must be refreshed before it, is said by its class and
nowhere else. Idempotent writers know themselves what to do about codes 31 to 33, the handshake about 51.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from fluss._text import escaped

_PEER_CHARS_MAX = 10_000

ErrorT = TypeVar("ErrorT", bound="FlussError")


class ErrorCode:
    """The error codes by name. A server may send codes that are not listed here; they are kept as they are."""

    CLIENT_ERROR = -2
    """The code of every error that no server sent."""
    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    NETWORK_EXCEPTION = 1
    UNSUPPORTED_VERSION = 2
    CORRUPT_MESSAGE = 3
    DATABASE_NOT_EXIST = 4
    DATABASE_NOT_EMPTY = 5
    DATABASE_ALREADY_EXIST = 6
    TABLE_NOT_EXIST = 7
    TABLE_ALREADY_EXIST = 8
    SCHEMA_NOT_EXIST = 9
    LOG_STORAGE_EXCEPTION = 10
    KV_STORAGE_EXCEPTION = 11
    NOT_LEADER_OR_FOLLOWER = 12
    RECORD_TOO_LARGE_EXCEPTION = 13
    CORRUPT_RECORD_EXCEPTION = 14
    INVALID_TABLE_EXCEPTION = 15
    INVALID_DATABASE_EXCEPTION = 16
    INVALID_REPLICATION_FACTOR = 17
    INVALID_REQUIRED_ACKS = 18
    LOG_OFFSET_OUT_OF_RANGE_EXCEPTION = 19
    NON_PRIMARY_KEY_TABLE_EXCEPTION = 20
    UNKNOWN_TABLE_OR_BUCKET_EXCEPTION = 21
    INVALID_UPDATE_VERSION_EXCEPTION = 22
    INVALID_COORDINATOR_EXCEPTION = 23
    FENCED_LEADER_EPOCH_EXCEPTION = 24
    REQUEST_TIME_OUT = 25
    STORAGE_EXCEPTION = 26
    OPERATION_NOT_ATTEMPTED_EXCEPTION = 27
    NOT_ENOUGH_REPLICAS_AFTER_APPEND_EXCEPTION = 28
    NOT_ENOUGH_REPLICAS_EXCEPTION = 29
    SECURITY_TOKEN_EXCEPTION = 30
    OUT_OF_ORDER_SEQUENCE_EXCEPTION = 31
    DUPLICATE_SEQUENCE_EXCEPTION = 32
    UNKNOWN_WRITER_ID_EXCEPTION = 33
    INVALID_COLUMN_PROJECTION = 34
    INVALID_TARGET_COLUMN = 35
    PARTITION_NOT_EXISTS = 36
    TABLE_NOT_PARTITIONED_EXCEPTION = 37
    INVALID_TIMESTAMP_EXCEPTION = 38
    INVALID_CONFIG_EXCEPTION = 39
    LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION = 40
    KV_SNAPSHOT_NOT_EXIST = 41
    PARTITION_ALREADY_EXISTS = 42
    PARTITION_SPEC_INVALID_EXCEPTION = 43
    LEADER_NOT_AVAILABLE_EXCEPTION = 44
    PARTITION_MAX_NUM_EXCEPTION = 45
    AUTHENTICATE_EXCEPTION = 46
    SECURITY_DISABLED_EXCEPTION = 47
    AUTHORIZATION_EXCEPTION = 48
    BUCKET_MAX_NUM_EXCEPTION = 49
    FENCED_TIERING_EPOCH_EXCEPTION = 50
    RETRIABLE_AUTHENTICATE_EXCEPTION = 51
    INVALID_SERVER_RACK_INFO_EXCEPTION = 52
    LAKE_SNAPSHOT_NOT_EXIST = 53
    LAKE_TABLE_ALREADY_EXIST = 54
    INELIGIBLE_REPLICA_EXCEPTION = 55
    INVALID_ALTER_TABLE_EXCEPTION = 56
    DELETION_DISABLED_EXCEPTION = 57
    SERVER_NOT_EXIST_EXCEPTION = 58
    SEVER_TAG_ALREADY_EXIST_EXCEPTION = 59
    SEVER_TAG_NOT_EXIST_EXCEPTION = 60
    REBALANCE_FAILURE_EXCEPTION = 61
    NO_REBALANCE_IN_PROGRESS_EXCEPTION = 62
    INVALID_PRODUCER_ID_EXCEPTION = 63
    CONFIG_EXCEPTION = 64
    NOT_COORDINATOR_LEADER_EXCEPTION = 65
    SCANNER_EXPIRED = 66
    UNKNOWN_SCANNER_ID = 67
    INVALID_SCAN_REQUEST = 68
    TOO_MANY_SCANNERS = 69
    DISK_WRITE_LOCKED = 70
    INSUFFICIENT_KV_LEADER_REPLICA_CAPACITY = 71
    STORAGE_BACKPRESSURE_EXCEPTION = 72
    HISTORICAL_PARTITION_THROTTLED = 73
    INVALID_BUCKET_ROUTING = 74


ERROR_NAMES: dict[int, str] = {code: name for name, code in vars(ErrorCode).items() if name.isupper()}
"""What the protocol calls each code. Two names (59, 60) are misspelt there and kept as they are."""
ERROR_CLASSES: dict[int, type[FlussError]] = {}
"""The class of each code of the protocol."""


class FlussError(Exception):
    """The root of every error this package raises on purpose.

    The message is made from the other attributes and is for people; programs read the attributes.

    Attributes:
        message: The whole text: ``table db.t: row 7, column 'a' (INT): reason; hint``, as far as it is known.
        reason: What happened, without the place and the hint.
        error_code: The code of the server, or -2 (`ErrorCode.CLIENT_ERROR`) for errors that arise on this side.
        table: The table it is about.
        row: The position of the row it is about among those given, from 0.
        column: The name of the column it is about.
        column_type: The type of that column.
        hint: What to do next.

    Example:
        try:
            table.append(rows)
        except fluss.InvalidRowError as error:
            print(error.row, error.column, error.reason)
    """

    default_error_code: ClassVar[int] = ErrorCode.CLIENT_ERROR
    _policy: ClassVar[tuple[bool, bool]] = (False, False)
    """Whether errors of the class are retriable, and whether they mean that metadata is stale."""

    def __init_subclass__(
        cls, *, code: int | None = None, retriable: bool = False, stale_metadata: bool = False
    ) -> None:
        """Define the class of a code. Its docstring is what is said when the sender gave no text of its own.

        Args:
            code: The code that servers send; none for errors that arise on this side.
            retriable: The same request may succeed if it is sent again a little later.
            stale_metadata: What the client believes about leaders or servers is out of date: refresh metadata first.
        """
        if code is not None:
            cls.default_error_code = code
            cls._policy = retriable, stale_metadata
            ERROR_CLASSES[code] = cls

    def __init__(
        self,
        message: str | None = None,
        error_code: int | None = None,
        *,
        table: object = None,
        row: int | None = None,
        column: str | None = None,
        column_type: object = None,
        hint: str | None = None,
    ) -> None:
        code = type(self).default_error_code if error_code is None else error_code
        if message is None:
            message = getattr(ERROR_CLASSES.get(code), "__doc__", None) or f"Unknown error with code {code}."
        self.reason: str = message
        self.error_code: int = code
        self.table: str | None = None if table is None else str(table)
        self.row: int | None = row
        self.column: str | None = column
        self.column_type: str | None = None if column_type is None else str(column_type)
        self.hint: str | None = hint
        super().__init__(self.message, code)

    @property
    def message(self) -> str:
        """The place, the reason and the hint in one text."""
        place = []
        if self.row is not None:
            place.append(f"row {self.row}")
        if self.column is not None:
            kind = f" ({self.column_type})" if self.column_type is not None else ""
            place.append(f"column {self.column!r}{kind}")
        table = f"table {self.table}: " if self.table is not None else ""
        where = f"{', '.join(place)}: " if place else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{table}{where}{self.reason}{hint}"

    def replace(self: ErrorT, **fields: Any) -> ErrorT:
        """Return a copy with some attributes changed: more of the place, say, or another hint.

        Example:
            raise error.replace(table=path, row=first_row + row) from None
        """
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__, **fields)
        copy.args = (copy.message, copy.error_code)
        return copy

    @property
    def is_retriable(self) -> bool:
        """Whether the same request may succeed if it is sent again."""
        return ERROR_CLASSES.get(self.error_code, FlussError)._policy[0]

    @property
    def is_stale_metadata(self) -> bool:
        """Whether metadata (leaders, servers) should be refreshed before anything else is tried."""
        return ERROR_CLASSES.get(self.error_code, FlussError)._policy[1]

    @property
    def error_name(self) -> str:
        """The protocol's name for the code, for instance ``TABLE_NOT_EXIST``."""
        return ERROR_NAMES.get(self.error_code, "UNKNOWN")

    def __str__(self) -> str:
        if self.error_code == ErrorCode.CLIENT_ERROR:
            return self.message
        return f"{self.message} [{self.error_name}, code {self.error_code}]"


class UnknownServerError(FlussError, code=ErrorCode.UNKNOWN_SERVER_ERROR):
    """The server failed in a way it did not foresee."""


class NetworkError(FlussError, code=ErrorCode.NETWORK_EXCEPTION, retriable=True, stale_metadata=True):
    """The connection to the server was lost."""


class UnsupportedVersionError(FlussError, code=ErrorCode.UNSUPPORTED_VERSION):
    """The peer does not support this API or this version of it."""


class CorruptMessageError(FlussError, code=ErrorCode.CORRUPT_MESSAGE, retriable=True):
    """A batch is broken: wrong checksum, size or format version."""


class DatabaseNotExistError(FlussError, code=ErrorCode.DATABASE_NOT_EXIST):
    """The database does not exist."""


class DatabaseNotEmptyError(FlussError, code=ErrorCode.DATABASE_NOT_EMPTY):
    """The database still has tables; drop them first or ask to cascade."""


class DatabaseAlreadyExistError(FlussError, code=ErrorCode.DATABASE_ALREADY_EXIST):
    """The database already exists."""


class TableNotExistError(FlussError, code=ErrorCode.TABLE_NOT_EXIST):
    """The table does not exist."""


class TableAlreadyExistError(FlussError, code=ErrorCode.TABLE_ALREADY_EXIST):
    """The table already exists."""


class SchemaNotExistError(FlussError, code=ErrorCode.SCHEMA_NOT_EXIST, retriable=True):
    """The table has no schema with this id."""


class LogStorageError(FlussError, code=ErrorCode.LOG_STORAGE_EXCEPTION, retriable=True):
    """The server could not read or write its log files."""


class KvStorageError(FlussError, code=ErrorCode.KV_STORAGE_EXCEPTION, retriable=True):
    """The server could not read or write its key-value store."""


class NotLeaderOrFollowerError(FlussError, code=ErrorCode.NOT_LEADER_OR_FOLLOWER, retriable=True, stale_metadata=True):
    """This server does not lead the bucket."""


class RecordTooLargeError(FlussError, code=ErrorCode.RECORD_TOO_LARGE_EXCEPTION):
    """A record is larger than the server accepts."""


class CorruptRecordError(FlussError, code=ErrorCode.CORRUPT_RECORD_EXCEPTION, retriable=True):
    """A record is not valid."""


class InvalidTableError(FlussError, code=ErrorCode.INVALID_TABLE_EXCEPTION):
    """The table definition is not valid."""


class InvalidDatabaseError(FlussError, code=ErrorCode.INVALID_DATABASE_EXCEPTION):
    """The database definition is not valid."""


class InvalidReplicationFactorError(FlussError, code=ErrorCode.INVALID_REPLICATION_FACTOR):
    """The replication factor exceeds the number of live tablet servers."""


class InvalidRequiredAcksError(FlussError, code=ErrorCode.INVALID_REQUIRED_ACKS):
    """The acks setting must be one of -1 (all), 0 and 1."""


class LogOffsetOutOfRangeError(FlussError, code=ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION):
    """The offset lies before the start or after the end of the log."""


class NonPrimaryKeyTableError(FlussError, code=ErrorCode.NON_PRIMARY_KEY_TABLE_EXCEPTION):
    """The operation needs a table with a primary key."""


class UnknownTableOrBucketError(
    FlussError, code=ErrorCode.UNKNOWN_TABLE_OR_BUCKET_EXCEPTION, retriable=True, stale_metadata=True
):
    """The server does not know this bucket."""


class InvalidUpdateVersionError(FlussError, code=ErrorCode.INVALID_UPDATE_VERSION_EXCEPTION):
    """The update carries an outdated bucket epoch."""


class InvalidCoordinatorError(FlussError, code=ErrorCode.INVALID_COORDINATOR_EXCEPTION):
    """The request carries an outdated coordinator epoch."""


class FencedLeaderEpochError(FlussError, code=ErrorCode.FENCED_LEADER_EPOCH_EXCEPTION, stale_metadata=True):
    """The request carries an outdated leader epoch."""


class RequestTimeOutError(FlussError, code=ErrorCode.REQUEST_TIME_OUT, retriable=True):
    """The request was not completed in time."""


class StorageError(FlussError, code=ErrorCode.STORAGE_EXCEPTION, retriable=True):
    """The storage of the bucket is not available on this server."""


class OperationNotAttemptedError(FlussError, code=ErrorCode.OPERATION_NOT_ATTEMPTED_EXCEPTION):
    """The server skipped the operation."""


class NotEnoughReplicasAfterAppendError(
    FlussError, code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND_EXCEPTION, retriable=True
):
    """The records were written, but too few replicas were in sync to confirm them."""


class NotEnoughReplicasError(FlussError, code=ErrorCode.NOT_ENOUGH_REPLICAS_EXCEPTION, retriable=True):
    """Too few replicas are in sync; nothing was written."""


class SecurityTokenError(FlussError, code=ErrorCode.SECURITY_TOKEN_EXCEPTION):
    """The server could not obtain a file system token."""


class OutOfOrderSequenceError(FlussError, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION):
    """A batch of an idempotent writer does not follow the last one."""


class DuplicateSequenceError(FlussError, code=ErrorCode.DUPLICATE_SEQUENCE_EXCEPTION):
    """This batch of an idempotent writer was already written."""


class UnknownWriterIdError(FlussError, code=ErrorCode.UNKNOWN_WRITER_ID_EXCEPTION):
    """The server has lost the state of this idempotent writer."""


class InvalidColumnProjectionError(FlussError, code=ErrorCode.INVALID_COLUMN_PROJECTION):
    """The projected columns are not valid for this table."""


class InvalidTargetColumnError(FlussError, code=ErrorCode.INVALID_TARGET_COLUMN):
    """The columns of the partial update are not valid for this table."""


class PartitionNotExistsError(FlussError, code=ErrorCode.PARTITION_NOT_EXISTS):
    """The partition does not exist."""


class TableNotPartitionedError(FlussError, code=ErrorCode.TABLE_NOT_PARTITIONED_EXCEPTION):
    """The table is not partitioned."""


class InvalidTimestampError(FlussError, code=ErrorCode.INVALID_TIMESTAMP_EXCEPTION):
    """The timestamp is not valid, for instance in the future."""


class InvalidConfigError(FlussError, code=ErrorCode.INVALID_CONFIG_EXCEPTION):
    """A table property is not valid."""


class LakeStorageNotConfiguredError(FlussError, code=ErrorCode.LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION):
    """The cluster has no lake storage configured."""


class KvSnapshotNotExistError(FlussError, code=ErrorCode.KV_SNAPSHOT_NOT_EXIST):
    """The key-value snapshot does not exist."""


class PartitionAlreadyExistsError(FlussError, code=ErrorCode.PARTITION_ALREADY_EXISTS):
    """The partition already exists."""


class PartitionSpecInvalidError(FlussError, code=ErrorCode.PARTITION_SPEC_INVALID_EXCEPTION):
    """The partition spec does not fit the table."""


class LeaderNotAvailableError(
    FlussError, code=ErrorCode.LEADER_NOT_AVAILABLE_EXCEPTION, retriable=True, stale_metadata=True
):
    """The bucket has no leader at the moment."""


class PartitionMaxNumError(FlussError, code=ErrorCode.PARTITION_MAX_NUM_EXCEPTION):
    """The table has reached the largest allowed number of partitions."""


class AuthenticateError(FlussError, code=ErrorCode.AUTHENTICATE_EXCEPTION):
    """Authentication failed or is missing."""


class SecurityDisabledError(FlussError, code=ErrorCode.SECURITY_DISABLED_EXCEPTION):
    """The cluster has no authorizer configured."""


class AuthorizationError(FlussError, code=ErrorCode.AUTHORIZATION_EXCEPTION):
    """The principal is not permitted to do this."""


class BucketMaxNumError(FlussError, code=ErrorCode.BUCKET_MAX_NUM_EXCEPTION):
    """The number of buckets exceeds what the cluster allows."""


class FencedTieringEpochError(FlussError, code=ErrorCode.FENCED_TIERING_EPOCH_EXCEPTION):
    """The request carries an outdated tiering epoch."""


class RetriableAuthenticateError(FlussError, code=ErrorCode.RETRIABLE_AUTHENTICATE_EXCEPTION):
    """Authentication did not complete; authenticate again."""


class InvalidServerRackInfoError(FlussError, code=ErrorCode.INVALID_SERVER_RACK_INFO_EXCEPTION):
    """The rack information of the servers is inconsistent."""


class LakeSnapshotNotExistError(FlussError, code=ErrorCode.LAKE_SNAPSHOT_NOT_EXIST):
    """Nothing of this table has been tiered to the lake yet."""


class LakeTableAlreadyExistError(FlussError, code=ErrorCode.LAKE_TABLE_ALREADY_EXIST):
    """The lake catalog already has a table of this name."""


class IneligibleReplicaError(FlussError, code=ErrorCode.INELIGIBLE_REPLICA_EXCEPTION):
    """The replica may not join the in-sync set."""


class InvalidAlterTableError(FlussError, code=ErrorCode.INVALID_ALTER_TABLE_EXCEPTION):
    """The change to the table is not valid."""


class DeletionDisabledError(FlussError, code=ErrorCode.DELETION_DISABLED_EXCEPTION):
    """The table does not accept deletes."""


class ServerNotExistError(FlussError, code=ErrorCode.SERVER_NOT_EXIST_EXCEPTION):
    """The cluster has no server with this id."""


class SeverTagAlreadyExistError(FlussError, code=ErrorCode.SEVER_TAG_ALREADY_EXIST_EXCEPTION):
    """The server already has a tag."""


class SeverTagNotExistError(FlussError, code=ErrorCode.SEVER_TAG_NOT_EXIST_EXCEPTION):
    """The server does not have this tag."""


class RebalanceFailureError(FlussError, code=ErrorCode.REBALANCE_FAILURE_EXCEPTION):
    """The rebalance failed."""


class NoRebalanceInProgressError(FlussError, code=ErrorCode.NO_REBALANCE_IN_PROGRESS_EXCEPTION):
    """No rebalance is running."""


class InvalidProducerIdError(FlussError, code=ErrorCode.INVALID_PRODUCER_ID_EXCEPTION):
    """The producer id is not valid."""


class ClusterConfigError(FlussError, code=ErrorCode.CONFIG_EXCEPTION):
    """A cluster setting is not valid."""


class NotCoordinatorLeaderError(FlussError, code=ErrorCode.NOT_COORDINATOR_LEADER_EXCEPTION, stale_metadata=True):
    """This coordinator is not the active one."""


class ScannerExpiredError(FlussError, code=ErrorCode.SCANNER_EXPIRED):
    """The scan session was idle for too long and is gone; start a new scan."""


class UnknownScannerIdError(FlussError, code=ErrorCode.UNKNOWN_SCANNER_ID):
    """The server has no scan session with this id."""


class InvalidScanRequestError(FlussError, code=ErrorCode.INVALID_SCAN_REQUEST):
    """The scan request is inconsistent."""


class TooManyScannersError(FlussError, code=ErrorCode.TOO_MANY_SCANNERS):
    """Too many scan sessions are open; close some and try again."""


class DiskWriteLockedError(FlussError, code=ErrorCode.DISK_WRITE_LOCKED, retriable=True):
    """The disk of the server is nearly full; writes are refused."""


class InsufficientKvLeaderReplicaCapacityError(FlussError, code=ErrorCode.INSUFFICIENT_KV_LEADER_REPLICA_CAPACITY):
    """The cluster has no room for more primary-key buckets."""


class StorageBackpressureError(FlussError, code=ErrorCode.STORAGE_BACKPRESSURE_EXCEPTION, retriable=True):
    """The key-value store is overloaded; write more slowly."""


class HistoricalPartitionThrottledError(FlussError, code=ErrorCode.HISTORICAL_PARTITION_THROTTLED, retriable=True):
    """Too many lookups of historical partitions are in flight."""


class InvalidBucketRoutingError(FlussError, code=ErrorCode.INVALID_BUCKET_ROUTING, stale_metadata=True):
    """The bucket was chosen by another number of buckets than there are."""


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


class GroupRebalancedError(FlussError):
    """A commit of a member whose buckets went to other members of its group."""


class MissingDependencyError(FlussError, ImportError):
    """An optional package that is not installed; the message says how to install it."""


def error_for_code(code: int, message: str | None = None) -> FlussError:
    """Make the error of the class that belongs to `code`; an unknown code keeps its number.

    The message comes from a peer: it is cut, and control characters are written out. An empty one is replaced by the
    default text of the code.
    """
    return ERROR_CLASSES.get(code, FlussError)(peer_message(message) if message else None, code)


def peer_message(text: str) -> str:
    """Return the message of a peer as it may be shown: of bounded length, and nothing that a terminal obeys."""
    left_out = len(text) - _PEER_CHARS_MAX
    cut = text if left_out <= 0 else f"{text[:_PEER_CHARS_MAX]}... ({left_out} more characters)"
    return escaped(cut, keep="\n\t")
