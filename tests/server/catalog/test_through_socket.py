# SPDX-License-Identifier: Apache-2.0
"""The catalog behind a real server. `tests/crash` kills one while tables come and go."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.server.catalog.support import create, create_partition, log_table, path, pk_table
from tests.server.log_support import Client

from fluss.errors import FlussError
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.server.server import Server


async def refused(code: int, client: Client, api: apis.Api[Any, Any], request: Any) -> str:
    with pytest.raises(FlussError) as caught:
        await client.call(api, request)
    assert caught.value.error_code == code
    return caught.value.message


async def test_every_api_of_the_catalog_is_served(server: Server, client: Client) -> None:
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
    endpoint = server.advertised_endpoint("FLUSS")
    assert (metadata.coordinator_server.host, metadata.coordinator_server.port) == (endpoint.host, endpoint.port)
    assert [bucket.leader_id for bucket in metadata.table_metadata[0].bucket_metadata] == [0, 0]
    text = await refused(7, client, apis.GET_METADATA, pb.MetadataRequest(table_path=[path("no")]))
    assert "Table 'fluss.no' does not exist" in text
    await refused(37, client, apis.CREATE_PARTITION, create_partition(dt="x"))
    await refused(53, client, apis.GET_LAKE_SNAPSHOT, pb.GetLakeSnapshotRequest(table_path=path()))
    every = pb.PbAclFilter(resource_type=1, operation_type=1, permission_type=1)
    await refused(47, client, apis.LIST_ACLS, pb.ListAclsRequest(acl_filter=every))
    token = await client.call(apis.GET_FILESYSTEM_SECURITY_TOKEN, pb.GetFileSystemSecurityTokenRequest())
    assert (token.schema, token.token) == ("file", b"")


async def test_metadata_is_fast(client: Client) -> None:
    """Clients ask for metadata before every write of a new table; a slow answer would be felt everywhere."""
    for number in range(20):
        await client.call(apis.CREATE_TABLE, create(log_table(bucket_count=4), f"t{number}"))
    requests = [pb.MetadataRequest(table_path=[path(f"t{number % 20}")]) for number in range(400)]
    started = time.process_time()
    await asyncio.gather(*(client.call(apis.GET_METADATA, request) for request in requests))
    assert (time.process_time() - started) / len(requests) < 0.005
