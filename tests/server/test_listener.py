# SPDX-License-Identifier: Apache-2.0
"""Addresses the server listens on, and the page of figures."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from pathlib import Path
from unittest import mock

import pytest
from tests.server.log_support import connected, make_batch, running_server
from tests.server.metrics_support import check_page, figures, http
from tests.shared import raising
from tests.waiting import wait_until

from fluss.errors import ConfigError
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.server.metrics import ServerMetrics
from fluss.server.server import Server


async def test_clients_are_told_the_advertised_address_of_their_listener(tmp_path: Path) -> None:
    options = {
        "bind_listeners": "FLUSS://127.0.0.1:0,CLIENT://127.0.0.1:0",
        "advertised_listeners": "CLIENT://fluss.example:9999",
        "tablet__server_id": 5,
    }
    async with running_server(tmp_path, **options) as server:
        async with connected(server, "CLIENT") as client:
            answer = await client.call(apis.GET_METADATA, pb.MetadataRequest())
            [node] = answer.tablet_servers
            assert (node.node_id, node.host, node.port) == (5, "fluss.example", 9999)
            assert answer.coordinator_server.node_id == 0
        async with connected(server) as client:
            [node] = (await client.call(apis.GET_METADATA, pb.MetadataRequest())).tablet_servers
            assert (node.host, node.port) == ("127.0.0.1", server.listeners["FLUSS"].port)


async def test_a_client_of_ipv4_has_its_address_where_ipv6_is_listened_on(tmp_path: Path) -> None:
    async with running_server(tmp_path, bind_listeners="FLUSS://[::]:0") as server:
        with socket.create_connection(("127.0.0.1", server.listeners["FLUSS"].port)):
            await wait_until(lambda: bool(server.sessions))
            assert [session.host for session in server.sessions] == ["127.0.0.1"]


async def test_a_port_in_use_is_refused_and_the_folder_is_free_again(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"FLUSS://127.0.0.1:{port}.*in use"):
            async with running_server(tmp_path, bind_listeners=f"FLUSS://127.0.0.1:{port}"):
                pass
    async with running_server(tmp_path):
        pass


async def test_a_second_server_in_this_process_is_refused_too(tmp_path: Path) -> None:
    async with running_server(tmp_path):
        with pytest.raises(ConfigError, match="in use by the server with process id"):
            async with running_server(tmp_path):
                pass


async def test_figures_for_prometheus(tmp_path: Path) -> None:
    async with running_server(tmp_path, metrics_prometheus_port=0) as server, connected(server) as client:
        table = await client.create_table()
        await client.produce(table, make_batch(0))
        await client.fetch(table, 0)
        port = server.metrics_page.port
        head, body = await http(port, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert head.startswith("HTTP/1.1 200")
        lines = dict(line.rsplit(" ", 1) for line in body.splitlines() if not line.startswith("#"))
        assert lines["fluss_coordinator_tableCount"] == "1"
        assert lines['fluss_tabletserver_request_requests_total{request="produceLog"}'] == "1"
        size = str(len(make_batch(0)))
        assert lines['fluss_tabletserver_table_bytesIn_total{database="fluss",table="t"}'] == size
        assert lines["fluss_tabletserver_bytesOut_total"] == size
        assert lines['fluss_tabletserver_table_bytesOut_total{database="fluss",table="t"}'] == size
        assert (
            lines['fluss_coordinator_table_bucketCount{database="fluss",table="t"}']
            == lines["fluss_coordinator_bucketCount"]
        )
        bucket = '{database="fluss",table="t",bucket="0"}'
        assert lines[f"fluss_tabletserver_table_bucket_log_endOffset{bucket}"] == "3"
        assert float(lines["process_resident_memory_bytes"]) > 10e6
        assert float(lines["process_open_fds"]) > 5
        within = [
            int(count)
            for name, count in lines.items()
            if name.startswith('fluss_tabletserver_request_totalTimeMs_bucket{request="produceLog"')
        ]
        assert within == sorted(within)
        assert within[-1] == 1
        assert lines['fluss_tabletserver_request_totalTimeMs_count{request="produceLog"}'] == "1"
        check_page(body)
        assert (await http(port, "GET /other HTTP/1.1\r\n\r\n"))[0].startswith("HTTP/1.1 404")
        assert (await http(port, "GET /health HTTP/1.1\r\n\r\n"))[1] == "ok\n"
        assert (await http(port, "GET /ready HTTP/1.1\r\n\r\n"))[1] == "ready\n"
        server.disk_full = True
        head, body = await http(port, "GET /ready HTTP/1.1\r\n\r\n")
        assert head.startswith("HTTP/1.1 503")
        assert body == "the disk of the data folder is full; writes are refused\n"
        server.disk_full = False
        assert (await http(port, "POST /metrics HTTP/1.1\r\n\r\n"))[0].startswith("HTTP/1.1 405")


def test_labels_are_escaped_and_forgotten_with_their_table() -> None:
    metrics = ServerMetrics()
    metrics.add("x_total", 2, (("database", 'a"b'), ("table", "t\\")))
    metrics.add("x_total", 3, (("database", "a"), ("table", "t")))
    assert 'fluss_x_total{database="a\\"b",table="t\\\\"} 2' in metrics.text()
    metrics.remove_table("a", "t")
    assert 'x_total{database="a",table="t"}' not in figures(metrics.text())
    for key in range(2000, 3000):
        metrics.request(key, seconds=0, size_bytes=1, error_code=2)
    assert metrics.text().count("requestBytes_total{") <= 258


@mock.patch("fluss.server.listener._RETRY_AFTER_S", 0.05)
async def test_a_listener_without_handles_waits_and_goes_on(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """It neither spins nor ends, says so once, and takes the place of an idle connection if there is one."""
    failures: list[int] = []
    real = socket.socket.accept

    def accept(sock: socket.socket) -> object:
        if len(failures) < 4:
            failures.append(1)
            raise OSError(errno.EMFILE, "Too many open files")
        return real(sock)

    with mock.patch.object(socket.socket, "accept", accept):
        began = time.monotonic()
        async with connected(server) as client:
            await client.call(apis.GET_METADATA, pb.MetadataRequest())
            assert time.monotonic() - began > 0.15
        assert len(failures) == 4
        assert caplog.text.count("cannot accept") == 1
        idle = await asyncio.open_connection("127.0.0.1", server.listeners["FLUSS"].port)
        await wait_until(lambda: server.connections.unauthenticated_count == 1)
        failures[:] = [1, 1, 1]
        async with connected(server) as client:
            await client.call(apis.GET_METADATA, pb.MetadataRequest())
        assert await asyncio.wait_for(idle[0].read(), 5) == b""
        idle[1].close()
        await idle[1].wait_closed()


async def test_a_failing_connection_does_not_end_the_listener(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running_server(tmp_path) as server:
        with mock.patch("fluss.server.session.FrameReader", raising(MemoryError)):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.listeners["FLUSS"].port)
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
            await writer.wait_closed()
        async with connected(server) as client:
            await client.call(apis.GET_METADATA, pb.MetadataRequest())
    assert "cannot serve a connection" in caplog.text
