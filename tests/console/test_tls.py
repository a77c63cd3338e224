# SPDX-License-Identifier: Apache-2.0
"""The console over HTTPS, with the certificate of its server, which is renewed while both run."""

from __future__ import annotations

import hashlib
import shutil
import ssl
from pathlib import Path

from tests.tls_support import Authority
from tests.waiting import wait_for

import fluss
from fluss.net.tls import certificate_fingerprint
from fluss.server.users import USERS_FILE, UserFile

from .conftest import Browser, server_with_console


def presented(address: str, trust: ssl.SSLContext) -> str:
    """The fingerprint of the certificate that new connections get."""
    connection = Browser(int(address.rpartition(":")[2]), trust=trust).connect()
    connection.connect()
    found = connection.sock.getpeercert(binary_form=True)
    connection.close()
    return hashlib.sha256(found).hexdigest()


def test_a_console_over_https_and_a_renewed_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trust = ssl.create_default_context(cafile=authority.ca)
    served = tmp_path / "served.pem"
    shutil.copy(authority.issue("one", host="127.0.0.1"), served)
    data = tmp_path / "data"
    data.mkdir()
    for user in ("alice", "bob"):
        UserFile(data / USERS_FILE).set_password(user, "wonder")
    options = ["--login", "--tls-cert", str(served), "-D", "security.ssl.reload.interval=200ms"]
    with server_with_console(data, *options) as running:
        assert running.url.startswith("https://")
        console = f"127.0.0.1:{running.port}"
        alice = Browser(running.port, trust=trust)
        _, *attributes = alice.send("GET", "/").headers["set-cookie"].split("; ")
        assert {"Secure", "HttpOnly", "SameSite=strict"} <= set(attributes)
        assert alice.post("login", user="alice", password="wonder").json == {"user": "alice"}
        assert alice.get("tables").status == 200

        # A console looks less often than its server, or more often: it trusts both certificates in between.
        shutil.copy(authority.issue("two", host="127.0.0.1"), served)
        new = certificate_fingerprint(served)
        for address in (running.server, console):
            wait_for(lambda address=address: presented(address, trust) == new, 10)  # type: ignore[misc]
        bob = Browser(running.port, trust=trust).open()
        assert bob.post("login", user="bob", password="wonder").json == {"user": "bob"}
        assert bob.get("tables").status == 200
        assert alice.get("tables").status == 200
        with fluss.connect(running.server, user="bob", password="wonder", fingerprint=new) as db:
            assert db.tables() == []
