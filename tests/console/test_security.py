# SPDX-License-Identifier: Apache-2.0
"""Who may talk to the console, and what its pages may load."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.requests import Request
from tests.waiting import wait_for

import fluss
from fluss.console.app import STATIC
from fluss.console.clients import Client
from fluss.console.security import Session, Sessions, host_allowed
from fluss.console.serving import Console
from fluss.console.settings import SESSIONS_MAX, Settings
from fluss.db.internals import admin_call
from fluss.server.auth import is_loopback
from fluss.server.users import USERS_FILE, UserFile
from fluss.tools.access import grant_right, revoke_rights

from .conftest import SOURCE, Browser, Running, running_console, server_with_console

USERS = {
    "bind.listeners": "CLIENT://127.0.0.1:0,FLUSS://127.0.0.1:0",
    "security.protocol.map": "CLIENT:SASL",
    "security.sasl.enabled.mechanisms": "PLAIN",
    "security.sasl.plain.credentials": {"alice": "wonder", "bob": "builder", "root": "secret"},
    "super.users": "User:root",
    "authorizer.enabled": True,
}


def test_every_answer_has_the_security_headers(browser: Browser) -> None:
    for answer in (browser.send("GET", "/"), browser.get("tables"), browser.send("GET", "/nothing")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(running: Running) -> None:
    cookie = Browser(running.port).send("GET", "/").headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert f"fluss_console_{running.port}=" in cookie


def test_without_a_session_nothing_is_told(running: Running) -> None:
    stranger = Browser(running.port)
    assert stranger.get("tables").status == 401
    assert stranger.get("streams").status == 401
    stranger.cookie = f"fluss_console_{running.port}=guess"
    assert stranger.post("sql", query="select 1").status == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "10.0.0.1"])
def test_other_host_names_are_refused(running: Running, host: str) -> None:
    answer = Browser(running.port, host).send("GET", "/")
    assert answer.status == 403
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_own_host_names_are_accepted(running: Running, name: str) -> None:
    assert Browser(running.port, f"{name}:{running.port}").send("GET", "/").status == 200


def test_host_names() -> None:
    names = frozenset({"localhost", "::1"})
    for host in ("[::1]:9124", "[::1]", "LOCALHOST:1"):
        assert host_allowed(host, names, any_address=False)
    assert not host_allowed("192.168.0.7:9124", names, any_address=False)
    assert host_allowed("192.168.0.7:9124", names, any_address=True)
    assert not host_allowed("rebound.example:9124", names, any_address=True)
    assert is_loopback("127.0.0.5")
    assert is_loopback("localhost")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("example.org")


def test_other_origins_are_refused(browser: Browser) -> None:
    body = json.dumps({"tab": "t", "query": "select 1"}).encode()
    ours = {"Content-Type": "application/json", "X-Fluss-Console": "1"}
    assert browser.send("POST", "/api/sql", body, ours).status == 200
    for bad in ("http://evil.example", "null", f"http://127.0.0.1:{browser.port + 1}"):
        assert browser.send("POST", "/api/sql", body, {**ours, "Origin": bad}).status == 403
        assert browser.send("GET", "/api/tables", headers={"Origin": bad}).status == 403
    assert browser.send("POST", "/api/sql", body, {**ours, "Sec-Fetch-Site": "cross-site"}).status == 403
    assert browser.send("GET", "/api/tables", headers={"Sec-Fetch-Site": "same-site"}).status == 403
    # What a form of another site can send has no header of our own.
    assert browser.send("POST", "/api/sql", body, {"Content-Type": "text/plain"}).status == 403
    # A link to the page itself works: it gives nothing away.
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert browser.send("GET", "/", headers=link).status == 200


def test_no_files_beside_the_static_ones(browser: Browser) -> None:
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/static/"):
        assert browser.send("GET", path).status == 404


def test_pages_have_no_inline_code_and_no_external_resources() -> None:
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*\ssrc=)", page)
    assert not re.search(r"\son\w+=|style=|javascript:", page)
    for path in STATIC.rglob("*.*"):
        if path.suffix in (".html", ".css", ".js"):
            text = path.read_text(encoding="utf-8")
            outside = re.findall(r"https?://[^\s\"'`)]+", text)
            assert [url for url in outside if not url.startswith("http://www.w3.org/")] == [], path
            if path.suffix == ".js":
                # Names and values of users become text nodes only.
                for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"):
                    assert word not in text, (path, word)


def test_read_only(running: Running, db: fluss.Database) -> None:
    db.create_table("fixed", "id bigint not null, item string", primary_key="id").upsert({"id": 1, "item": "tea"})
    with running_console(Settings(running.server, port=0, read_only=True)) as console:
        browser = Browser(console.port).open()
        for path, body in (
            ("rows/save", {"row": {"id": "2"}}),
            ("rows/update", {"key": {"id": "1"}, "row": {"item": "x"}}),
            ("rows/delete", {"key": {"id": "1"}}),
            ("table/alter", {"properties": {"table.log.ttl": "1d"}}),
            ("table/drop", {"confirm": "fluss.fixed"}),
            ("table/create", {"name": "more", "columns": "a int"}),
            ("lake/tier", {}),
        ):
            assert browser.post(path, table="fluss.fixed", **body).status == 403, path
        assert browser.upload("upload/create", b"a\n1\n", file="a.csv", name="more").status == 403
        assert browser.post("sql", tab="t", query="insert into fixed values (2, 'x')").status == 400
        assert browser.post("sql", tab="t", query="create table more as select 1 as a").status == 400
        for hidden in (
            "select count(*) from fixed /* /* */ ; drop table fixed; /* */ */",  # comments of SQL hold others
            "select count(*) as `a; drop table fixed; --` from fixed",
            "select 1 as a\x1d$$ /* $$; drop table fixed; -- */",
            "select 1 from fixed where item <>\u2060$$; drop table fixed; $$",
            "select 1_$a$--''$a$-b''; drop table fixed --'",  # a number, a name and a comment
        ):
            assert browser.post("sql", tab="t", query=hidden).json["rows"] == [[1]]
        assert browser.get("session").json["read_only"] is True
    assert db.tables() == ["fixed"]
    db.drop_table("fixed")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fluss.LocalServer]:
    """A server with users and access rules."""
    with fluss.LocalServer(tmp_path_factory.mktemp("guarded"), options=USERS) as server:
        asyncio.run(_prepare(server.bootstrap_servers))
        yield server


async def _prepare(address: str) -> None:
    async with await fluss.aio.connect(address, user="root", password="secret", timeout=20) as root:
        await (await root.create_table("hers", "a int")).append([{"a": 1}])
        await root.create_table("closed.others", "a int")
        allowed = [
            fluss.AclBinding(fluss.ResourceType.TABLE, "fluss.hers", "alice", operation)
            for operation in (fluss.OperationType.READ, fluss.OperationType.DESCRIBE)
        ]
        allowed.append(fluss.AclBinding(fluss.ResourceType.DATABASE, "fluss", "alice", fluss.OperationType.DESCRIBE))
        await root.connection.get_admin().create_acls(allowed)


def test_users_log_in_and_see_what_their_rights_allow(guarded: fluss.LocalServer) -> None:
    with running_console(Settings(guarded.bootstrap_servers, port=0)) as console:
        browser = Browser(console.port).open()
        about = browser.get("session").json
        assert about["login"] is True
        assert about["inside"] is False
        assert browser.get("tables").status == 401
        wrong = browser.post("login", user="alice", password="guess")
        assert wrong.status == 401
        assert "guess" not in wrong.body.decode()
        assert browser.post("login", user="", password="").status == 401
        assert browser.post("login", user="alice", password="wonder").json == {"user": "alice"}
        assert browser.get("session").json["user"] == "alice"
        tables = [table["name"] for one in browser.get("tables").json["databases"] for table in one["tables"]]
        assert tables == ["hers"]
        assert browser.get("rows", table="fluss.hers").json["rows"] == [[1]]
        assert browser.get("rows", table="closed.others").status in (403, 404)
        assert browser.post("sql", tab="t", query="select * from hers").json["rows"] == [[1]]
        assert browser.post("rows/save", table="fluss.hers", row={"a": "2"}).status == 403
        assert browser.get("clients").status == 403
        assert "right" in browser.follow("", "overview").json["error"]
        second = Browser(console.port).open()
        assert second.post("login", user="alice", password="wonder").status == 200
        assert second.post("login", user="alice", password="wonderful").status == 401
        assert browser.post("logout").status == 200
        assert browser.get("tables").status == 401
        root = Browser(console.port)
        assert root.post("login", user="root", password="secret").status == 200
        assert len(root.get("access").json["acls"]) == 3
        everyone = fluss.AclBinding(fluss.ResourceType.TABLE, "*", "*", fluss.OperationType.READ, "*")
        group = fluss.AclBinding(fluss.ResourceType.DATABASE, "fluss", "staff", fluss.OperationType.ALL, "Group")
        with fluss.connect(guarded.bootstrap_servers, user="root", password="secret") as db:
            admin_call(db, lambda admin: admin.create_acls([everyone, group]))
        added = [one for one in root.get("access").json["acls"] if not one["principal"].endswith(":alice")]
        assert len(added) == 2
        for rule in added:
            assert root.post("access/revoke", **rule).json == {}
            assert "no such rule" in root.post("access/revoke", **rule).json["error"]
        assert len(root.get("access").json["acls"]) == 3
        effective = root.get("access/effective", table="fluss.hers", principal="User:alice").json["operations"]
        assert {one["operation"] for one in effective if one["allowed"]} == {"READ", "DESCRIBE"}


def test_credentials_of_the_console_need_the_printed_link(guarded: fluss.LocalServer) -> None:
    settings = Settings(guarded.bootstrap_servers, port=0, user="root", password="secret")
    assert "secret" not in repr(settings)
    with running_console(settings) as console:
        browser = Browser(console.port).open()
        assert browser.cookie is None
        assert browser.get("tables").status == 401
        assert browser.send("GET", "/?token=guess").status == 303
        assert browser.get("tables").status == 401
        url = console.app.state.console.url(console.port)
        assert browser.send("GET", url[url.index("/?") :]).status == 303
        assert browser.get("tables").status == 200
        assert browser.get("session").json["user"] == "root"


def test_beyond_this_machine_users_log_in(running: Running, guarded: fluss.LocalServer) -> None:
    # The server has no users, so no login is possible.
    with running_console(Settings(running.server, host="0.0.0.0", port=0)) as console:
        browser = Browser(console.port).open()
        assert browser.cookie is None
        assert "asks for no login" in browser.post("login", user="anyone", password="anything").refused(401)
        assert browser.get("tables").status == 401
    with running_console(Settings(guarded.bootstrap_servers, host="0.0.0.0", port=0)) as console:
        browser = Browser(console.port).open()
        assert browser.get("tables").status == 401
        assert browser.post("login", user="alice", password="wonder").status == 200
        assert browser.get("tables").status == 200


def test_the_server_refuses_a_public_console_without_users(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fluss", "server", "--data-dir", str(tmp_path), "--ui", "--ui-host", "0.0.0.0"]
    environment = {"PYTHONPATH": str(SOURCE), "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=environment)
    assert done.returncode == 1
    assert "security.sasl.plain.credentials" in done.stderr


def test_the_console_ends_with_the_server(tmp_path: Path) -> None:
    with server_with_console(tmp_path) as running:
        browser = Browser(running.port).open()
        assert browser.get("tables").status == 200
        running.process.kill()
        running.process.wait(10)
        running.process.returncode = 0
        for _ in range(100):
            try:
                browser.get("tables")
            except OSError:
                break
        else:
            pytest.fail("the console outlived its server")


@pytest.fixture
def console(running: Running) -> Iterator[Console]:
    with running_console(Settings(running.server, port=0)) as console:
        yield console


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


@pytest.mark.parametrize(
    ("path", "kind"), [("login", "application/json"), ("upload/preview?file=a.csv", "application/octet-stream")]
)
def test_a_missing_body_is_refused(console: Console, monkeypatch: pytest.MonkeyPatch, path: str, kind: str) -> None:
    monkeypatch.setattr("fluss.console.state.BODY_S_MAX", 1.0)
    monkeypatch.setattr("fluss.console.routes.upload.UPLOAD_S_MAX", 1.0)
    cookie = Browser(console.port).open().cookie
    with connect(console.port) as sock:
        head = f"POST /api/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Fluss-Console: 1\r\nContent-Type: {kind}\r\n"
        sock.sendall(f"{head}Cookie: {cookie}\r\nContent-Length: 100\r\n\r\n{{".encode())
        answer = b""
        while b"did not arrive within 1 s" not in answer:  # the head may come before the body
            part = sock.recv(100_000)
            assert part, answer
            answer += part


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such option of a socket")
def test_answers_that_are_not_taken_end_the_connection(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss.console.serving._STALLED_MS_MAX", 1_000)
    with running_console(Settings(running.server, port=0)) as console, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(10)
        sock.connect(("127.0.0.1", console.port))
        sock.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 20_000)
        assert sock.recv(1)
        state = console._server.server_state
        wait_for(lambda: not state.connections)


def test_sessions_of_others_are_kept(running: Running) -> None:
    """Each look at the page without a cookie opens one: none of them pushes out a user, or a browser in use."""
    settings = Settings(running.server)
    shared, alice = Client(settings, None, None), Client(settings, "alice", "wonder")
    sessions = Sessions(1)

    def found(session: Session) -> bool:
        headers = [(b"cookie", f"{sessions.cookie}={session.token}".encode())]
        return sessions.find(Request({"type": "http", "headers": headers})) is session

    hers, in_use = sessions.open(alice), sessions.open(shared)
    assert found(in_use)
    for _ in range(2 * SESSIONS_MAX):
        sessions.open(shared)
    assert found(hers)
    assert found(in_use)


def test_a_login_that_the_server_refuses_now_ends_the_sessions_of_the_user(guarded: fluss.LocalServer) -> None:
    users = UserFile(guarded.data_dir / USERS_FILE)
    users.set_password("carol", "first")
    with running_console(Settings(guarded.bootstrap_servers, port=0)) as console, ThreadPoolExecutor(3) as pool:

        def log_in(password: str) -> tuple[int, Browser]:
            browser = Browser(console.port)
            return browser.post("login", user="carol", password=password).status, browser

        logins = list(pool.map(log_in, ["first"] * 3))
        assert [status for status, _ in logins] == [200] * 3
        clients = {one.client for one in console.app.state.console.sessions._sessions.values()}
        assert len(clients) == 1  # also of logins at the same time
        users.set_password("carol", "second")
        status, browser = log_in("second")
        assert status == 200
        assert [one.get("tables").status for _, one in logins] == [401] * 3
        assert log_in("first")[0] == 401
        assert browser.get("tables").status == 200
        users.remove("carol")
        assert log_in("second")[0] == 401
        assert browser.get("tables").status == 401


def test_who_loses_the_right_to_describe_the_cluster_sees_its_clients_no_more(guarded: fluss.LocalServer) -> None:
    with (
        running_console(Settings(guarded.bootstrap_servers, port=0, metrics_url="http://127.0.0.1:1/")) as console,
        fluss.connect(guarded.bootstrap_servers, user="root", password="secret") as root,
    ):
        browser = Browser(console.port)
        browser.post("login", user="bob", password="builder")
        grant_right(root, "bob", "describe", "cluster")
        assert browser.get("clients").status == 400  # allowed, but of an embedded server only
        with browser.events("overview") as events:
            assert next(events)["samples"] == []
            revoke_rights(root, "bob", "describe", "cluster")
            assert browser.get("clients").status == 403
            with pytest.raises(KeyError):  # a problem in the place of an event
                list(events)


def test_guesses_do_not_make_others_wait(guarded: fluss.LocalServer) -> None:
    """Those of one address are checked four at a time, and the next are refused at once."""
    with running_console(Settings(guarded.bootstrap_servers, port=0)) as console, ThreadPoolExecutor(12) as pool:
        began = time.monotonic()
        guesses = [pool.submit(Browser(console.port).post, "login", user=f"nobody{n}", password="x") for n in range(12)]
        errors = [guess.result().json["error"] for guess in guesses]
        assert sum("Too many logins" in error for error in errors) >= 4
        assert time.monotonic() - began < 10
        assert Browser(console.port).post("login", user="alice", password="wonder").status == 200
