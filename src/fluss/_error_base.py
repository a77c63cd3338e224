# SPDX-License-Identifier: Apache-2.0
"""The root of the error tree and the tables of its classes.

`errors.py` is generated from `ERROR_TABLE` and `CLIENT_ERRORS` by ``make generate``; import everything from there.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, TypeVar

from fluss._text import escaped

CLIENT_ERROR = -2
"""The code of every error that no server sent."""


_PEER_CHARS_MAX = 10_000


def peer_message(text: str) -> str:
    """Return the message of a peer as it may be shown: of bounded length, and nothing that a terminal obeys."""
    left_out = len(text) - _PEER_CHARS_MAX
    cut = text if left_out <= 0 else f"{text[:_PEER_CHARS_MAX]}... ({left_out} more characters)"
    return escaped(cut, keep="\n\t")


class ErrorRow(NamedTuple):
    """One line of the error table."""

    code: int
    name: str
    retriable: bool
    """The same request may succeed if it is sent again a little later."""
    stale_metadata: bool
    """What the client believes about leaders or servers is out of date: refresh metadata first."""
    message: str
    """What is said when the sender gave no text of its own."""


_NO = (False, False)
_RETRY = (True, False)
_REFRESH_AND_RETRY = (True, True)
_REFRESH = (False, True)

ERROR_TABLE: tuple[ErrorRow, ...] = tuple(
    ErrorRow(code, name, *policy, message)
    for code, name, policy, message in (
        (-1, "UNKNOWN_SERVER_ERROR", _NO, "The server failed in a way it did not foresee."),
        (0, "NONE", _NO, "No error."),
        (1, "NETWORK_EXCEPTION", _REFRESH_AND_RETRY, "The connection to the server was lost."),
        (2, "UNSUPPORTED_VERSION", _NO, "The peer does not support this API or this version of it."),
        (3, "CORRUPT_MESSAGE", _RETRY, "A batch is broken: wrong checksum, size or format version."),
        (4, "DATABASE_NOT_EXIST", _NO, "The database does not exist."),
        (5, "DATABASE_NOT_EMPTY", _NO, "The database still has tables; drop them first or ask to cascade."),
        (6, "DATABASE_ALREADY_EXIST", _NO, "The database already exists."),
        (7, "TABLE_NOT_EXIST", _NO, "The table does not exist."),
        (8, "TABLE_ALREADY_EXIST", _NO, "The table already exists."),
        (9, "SCHEMA_NOT_EXIST", _RETRY, "The table has no schema with this id."),
        (10, "LOG_STORAGE_EXCEPTION", _RETRY, "The server could not read or write its log files."),
        (11, "KV_STORAGE_EXCEPTION", _RETRY, "The server could not read or write its key-value store."),
        (12, "NOT_LEADER_OR_FOLLOWER", _REFRESH_AND_RETRY, "This server does not lead the bucket."),
        (13, "RECORD_TOO_LARGE_EXCEPTION", _NO, "A record is larger than the server accepts."),
        (14, "CORRUPT_RECORD_EXCEPTION", _RETRY, "A record is not valid."),
        (15, "INVALID_TABLE_EXCEPTION", _NO, "The table definition is not valid."),
        (16, "INVALID_DATABASE_EXCEPTION", _NO, "The database definition is not valid."),
        (17, "INVALID_REPLICATION_FACTOR", _NO, "The replication factor exceeds the number of live tablet servers."),
        (18, "INVALID_REQUIRED_ACKS", _NO, "The acks setting must be one of -1 (all), 0 and 1."),
        (19, "LOG_OFFSET_OUT_OF_RANGE_EXCEPTION", _NO, "The offset lies before the start or after the end of the log."),
        (20, "NON_PRIMARY_KEY_TABLE_EXCEPTION", _NO, "The operation needs a table with a primary key."),
        (21, "UNKNOWN_TABLE_OR_BUCKET_EXCEPTION", _REFRESH_AND_RETRY, "The server does not know this bucket."),
        (22, "INVALID_UPDATE_VERSION_EXCEPTION", _NO, "The update carries an outdated bucket epoch."),
        (23, "INVALID_COORDINATOR_EXCEPTION", _NO, "The request carries an outdated coordinator epoch."),
        (24, "FENCED_LEADER_EPOCH_EXCEPTION", _REFRESH, "The request carries an outdated leader epoch."),
        (25, "REQUEST_TIME_OUT", _RETRY, "The request was not completed in time."),
        (26, "STORAGE_EXCEPTION", _RETRY, "The storage of the bucket is not available on this server."),
        (27, "OPERATION_NOT_ATTEMPTED_EXCEPTION", _NO, "The server skipped the operation."),
        (
            28,
            "NOT_ENOUGH_REPLICAS_AFTER_APPEND_EXCEPTION",
            _RETRY,
            "The records were written, but too few replicas were in sync to confirm them.",
        ),
        (29, "NOT_ENOUGH_REPLICAS_EXCEPTION", _RETRY, "Too few replicas are in sync; nothing was written."),
        (30, "SECURITY_TOKEN_EXCEPTION", _NO, "The server could not obtain a file system token."),
        (31, "OUT_OF_ORDER_SEQUENCE_EXCEPTION", _NO, "A batch of an idempotent writer does not follow the last one."),
        (32, "DUPLICATE_SEQUENCE_EXCEPTION", _NO, "This batch of an idempotent writer was already written."),
        (33, "UNKNOWN_WRITER_ID_EXCEPTION", _NO, "The server has lost the state of this idempotent writer."),
        (34, "INVALID_COLUMN_PROJECTION", _NO, "The projected columns are not valid for this table."),
        (35, "INVALID_TARGET_COLUMN", _NO, "The columns of the partial update are not valid for this table."),
        (36, "PARTITION_NOT_EXISTS", _NO, "The partition does not exist."),
        (37, "TABLE_NOT_PARTITIONED_EXCEPTION", _NO, "The table is not partitioned."),
        (38, "INVALID_TIMESTAMP_EXCEPTION", _NO, "The timestamp is not valid, for instance in the future."),
        (39, "INVALID_CONFIG_EXCEPTION", _NO, "A table property is not valid."),
        (40, "LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION", _NO, "The cluster has no lake storage configured."),
        (41, "KV_SNAPSHOT_NOT_EXIST", _NO, "The key-value snapshot does not exist."),
        (42, "PARTITION_ALREADY_EXISTS", _NO, "The partition already exists."),
        (43, "PARTITION_SPEC_INVALID_EXCEPTION", _NO, "The partition spec does not fit the table."),
        (44, "LEADER_NOT_AVAILABLE_EXCEPTION", _REFRESH_AND_RETRY, "The bucket has no leader at the moment."),
        (45, "PARTITION_MAX_NUM_EXCEPTION", _NO, "The table has reached the largest allowed number of partitions."),
        (46, "AUTHENTICATE_EXCEPTION", _NO, "Authentication failed or is missing."),
        (47, "SECURITY_DISABLED_EXCEPTION", _NO, "The cluster has no authorizer configured."),
        (48, "AUTHORIZATION_EXCEPTION", _NO, "The principal is not permitted to do this."),
        (49, "BUCKET_MAX_NUM_EXCEPTION", _NO, "The number of buckets exceeds what the cluster allows."),
        (50, "FENCED_TIERING_EPOCH_EXCEPTION", _NO, "The request carries an outdated tiering epoch."),
        (51, "RETRIABLE_AUTHENTICATE_EXCEPTION", _NO, "Authentication did not complete; authenticate again."),
        (52, "INVALID_SERVER_RACK_INFO_EXCEPTION", _NO, "The rack information of the servers is inconsistent."),
        (53, "LAKE_SNAPSHOT_NOT_EXIST", _NO, "Nothing of this table has been tiered to the lake yet."),
        (54, "LAKE_TABLE_ALREADY_EXIST", _NO, "The lake catalog already has a table of this name."),
        (55, "INELIGIBLE_REPLICA_EXCEPTION", _NO, "The replica may not join the in-sync set."),
        (56, "INVALID_ALTER_TABLE_EXCEPTION", _NO, "The change to the table is not valid."),
        (57, "DELETION_DISABLED_EXCEPTION", _NO, "The table does not accept deletes."),
        (58, "SERVER_NOT_EXIST_EXCEPTION", _NO, "The cluster has no server with this id."),
        (59, "SEVER_TAG_ALREADY_EXIST_EXCEPTION", _NO, "The server already has a tag."),
        (60, "SEVER_TAG_NOT_EXIST_EXCEPTION", _NO, "The server does not have this tag."),
        (61, "REBALANCE_FAILURE_EXCEPTION", _NO, "The rebalance failed."),
        (62, "NO_REBALANCE_IN_PROGRESS_EXCEPTION", _NO, "No rebalance is running."),
        (63, "INVALID_PRODUCER_ID_EXCEPTION", _NO, "The producer id is not valid."),
        (64, "CONFIG_EXCEPTION", _NO, "A cluster setting is not valid."),
        (65, "NOT_COORDINATOR_LEADER_EXCEPTION", _REFRESH, "This coordinator is not the active one."),
        (66, "SCANNER_EXPIRED", _NO, "The scan session was idle for too long and is gone; start a new scan."),
        (67, "UNKNOWN_SCANNER_ID", _NO, "The server has no scan session with this id."),
        (68, "INVALID_SCAN_REQUEST", _NO, "The scan request is inconsistent."),
        (69, "TOO_MANY_SCANNERS", _NO, "Too many scan sessions are open; close some and try again."),
        (70, "DISK_WRITE_LOCKED", _RETRY, "The disk of the server is nearly full; writes are refused."),
        (71, "INSUFFICIENT_KV_LEADER_REPLICA_CAPACITY", _NO, "The cluster has no room for more primary-key buckets."),
        (72, "STORAGE_BACKPRESSURE_EXCEPTION", _RETRY, "The key-value store is overloaded; write more slowly."),
        (73, "HISTORICAL_PARTITION_THROTTLED", _RETRY, "Too many lookups of historical partitions are in flight."),
        (74, "INVALID_BUCKET_ROUTING", _REFRESH, "The bucket was chosen by another number of buckets than there are."),
    )
)
"""Every error code of the protocol.

Retry policy is data: whether an error is worth another try, and whether metadata must be refreshed before it, is said
here and nowhere else. Codes 31 to 33 concern idempotent writers, who know themselves what to do about them; 51 is
handled by the handshake. Two names (59, 60) are misspelt in the protocol and kept as they are.
"""


class ClientErrorRow(NamedTuple):
    """One error that this package raises and no server sends."""

    name: str
    meaning: str
    also: str = ""
    """The built-in class it also belongs to."""


CLIENT_ERRORS: tuple[ClientErrorRow, ...] = tuple(
    ClientErrorRow(*row)
    for row in (
        ("FormatError", "Bytes or a document that cannot be read; the message names the field and the position."),
        ("ConfigError", "An unknown option, or a value the option does not take."),
        ("InvalidRowError", "A row or a value that does not fit the table."),
        ("InvalidArgumentError", "A call whose arguments make no sense.", "ValueError"),
        ("ConnectionClosedError", "Use of a connection, writer or scanner that was closed."),
        ("DeadlineExceededError", "A wait that took longer than allowed.", "TimeoutError"),
        ("GroupRebalancedError", "A commit of a member whose buckets went to other members of its group."),
        (
            "MissingDependencyError",
            "An optional package that is not installed; the message says how to install it.",
            "ImportError",
        ),
    )
)

ERRORS_BY_CODE: dict[int, ErrorRow] = {row.code: row for row in ERROR_TABLE}


ErrorT = TypeVar("ErrorT", bound="FlussError")


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

    default_error_code: ClassVar[int] = CLIENT_ERROR

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
            known = ERRORS_BY_CODE.get(code)
            message = known.message if known else f"Unknown error with code {code}."
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
        row = ERRORS_BY_CODE.get(self.error_code)
        return row is not None and row.retriable

    @property
    def is_stale_metadata(self) -> bool:
        """Whether metadata (leaders, servers) should be refreshed before anything else is tried."""
        row = ERRORS_BY_CODE.get(self.error_code)
        return row is not None and row.stale_metadata

    @property
    def error_name(self) -> str:
        """The protocol's name for the code, for instance ``TABLE_NOT_EXIST``."""
        if self.error_code == CLIENT_ERROR:
            return "CLIENT_ERROR"
        row = ERRORS_BY_CODE.get(self.error_code)
        return row.name if row else "UNKNOWN"

    def __str__(self) -> str:
        if self.error_code == CLIENT_ERROR:
            return self.message
        return f"{self.message} [{self.error_name}, code {self.error_code}]"
