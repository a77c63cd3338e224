# SPDX-License-Identifier: Apache-2.0
"""`DatabaseSession`: what a database and its tables share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluss.client.connection import FlussConnection
from fluss.client.runner import Runner
from fluss.db.targets import Target

if TYPE_CHECKING:
    from fluss.client.admin import FlussAdmin


class DatabaseSession:
    """A connection to a server, and the database that names without a dot belong to."""

    def __init__(self, connection: FlussConnection, runner: Runner, target: Target, name: str) -> None:
        self._connection = connection
        self._runner = runner
        self._target = target
        self._name = name
        self._admin: FlussAdmin = connection.get_admin()

    @property
    def connection(self) -> FlussConnection:
        """The connection of the full client, for everything that is not here.

        Example:
            admin = db.connection.get_admin()
        """
        return self._connection

    @property
    def name(self) -> str:
        """The database that names without a dot belong to.

        Example:
            db.name  # 'fluss'
        """
        return self._name

    @property
    def address(self) -> str:
        """The servers it is connected to, as `connect` takes them.

        Example:
            other = await fluss.aio.connect(db.address)
        """
        return self._target.servers
