# SPDX-License-Identifier: Apache-2.0
"""Pieces that several handlers share: parts of answers, and what is counted by table and by user."""

from __future__ import annotations

from typing import Protocol

from fluss.errors import (
    ErrorCode,
    FlussError,
    PartitionNotExistsError,
    RequestTimeOutError,
    TableNotExistError,
    UnknownServerError,
)
from fluss.metadata import TablePath
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.frames import ERROR_MESSAGE_CHARS_MAX
from fluss.server.catalog import Catalog, PartitionEntry, TableEntry
from fluss.server.garbage import clear_tracebacks
from fluss.server.handlers.request import RequestContext

ANSWER_BYTES_MAX = 128 * 1024 * 1024


def wire_error(error: FlussError) -> tuple[int, str]:
    """Return code and text to send. Errors that have no code of the protocol are failures of this server's own."""
    clear_tracebacks(error)
    message = error.message[:ERROR_MESSAGE_CHARS_MAX]
    if error.error_code == ErrorCode.CLIENT_ERROR:
        return ErrorCode.UNKNOWN_SERVER_ERROR, message
    return error.error_code, message


class HasError(Protocol):
    error_code: int
    error_message: str


def set_error(message: HasError, error: FlussError) -> None:
    """Put an error into a part of an answer; the fields stay absent on success."""
    message.error_code, message.error_message = wire_error(error)


def check_answer_size(size_bytes: int) -> int:
    """Refuse what would become a giant answer: short keys can stand for long rows, and be repeated."""
    if size_bytes > ANSWER_BYTES_MAX:
        raise UnknownServerError(
            f"the answer would have more than {ANSWER_BYTES_MAX} bytes. Ask for fewer keys at a time."
        )
    return size_bytes


def table_path(path: pb.PbTablePath) -> TablePath:
    """The path of a table that must exist; no table has an empty name."""
    if not path.database_name or not path.table_name:
        raise TableNotExistError(f"Table '{path.database_name}.{path.table_name}' does not exist.")
    return TablePath(path.database_name, path.table_name)


def partition_of(entry: TableEntry, partition_id: int) -> PartitionEntry:
    for partition in entry.partitions.values():
        if partition.partition_id == partition_id:
            return partition
    raise PartitionNotExistsError(f"Table '{entry.table_path}' has no partition with id {partition_id}.")


def table_json(catalog: Catalog, entry: TableEntry) -> bytes:
    """The descriptor as clients see it, encoded once per change.

    A lake-enabled table shows the lake settings of the server among its properties; they are not stored with it.
    """
    if entry.table_json_cache is None:
        descriptor = entry.table_info.descriptor
        lake_format = entry.table_info.lake_format
        if lake_format is not None and entry.table_info.config.lake_enabled:
            shown = catalog.configs.shown_lake_properties(lake_format)
            descriptor = descriptor.replace(properties={**shown, **descriptor.properties})
        entry.table_json_cache = descriptor.to_json_bytes()
    return entry.table_json_cache


def count_expired(context: RequestContext, error: Exception) -> None:
    """Count a write that was not committed in time."""
    if isinstance(error, RequestTimeOutError):
        context.server.metrics.add("tabletserver_delayedWriteExpires_total")
