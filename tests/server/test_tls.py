# SPDX-License-Identifier: Apache-2.0
"""TLS between our client and our server: what is encrypted, refused, renewed and bounded."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from tests.server.log_support import running_server
from tests.tls_support import Authority
from tests.waiting import at_most, wait_until

import fluss
from fluss.errors import AuthenticateError, ConfigError
from fluss.net.tls import certificate_fingerprint
from fluss.server import tls
from fluss.server.certificates import ensure_self_signed
from fluss.server.command import COMMON_NAME_RULE
from fluss.server.config import ServerConfig
from fluss.server.local import LocalServer
from fluss.server.tls import parse_mapping_rules, user_of_certificate

CN_RULE = "RULE:.*?CN=([^,]+).*/$1/L,DEFAULT"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[LocalServer]:
    options = {
        "bind.listeners": "FLUSS://127.0.0.1:0,PLAIN://127.0.0.1:0,CERT://127.0.0.1:0",
        "security.protocol.map": "FLUSS:ssl,CERT:mtls",
        "security.ssl.keystore.location": authority.issue("shared", host="127.0.0.1"),
        "security.ssl.truststore.location": authority.ca,
        "security.ssl.principal.mapping.rules": CN_RULE,
        "internal.listener.name": "PLAIN",
        "authorizer.enabled": "true",
        "super.users": "User:alice",
    }
    with LocalServer(options=options) as started:
        yield started


def encrypted(certificate: str) -> dict[str, object]:
    """Options of a server whose only listener uses TLS."""
    return {"security.protocol.map": "FLUSS:ssl", "security.ssl.keystore.location": certificate}


def client(server: LocalServer, listener: int, **options: object) -> fluss.Database:
    named = {f"client.security.ssl.{name.replace('_', '.')}": value for name, value in options.items()}
    return fluss.connect(server.addresses[listener], options={"client.security.ssl.enabled": True, **named}, timeout=20)


def test_rows_travel_encrypted_in_both_directions(server: LocalServer, authority: Authority) -> None:
    alice = authority.issue("Alice", organization="Shop")
    with client(server, 2, truststore_location=authority.ca, keystore_location=alice) as db:
        rows = pa.table({"id": pa.array(range(300_000)), "text": [os.urandom(20).hex() for _ in range(300_000)]})
        table = db.create_table("big", rows.schema, properties={"table.log.arrow.compression.type": "none"})
        table.append(rows)
        assert table.to_arrow().sort_by("id").equals(rows)
        keyed = db.create_table("keyed", {"id": "bigint", "text": "string"}, primary_key="id")
        keyed.upsert([{"id": number, "text": str(number)} for number in range(2000)])
        assert [keyed.get(number)["text"] for number in (0, 7, 1999)] == ["0", "7", "1999"]
        assert keyed.to_arrow().num_rows == 2000


async def test_nothing_readable_is_on_the_wire(authority: Authority) -> None:
    secret = "a-row-that-no-listener-may-read"
    seen = bytearray()
    with LocalServer(options=encrypted(authority.issue("server", host="127.0.0.1"))) as server:
        host, _, port = server.addresses[0].rpartition(":")

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65536):
                seen.extend(data)
                writer.write(data)
            writer.close()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            upstream = await asyncio.open_connection(host, int(port))
            await asyncio.gather(pump(reader, upstream[1]), pump(upstream[0], writer))

        proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        trust = {"client.security.ssl.enabled": True, "client.security.ssl.truststore.location": authority.ca}
        conn = await fluss.aio.FlussConnection.create(fluss.Config({"bootstrap.servers": address, **trust}))
        admin = await conn.get_admin()
        await admin.create_database(secret.replace("-", "_"))
        await conn.close()
        proxy.close()
    assert len(seen) > 500
    assert secret.replace("-", "_").encode() not in seen


def test_a_server_that_is_not_trusted_is_refused_at_once(server: LocalServer, tmp_path: Path) -> None:
    with at_most(10):
        with pytest.raises(AuthenticateError, match=r"not trusted.*truststore"):
            client(server, 0, truststore_location=Authority(tmp_path, "others").ca)
        with pytest.raises(AuthenticateError, match="not trusted"):
            client(server, 0)


def test_a_certificate_for_another_host_is_refused(authority: Authority) -> None:
    with LocalServer(options=encrypted(authority.issue("elsewhere", host="127.0.0.9"))) as server:
        with pytest.raises(AuthenticateError, match=r"not trusted.*127\.0\.0\.1.*advertised\.listeners"):
            client(server, 0, truststore_location=authority.ca)
        unchecked = {"endpoint.identification.algorithm": ""}
        with client(server, 0, truststore_location=authority.ca, **unchecked) as db:
            assert db.tables() == []


def test_a_pinned_certificate_needs_no_authority(server: LocalServer, authority: Authority) -> None:
    found = certificate_fingerprint(authority.folder / "shared.pem")
    with client(server, 0, fingerprint=":".join(found[at : at + 2] for at in range(0, 64, 2)).upper()):
        pass
    for pins in (f"{'ab' * 32}, {found}", f"{'ab' * 32},{authority.folder / 'shared.pem'}"):
        with client(server, 0, fingerprint=pins):
            pass
    with pytest.raises(AuthenticateError, match=r"fingerprint.*is expected"):
        client(server, 0, fingerprint="ab" * 32)
    with pytest.raises(ConfigError, match="64 hex digits"):
        client(server, 0, fingerprint="abc")


def test_a_file_without_a_certificate_has_no_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n")
    with pytest.raises(ConfigError, match="has no certificate"):
        certificate_fingerprint(tmp_path / "key.pem")


async def test_idle_handshakes_make_room(tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "HANDSHAKES_MAX", 3)
    async with running_server(tmp_path, **encrypted(authority.issue("server", host="127.0.0.1"))) as server:
        bound = server.listeners["FLUSS"]
        idle = [await asyncio.open_connection(bound.host, bound.port) for _ in range(5)]
        context = ssl.create_default_context(cafile=authority.ca)
        _, writer = await asyncio.wait_for(asyncio.open_connection(bound.host, bound.port, ssl=context), 8)
        assert await asyncio.wait_for(idle[0][0].read(), 8) == b""
        for _, one in [*idle, (None, writer)]:
            one.close()


def test_both_sides_say_when_only_one_uses_tls(server: LocalServer, authority: Authority) -> None:
    with pytest.raises(fluss.FlussError, match="not use TLS"):
        client(server, 1, truststore_location=authority.ca)
    with pytest.raises(fluss.FlussError, match="uses TLS on this port"):
        fluss.connect(server.addresses[0], timeout=20)


def test_a_client_is_who_its_certificate_says(server: LocalServer, authority: Authority) -> None:
    bob = authority.issue("bob")
    with (
        client(server, 2, truststore_location=authority.ca, keystore_location=bob) as db,
        pytest.raises(fluss.AuthorizationError, match="name='bob', type='User'"),
    ):
        db.create_table("of_bob", {"id": "bigint"})
    with pytest.raises(AuthenticateError, match=r"clients needs client\.security\.ssl\.keystore"):
        client(server, 2, truststore_location=authority.ca)


def test_the_option_names_of_java_clients(server: LocalServer, authority: Authority) -> None:
    key = {"keystore_location": authority.issue("alice", file="locked.pem", password="secret"), "keystore_type": "pem"}
    trust = {"truststore_location": authority.ca, "truststore_type": "PEM", "truststore_password": "unused"}
    ciphers = {"enabled_protocols": "TLSv1.2", "cipher_suites": "ECDHE-ECDSA-AES256-GCM-SHA384, AES256-SHA"}
    with client(server, 2, **trust, **key, **ciphers, keystore_password="secret") as db:
        assert "fluss" in db.databases()
    with pytest.raises(ConfigError, match="needs its password"):
        client(server, 2, **trust, **key)
    with pytest.raises(ConfigError, match=r"TLS versions SSLv3: known are TLSv1\.2 and"):
        client(server, 0, **trust, enabled_protocols="SSLv3")
    with pytest.raises(ConfigError, match="openssl ciphers"):
        client(server, 0, **trust, cipher_suites="none-such")
    with pytest.raises(ConfigError, match=r"it takes 'PEM'\. Convert"):
        ServerConfig({"security.ssl.truststore.type": "JKS"})


def test_connect_and_profiles_take_the_short_forms(
    server: LocalServer, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fluss.connect(server.addresses[0], tls=True, ca=authority.ca, timeout=20) as db:
        assert db.tables() == []
    monkeypatch.setenv("FLUSS_CONFIG_DIR", str(tmp_path))
    monkeypatch.delenv("FLUSS_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.delenv("FLUSS_PROFILE", raising=False)
    profile = f"{{bootstrap_servers: '{server.addresses[0]}', ca: '{authority.ca}'}}"
    (tmp_path / "profiles.yaml").write_text(f"active: shop\nprofiles:\n  shop: {profile}\n")
    with fluss.connect(timeout=20) as db:
        assert db.tables() == []


async def test_audited_certificates(tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    """Those that stand for a user, and those that no rule fits; the start line says which listeners use TLS.

    Where a certificate is not asked for, one that no rule fits is as good as none.
    """
    caplog.set_level(logging.INFO, "fluss")
    options = {
        "bind_listeners": "FLUSS://127.0.0.1:0,CERT://127.0.0.1:0,WEB://127.0.0.1:0",
        "security_protocol_map": "CERT:mtls",
        "security_ssl_enabled_listeners": "WEB",
        "security_ssl_keystore_location": authority.issue("server", host="127.0.0.1"),
        "security_ssl_truststore_location": authority.ca,
        "security_ssl_principal_mapping_rules": "RULE:CN=(Alice)(,.*)?/$1/L",
    }
    async with running_server(tmp_path, **options) as server:
        listener = server.listeners["CERT"]
        for name in ("Alice", "Mallory"):
            context = ssl.create_default_context(cafile=authority.ca)
            context.load_cert_chain(authority.issue(name))
            _, writer = await asyncio.open_connection(listener.host, listener.port, ssl=context)
            await wait_until(lambda name=name: name.lower() in audited(caplog).lower())  # type: ignore[misc]
            writer.close()
        web = server.listeners["WEB"]
        _, writer = await asyncio.open_connection(web.host, web.port, ssl=context)
        await wait_until(lambda: [one for one in server.sessions if one.listener == "WEB"])
        writer.close()
    assert "login: User:alice from 127.0.0.1 on listener CERT by certificate" in audited(caplog)
    assert "login failed: without a user name from 127.0.0.1:" in audited(caplog)
    assert "fits the certificate of 'CN=Mallory" in audited(caplog)
    [start] = [record.getMessage() for record in caplog.records if "started in" in record.getMessage()]
    assert "(MTLS over TLS)" in start
    assert "(PLAINTEXT over TLS)" in start
    assert "(PLAINTEXT, internal)" in start


def audited(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.name == "fluss.audit")


async def test_a_renewed_certificate_is_used_without_a_restart(tmp_path: Path, authority: Authority) -> None:
    served = tmp_path / "served.pem"
    shutil.copy(authority.issue("one", host="127.0.0.1"), served)
    async with running_server(tmp_path / "data", **encrypted(str(served))) as server:
        listener = server.listeners["FLUSS"]

        async def fingerprint() -> bytes | None:
            context = ssl.create_default_context(cafile=authority.ca)
            _, writer = await asyncio.open_connection(listener.host, listener.port, ssl=context)
            found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.close()
            return bytes(found)

        first = await fingerprint()
        shutil.copy(authority.issue("two", host="127.0.0.1"), served)
        await server._reload_certificates()
        second = await fingerprint()
        assert second != first
        served.write_text("-----BEGIN nonsense")
        await server._reload_certificates()
        assert await fingerprint() == second
        # One that becomes usable without a new time or size, as by a chmod, which root would not notice.
        shutil.copy(authority.issue("three", host="127.0.0.1"), served)
        third, times = served.read_bytes(), (time.time_ns(), time.time_ns())
        for content in (bytes(len(third)), third):
            served.write_bytes(content)
            os.utime(served, ns=times)
            await server._reload_certificates()
        assert await fingerprint() not in (first, second)


@mock.patch.object(tls, "HANDSHAKE_SECONDS_MAX", 1.0)
async def test_unfinished_handshakes_end_and_keep_no_others_out(tmp_path: Path, authority: Authority) -> None:
    async with running_server(tmp_path, **encrypted(authority.issue("server", host="127.0.0.1"))) as server:
        listener = server.listeners["FLUSS"]
        silent = [socket.create_connection((listener.host, listener.port)) for _ in range(50)]
        for number, sock in enumerate(silent):
            if number % 2:
                sock.sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a client hello
        context = ssl.create_default_context(cafile=authority.ca)
        for _ in range(20):
            _, writer = await asyncio.wait_for(asyncio.open_connection(listener.host, listener.port, ssl=context), 5)
            writer.close()
        with at_most(4):
            for sock in silent:
                sock.setblocking(False)
                assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 1), 5) == b""
                sock.close()


async def test_handshakes_take_no_more_handles_than_connections_may(tmp_path: Path, authority: Authority) -> None:
    """The other half of the handles of the process is kept for the files of tables."""
    options = encrypted(authority.issue("server", host="127.0.0.1"))
    async with running_server(tmp_path, **options, server_max__connections=20) as server:
        listener = server.listeners["FLUSS"]
        before = len(os.listdir("/proc/self/fd"))
        silent = [socket.create_connection((listener.host, listener.port)) for _ in range(100)]
        await asyncio.sleep(1)  # all are accepted, and their time is not over
        assert len(os.listdir("/proc/self/fd")) - before - len(silent) < 30
        for sock in silent:
            sock.close()


def test_a_certificate_for_development_is_made_once(tmp_path: Path) -> None:
    path = ensure_self_signed(tmp_path, ["10.1.2.3", "shop.example"])
    assert path.stat().st_mode & 0o777 == 0o600
    assert ensure_self_signed(tmp_path, []).read_bytes() == path.read_bytes()
    with LocalServer(options=encrypted(str(path))) as server:
        with client(server, 0, fingerprint=certificate_fingerprint(path)) as db:
            assert db.tables() == []
        with client(server, 0, truststore_location=str(path)) as db:
            assert db.tables() == []


@pytest.mark.parametrize(
    ("rules", "subject", "user"),
    [
        ("DEFAULT", "CN=bob,O=Shop", "CN=bob,O=Shop"),
        (CN_RULE, "CN=Bob,O=Shop", "bob"),
        (CN_RULE, "O=Shop", "O=Shop"),
        ("RULE:CN=(.*?),O=(.*)/$2-$1/U", "CN=bob,O=Shop", "SHOP-BOB"),
        ("RULE:CN=(.*)/$10/", "CN=bob", "bob0"),
        (COMMON_NAME_RULE, r"CN=Smith\, John,O=Shop", r"Smith\, John"),
        (COMMON_NAME_RULE, "OU=x+CN=bob+UID=1,CN=users,O=Shop", "bob"),
        ("RULE:CN=(x)/$1/", "CN=bob", None),
    ],
)
def test_mapping_rules(rules: str, subject: str, user: str | None) -> None:
    config = ServerConfig({"security.ssl.principal.mapping.rules": rules})
    assert user_of_certificate(config, subject) == user


@pytest.mark.parametrize("text", ["RULE:broken", "ANY", "RULE:(/x/", "RULE:CN=(.*)/$2/", r"RULE:CN=(.*)/\d/"])
def test_mapping_rules_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ConfigError, match=r"rule|pattern"):
        parse_mapping_rules(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a certificate"),
        ({"security.ssl.keystore.location": "missing.pem"}, "cannot read the TLS file 'missing.pem'"),
        ({"security.ssl.keystore.location": "store.jks"}, "Java key store.*keytool"),
        ({"security.ssl.keystore.location": "store.p12"}, "openssl pkcs12"),
        ({"security.ssl.keystore.location": "ca.pem"}, "cannot use the certificate and key"),
        ({"security.ssl.keystore.location": "good.pem", "security.ssl.enabled.protocols": "SSLv3"}, "TLSv1.2"),
        ({"security.ssl.keystore.location": "good.pem", "security.ssl.cipher.suites": "none-such"}, "openssl ciphers"),
    ],
)
def test_options_that_cannot_work_are_refused(
    options: dict[str, str], message: str, tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("store.jks").write_bytes(bytes.fromhex("feedfeed00000002"))
    Path("store.p12").write_bytes(b"0\x82\x04")
    shutil.copy(authority.ca, "ca.pem")
    shutil.copy(authority.issue("server", host="127.0.0.1"), "good.pem")
    with pytest.raises(ConfigError, match=message):
        tls.check_tls(ServerConfig({"security.protocol.map": "FLUSS:ssl", **options}))
