# SPDX-License-Identifier: Apache-2.0
"""Parts of requests that name a table, and what a request is about."""

from __future__ import annotations

from google.protobuf.message import Message

from fluss.metadata import TablePath
from fluss.protocol import messages as pb


def pb_path(path: TablePath) -> pb.PbTablePath:
    return pb.PbTablePath(database_name=path.database_name, table_name=path.table_name)


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
