# SPDX-License-Identifier: Apache-2.0
"""Parts of requests and responses that name a table or a bucket, and errors in parts of responses."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from fluss.errors import ErrorCode, error_for_code
from fluss.metadata import TableBucket, TablePath, table_path_of
from fluss.protocol import messages as pb


def pb_path(table_path: TablePath | str) -> pb.PbTablePath:
    path = table_path_of(table_path)
    return pb.PbTablePath(database_name=path.database_name, table_name=path.table_name)


def bucket_from(table_id: int, part: Any) -> TableBucket:
    """The bucket that a message with a bucket id, and perhaps a partition id, is about."""
    return TableBucket(table_id, part.bucket_id, part.partition_id if part.HasField("partition_id") else None)


def subject_of(request: Message) -> str:
    """Name the table or database that a request is about, for errors; empty if it has none."""
    fields = {field.name: value for field, value in request.ListFields()}
    path = fields.get("table_path") or fields.get("partitions_path")
    if path is not None and not isinstance(path, Message):
        path = path[0]
    if isinstance(path, (pb.PbTablePath, pb.PbPhysicalTablePath)):
        return f" of table '{path.database_name}.{path.table_name}'"
    database = fields.get("database_name")
    return f" of database '{database}'" if isinstance(database, str) else ""


def raise_for_code(response: Any, where: str = "") -> None:
    """Raise the error a part of a response carries, if any; code 0 written out counts as success."""
    if response.HasField("error_code") and response.error_code != ErrorCode.NONE:
        message = response.error_message if response.HasField("error_message") else None
        error = error_for_code(response.error_code, message)
        if where:
            error = type(error)(f"{error.message} ({where})", error.error_code)
        raise error
