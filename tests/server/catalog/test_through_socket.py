# SPDX-License-Identifier: Apache-2.0
"""The catalog behind a real server: sockets, listeners, rules, data that goes with its table, and kill -9."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.catalog.support import alter, create, create_partition, log_table, partitioned_table, path, pk_table

from fluss.errors import FlussError, NetworkError
from fluss.net.connection import Connection
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials
from fluss.server.server import Server

SECURE = {
    "bind.listeners": "FLUSS://127.0.0.1:0,CLIENT://127.0.0.1:0",
    "security.protocol.map": "CLIENT:SASL",
    "security.sasl.plain.jaas.config": 'Module required user_admin="admin-secret" user_alice="alice-secret";',
    "authorizer.enabled": "true",
    "super.users": "User:admin",
}


@contextlib.asynccontextmanager
async def running(folder: Path, **options: object) -> AsyncIterator[Server]:
    server = Server({"data.dir": str(folder), "bind.listeners": "FLUSS://127.0.0.1:0", **options})
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def connected(host: str, port: int, user: str | None = None) -> AsyncIterator[Connection]:
    credentials = None if user is None else Credentials(user, f"{user}-secret")
    connection = await Connection.open(host, port, credentials=credentials)
    try:
        yield connection
    finally:
        await connection.close()


def address(server: Server, listener: str = "FLUSS") -> tuple[str, int]:
    endpoint = server.advertised_endpoint(listener)
    return endpoint.host, endpoint.port


async def refused(code: int, connection: Connection, api: apis.Api[Any, Any], request: Any) -> str:
    with pytest.raises(FlussError) as caught:
        await connection.call(api, request)
    assert caught.value.error_code == code
    return caught.value.message


async def test_every_api_of_the_catalog_is_served(tmp_path: Path) -> None:
    async with running(tmp_path) as server, connected(*address(server)) as client:
        versions = await client.call(
            apis.API_VERSIONS, pb.ApiVersionsRequest(client_software_name="t", client_software_version="1")
        )
        served = {item.api_key for item in versions.api_versions}
        data = {1014, 1015, 1016, 1017, 1021, 1026, 1033, 1034, 1059, 1061}
        assert set(apis.APIS) - data <= served
        assert not versions.HasField("server_type")
        await client.call(apis.CREATE_TABLE, create(pk_table(bucket_count=2)))
        await refused(8, client, apis.CREATE_TABLE, create(pk_table()))
        metadata = await client.call(apis.GET_METADATA, pb.MetadataRequest(table_path=[path()]))
        assert (metadata.coordinator_server.host, metadata.coordinator_server.port) == address(server)
        assert [bucket.leader_id for bucket in metadata.table_metadata[0].bucket_metadata] == [0, 0]
        text = await refused(7, client, apis.GET_METADATA, pb.MetadataRequest(table_path=[path("no")]))
        assert "Table 'fluss.no' does not exist" in text
        await refused(37, client, apis.CREATE_PARTITION, create_partition(dt="x"))
        await refused(53, client, apis.GET_LAKE_SNAPSHOT, pb.GetLakeSnapshotRequest(table_path=path()))
        await refused(47, client, apis.LIST_ACLS, pb.ListAclsRequest(acl_filter=ANY))
        token = await client.call(apis.GET_FILESYSTEM_SECURITY_TOKEN, pb.GetFileSystemSecurityTokenRequest())
        assert (token.schema, token.token) == ("file", b"")


ANY = pb.PbAclFilter(resource_type=1, operation_type=1, permission_type=1)


async def test_a_sasl_client_gets_the_sasl_address_and_only_its_rights(tmp_path: Path) -> None:
    async with running(tmp_path, **SECURE) as server:
        inside, outside = address(server), address(server, "CLIENT")
        assert inside != outside
        async with (
            connected(*inside) as internal,
            connected(*outside, user="admin") as admin,
            connected(*outside, user="alice") as alice,
        ):
            for client, expected in ((internal, inside), (admin, outside), (alice, outside)):
                nodes = await client.call(apis.GET_METADATA, pb.MetadataRequest())
                assert (nodes.coordinator_server.host, nodes.coordinator_server.port) == expected
                assert [(node.host, node.port) for node in nodes.tablet_servers] == [expected]
            text = await refused(48, alice, apis.CREATE_TABLE, create(log_table()))
            assert "name='alice', type='User'" in text
            await internal.call(apis.CREATE_TABLE, create(log_table()))
            await refused(48, alice, apis.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path()))
            grant = pb.PbAclInfo(
                resource_name="fluss.t",
                resource_type=4,
                principal_name="alice",
                principal_type="User",
                host="127.0.0.1",
                operation_type=3,
                permission_type=2,
            )
            await refused(48, alice, apis.CREATE_ACLS, pb.CreateAclsRequest(acl=[grant]))
            await admin.call(apis.CREATE_ACLS, pb.CreateAclsRequest(acl=[grant]))
            await alice.call(apis.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path()))
            await refused(48, alice, apis.DROP_TABLE, pb.DropTableRequest(table_path=path(), ignore_if_not_exists=True))
            await admin.call(apis.DROP_ACLS, pb.DropAclsRequest(acl_filter=[ANY]))
            await refused(48, alice, apis.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path()))


async def test_auto_partitions_of_a_running_server(tmp_path: Path) -> None:
    properties = {"table.auto-partition.enabled": "true", "table.auto-partition.time-unit": "YEAR"}
    async with running(tmp_path) as server, connected(*address(server)) as client:
        await client.call(apis.CREATE_TABLE, create(partitioned_table(properties=properties)))
        request = pb.ListPartitionInfosRequest(table_path=path())
        assert len((await client.call(apis.LIST_PARTITION_INFOS, request)).partitions_info) == 2
        await client.call(apis.ALTER_TABLE, alter({"table.auto-partition.num-precreate": "3"}))
        assert len((await client.call(apis.LIST_PARTITION_INFOS, request)).partitions_info) == 3


def test_metadata_is_fast(tmp_path: Path) -> None:
    """Clients ask for metadata before every write of a new table; a slow answer would be felt everywhere."""

    async def work() -> float:
        async with running(tmp_path) as server, connected(*address(server)) as client:
            for number in range(20):
                await client.call(apis.CREATE_TABLE, create(log_table(bucket_count=4), f"t{number}"))
            requests = [pb.MetadataRequest(table_path=[path(f"t{number % 20}")]) for number in range(400)]
            started = time.perf_counter()
            await asyncio.gather(*(client.call(apis.GET_METADATA, request) for request in requests))
            return (time.perf_counter() - started) / len(requests)

    assert asyncio.run(work()) < 0.005


# ---------------------------------------------------------------------- kill -9


class Process:
    """The server in a process of its own, to be killed."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fluss.server", "--data-dir", str(folder), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("ready "), line
        host, _, port = line.split()[1].partition(",")[0].rpartition(":")
        self.address = host, int(port)

    def kill(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)
        self._end()

    def stop(self) -> int:
        self._process.terminate()
        return self._end()

    def _end(self) -> int:
        code = self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


_table_numbers = itertools.count()
"""Never the same name twice: a table whose creation was cut short may be there."""


async def ddl_until_cut(client: Connection, worker: int, made: set[str], gone: set[str], unsure: set[str]) -> None:
    """Create, alter and drop; every answer is noted, what was in flight at the cut may be either way."""
    number = 0
    while True:
        number += 1
        table = f"w{worker}_{next(_table_numbers)}"
        unsure.add(table)
        await client.call(apis.CREATE_TABLE, create(partitioned_table(), table))
        await client.call(apis.CREATE_PARTITION, create_partition(table, dt="a"))
        await client.call(apis.ALTER_TABLE, alter({"k": str(number)}, table))
        made.add(table)
        unsure.discard(table)
        if number % 3 == 0:
            made.discard(table)
            unsure.add(table)
            await client.call(apis.DROP_TABLE, pb.DropTableRequest(table_path=path(table), ignore_if_not_exists=False))
            gone.add(table)
            unsure.discard(table)


def test_kill_9_under_ddl(tmp_path: Path) -> None:
    chance = random.Random(7)
    made: set[str] = set()
    gone: set[str] = set()
    unsure: set[str] = set()
    ids: dict[str, int] = {}

    async def cut_short(process: Process) -> None:
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connected(*process.address)) for _ in range(3)]
            tasks = [
                asyncio.ensure_future(ddl_until_cut(client, worker, made, gone, unsure))
                for worker, client in enumerate(clients)
            ]
            await asyncio.sleep(chance.uniform(0.05, 0.4))
            process.kill()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, NetworkError), result

    async def check(process: Process) -> None:
        async with connected(*process.address) as client:
            listed = set((await client.call(apis.LIST_TABLES, pb.ListTablesRequest(database_name="fluss"))).table_name)
            assert made <= listed
            assert not gone & listed
            assert listed - made <= unsure
            for table in sorted(made):
                info = await client.call(apis.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path(table)))
                assert ids.setdefault(table, info.table_id) == info.table_id
                request = pb.ListPartitionInfosRequest(table_path=path(table))
                assert len((await client.call(apis.LIST_PARTITION_INFOS, request)).partitions_info) == 1
            assert len(set(ids.values())) == len(ids)

    for _ in range(4):
        process = Process(tmp_path)
        asyncio.run(check(process))
        asyncio.run(cut_short(process))
    process = Process(tmp_path)
    asyncio.run(check(process))
    assert process.stop() == 0
    assert len(made) > 4
