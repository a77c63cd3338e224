# SPDX-License-Identifier: Apache-2.0
"""The table that groups are kept in: an ordinary primary-key table, on any Fluss server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fluss.errors import AuthorizationError, DatabaseNotExistError, TableNotExistError
from fluss.metadata import Column, DatabaseDescriptor, DataTypes, Schema, TableDescriptor, TablePath
from fluss.metadata.group_rows import GROUPS_TABLE, MemberRow

if TYPE_CHECKING:
    from fluss.client.admin import FlussAdmin
    from fluss.client.connection import FlussConnection, FlussTable

_BUCKETS = 8
_KEY = ["group_name", "table_name", "member"]


async def open_groups_table(connection: FlussConnection) -> FlussTable:
    """The table of groups, which is created when it is needed for the first time."""
    try:
        return await connection.get_table(GROUPS_TABLE)
    except (DatabaseNotExistError, TableNotExistError):
        await create_groups_table(connection.get_admin())
        return await connection.get_table(GROUPS_TABLE)


async def create_groups_table(admin: FlussAdmin) -> None:
    """Create the table of groups and its database, unless they exist."""
    database = DatabaseDescriptor("Kept by clients; do not write to it by hand.")
    await admin.create_database(GROUPS_TABLE.database_name, database, ignore_if_exists=True)
    await admin.create_table(GROUPS_TABLE, _descriptor(), ignore_if_exists=True)


def with_hint(error: AuthorizationError) -> AuthorizationError:
    """Add what a user needs who wants to be a member of a group."""
    return error.replace(
        hint=f"members of groups need READ and WRITE on {GROUPS_TABLE}: an administrator gives both, and creates "
        "it, with 'fluss group allow USER'"
    )


def _descriptor() -> TableDescriptor:
    columns = [Column(name, DataTypes.string()) for name in [*_KEY, "state"]]
    return TableDescriptor(
        Schema.of(columns, _KEY),
        bucket_count=_BUCKETS,
        # All rows of a group and a table lie in one bucket: their changelog is one order.
        bucket_keys=_KEY[:2],
        comment="Members of groups of followers, what they own and how far they are.",
        # Each row is a batch of its own, read by all members: to decompress it would be most of the work.
        properties={"table.log.ttl": "1h", "table.log.arrow.compression.type": "NONE"},
    )


def group_key(group: str, table: TablePath) -> dict[str, Any]:
    """The prefix under which the members of a group lie."""
    return {"group_name": group, "table_name": str(table)}


def stored_row(group: str, table: TablePath, row: MemberRow) -> dict[str, Any]:
    """A row of the table."""
    return {**group_key(group, table), "member": row.member, "state": row.to_json()}
