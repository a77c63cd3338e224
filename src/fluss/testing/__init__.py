# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of programs that use Fluss.

pytest finds them by itself once the package is installed:

    async def test_my_program(fluss_connection):
        admin = await fluss_connection.get_admin()
        ...

`fluss_server` is an embedded server that lives as long as the test session; `fluss_connection` is a connection to it
for one test.
"""

from fluss.testing.plugin import fluss_connection, fluss_server

__all__ = ["fluss_connection", "fluss_server"]
