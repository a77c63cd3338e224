# SPDX-License-Identifier: Apache-2.0
"""Logging in, and what one may do then."""

from __future__ import annotations

import asyncio
import logging

import pyarrow as pa
import pytest

import fluss
from fluss.server.local import LocalServer

SECRET = "hush-hush-admin"

USERS = f"admin:{SECRET},alice:alice-secret"


@pytest.fixture(scope="module")
def sasl_server():
    options = {
        "security.protocol.map": "FLUSS:sasl,CLIENT:sasl",
        "bind.listeners": "FLUSS://127.0.0.1:0,CLIENT://127.0.0.1:0",
        "internal.listener.name": "FLUSS",
        "security.sasl.plain.credentials": USERS,
        "authorizer.enabled": "true",
        "super.users": "User:admin",
    }
    with LocalServer(options=options) as server:
        yield server.addresses[1]


def login(address, user, password):
    options = {"protocol": "sasl", "sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": password}
    return fluss.Config({"bootstrap.servers": address, **{f"security.{key}": options[key] for key in options}})


async def test_right_password(sasl_server):
    with await fluss.FlussConnection.create(login(sasl_server, "admin", SECRET)) as conn:
        admin = await conn.get_admin()
        await admin.create_database("sasl_db", ignore_if_exists=True)
        assert await admin.database_exists("sasl_db")
        await admin.drop_database("sasl_db")


@pytest.mark.parametrize(("user", "password"), [("admin", "wrong"), ("nobody", SECRET)])
def test_wrong_credentials_fail_at_once_and_are_not_shown(sasl_server, user, password, caplog):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(fluss.AuthenticateError) as caught:
        asyncio.run(fluss.FlussConnection.create(login(sasl_server, user, password)))
    assert caught.value.error_code == fluss.ErrorCode.AUTHENTICATE_EXCEPTION
    assert password not in str(caught.value)
    assert password not in caplog.text


def test_no_credentials(sasl_server):
    with pytest.raises(fluss.AuthenticateError):
        asyncio.run(fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": sasl_server})))


def test_logging_in_where_nobody_asks_for_it(config):
    with pytest.raises(fluss.FlussError):
        asyncio.run(fluss.FlussConnection.create(login(config.bootstrap_servers, "admin", SECRET)))


async def test_access_rules(sasl_server):
    with (
        await fluss.FlussConnection.create(login(sasl_server, "admin", SECRET)) as root,
        await fluss.FlussConnection.create(login(sasl_server, "alice", "alice-secret")) as alice,
    ):
        admin, guest = root.get_admin(), alice.get_admin()
        path = fluss.TablePath("acl_db", "t")
        await admin.create_database("acl_db")
        await admin.create_table(path, fluss.TableDescriptor(fluss.Schema(pa.schema([("id", pa.int32())]))))
        with pytest.raises(fluss.AuthorizationError):
            await guest.create_database("other")
        with pytest.raises(fluss.FlussError):
            await alice.get_table(path)
        binding = fluss.AclBinding(fluss.ResourceType.TABLE, "acl_db.t", "alice", fluss.OperationType.READ)
        await admin.create_acls([binding])
        assert await admin.list_acls(fluss.AclFilter(principal_name="alice")) == [binding]
        assert (await alice.get_table(path)).get_table_path() == path
        assert await admin.drop_acls([fluss.AclFilter(resource_name="acl_db.t")]) == [binding]
        assert await admin.list_acls(fluss.AclFilter(principal_name="alice")) == []
        await admin.drop_database("acl_db")
