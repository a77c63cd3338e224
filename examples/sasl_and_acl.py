# SPDX-License-Identifier: Apache-2.0
"""Logins and access rules: an administrator allows one user to read one table."""

from __future__ import annotations

import asyncio

import pyarrow as pa

import fluss

PATH = fluss.TablePath("fluss", "salaries")

OPTIONS = {
    # The listener FLUSS is the internal one and trusted; clients get a listener of their own.
    "bind.listeners": "FLUSS://127.0.0.1:0,CLIENT://127.0.0.1:0",
    "security.protocol.map": {"CLIENT": "SASL"},
    "security.sasl.plain.credentials": {"admin": "admin-secret", "alice": "alice-secret"},
    "authorizer.enabled": True,
    "super.users": "User:admin",
}


async def login(address: str, user: str, password: str) -> fluss.FlussConnection:
    config = fluss.Config(
        {
            "bootstrap.servers": address,
            "security.protocol": "sasl",
            "security.sasl.username": user,
            "security.sasl.password": password,
        }
    )
    return await fluss.FlussConnection.create(config)


async def main() -> None:
    with fluss.LocalServer(options=OPTIONS) as server:
        address = server.addresses[1]
        try:
            await login(address, "alice", "guess")
        except fluss.AuthenticateError as error:
            print("wrong password: ", error.message)

        async with await login(address, "admin", "admin-secret") as conn:
            admin = await conn.get_admin()
            schema = fluss.Schema(pa.schema([("name", pa.string()), ("salary", pa.int64())]))
            await admin.create_table(PATH, fluss.TableDescriptor(schema))
            async with (await conn.get_table(PATH)).new_append().create_writer() as writer:
                writer.append({"name": "bob", "salary": 1})

            async with await login(address, "alice", "alice-secret") as alice:
                try:
                    await alice.get_table(PATH)
                except fluss.FlussError as error:
                    print("without a rule: ", error.message)

                rule = fluss.AclBinding(fluss.ResourceType.TABLE, str(PATH), "alice", fluss.OperationType.READ)
                await admin.create_acls([rule])
                table = await alice.get_table(PATH)
                scanner = await table.new_scan().create_record_batch_log_scanner()
                scanner.subscribe(0, fluss.EARLIEST_OFFSET)
                print("may read:       ", scanner.to_arrow().to_pylist())

                writer = table.new_append().create_writer()
                writer.append({"name": "alice", "salary": 10**6})
                try:
                    await writer.flush()
                except fluss.AuthorizationError as error:
                    print("may not write:  ", error.message)


if __name__ == "__main__":
    asyncio.run(main())
