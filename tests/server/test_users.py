# SPDX-License-Identifier: Apache-2.0
"""The file of users, and logins against it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fluss
from fluss.errors import AuthenticateError, ConfigError, InvalidArgumentError
from fluss.protocol.scram import SCRAM_HASHES, SCRAM_SHA_256
from fluss.server.auth import Accounts, check_users
from fluss.server.config import ServerConfig
from fluss.server.local import LocalServer
from fluss.server.users import USERS_FILE, UserFile

MECHANISMS = ["PLAIN", *SCRAM_HASHES]


def test_passwords_are_not_in_the_file(tmp_path: Path) -> None:
    users = UserFile(tmp_path / "users.json")
    users.set_password("alice", "a very long password")
    users.set_password("bob", "another one")
    content = users.path.read_bytes()
    assert b"password" not in content
    assert b"another" not in content
    assert users.path.stat().st_mode & 0o777 == 0o600
    found = UserFile(users.path)
    assert found.names() == ["alice", "bob"]
    keys = found.find("alice", SCRAM_SHA_256)
    assert keys.matches(SCRAM_SHA_256, "a very long password")
    assert not keys.matches(SCRAM_SHA_256, "another one")
    found.remove("alice")
    assert users.names() == ["bob"]
    with pytest.raises(InvalidArgumentError, match="no user 'alice'"):
        users.remove("alice")


def test_users_that_are_added_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    names = [f"user{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: UserFile(tmp_path / "users.json").set_password(name, "secret"), names))
    assert UserFile(tmp_path / "users.json").names() == names


@pytest.mark.parametrize(("name", "password"), [("", "x"), ("a\nb", "x"), (" a", "x"), ("a", ""), ("x" * 200, "x")])
def test_names_and_passwords_that_cannot_be(tmp_path: Path, name: str, password: str) -> None:
    users = UserFile(tmp_path / "users.json")
    with pytest.raises(InvalidArgumentError):
        users.set_password(name, password)
    assert not users.path.exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"format": 1, "users": {"a": {"SCRAM-SHA-256": {}}}}'])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "users.json"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="cannot be read"):
        UserFile(path).names()


def test_a_file_that_others_can_read_stops_the_start(tmp_path: Path) -> None:
    users = UserFile(tmp_path / USERS_FILE)
    users.set_password("alice", "secret")
    users.path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        check_users(ServerConfig({"data.dir": str(tmp_path), "security.protocol.map": "FLUSS:sasl"}))


def login(server: LocalServer, mechanism: str, user: str, password: str) -> fluss.Database:
    options = {"security.sasl.mechanism": mechanism}
    return fluss.connect(server.bootstrap_servers, user=user, password=password, options=options, timeout=20)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("data")
    UserFile(folder / USERS_FILE).set_password("alice", "pässword of alice")
    options = {"security.protocol.map": "FLUSS:sasl", "security.sasl.plain.credentials": "carl:secret of carl"}
    with LocalServer(folder, options=options) as started:
        yield started


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("alice", "pässword of alice"), ("carl", "secret of carl")])
def test_users_log_in(server: LocalServer, mechanism: str, user: str, password: str) -> None:
    with login(server, mechanism, user, password) as db:
        assert db.tables() == []


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", ["alice", "carl", "unknown"])
def test_a_wrong_password_is_refused(server: LocalServer, mechanism: str, user: str) -> None:
    with pytest.raises(AuthenticateError, match="Invalid username or password") as caught:
        login(server, mechanism, user, "not the right one")
    assert "not the right" not in str(caught.value)


def test_a_new_user_can_log_in_without_a_restart(server: LocalServer) -> None:
    users = UserFile(Path(str(server.data_dir)) / USERS_FILE)
    users.set_password("dora", "first")
    with login(server, "SCRAM-SHA-256", "dora", "first"):
        pass
    users.set_password("dora", "second")
    with pytest.raises(AuthenticateError):
        login(server, "SCRAM-SHA-256", "dora", "first")
    with login(server, "PLAIN", "dora", "second"):
        pass


def test_unknown_users_look_like_known_ones(tmp_path: Path) -> None:
    """Also after a restart, and if the password of a known one cannot be used with SCRAM."""
    users = "carl:secret,eve:\x07"
    config = ServerConfig({"data.dir": str(tmp_path), "security.sasl.plain.credentials": users})
    UserFile(tmp_path / USERS_FILE).set_password("alice", "secret")
    salts = []
    for accounts in (Accounts(lambda: config), Accounts(lambda: config)):
        found = [accounts.scram_keys("FLUSS", name, SCRAM_SHA_256) for name in ("alice", "carl", "eve", "x")]
        assert len({(keys.iterations, len(keys.salt)) for keys in found}) == 1
        salts.append([keys.salt for keys in found])
    assert salts[0] == salts[1]
    assert len(set(salts[0])) == 4


def test_the_time_of_a_login_does_not_show_which_users_exist(tmp_path: Path) -> None:
    """The first login of a name as well: keys of configured passwords are derived then."""
    config = ServerConfig({"data.dir": str(tmp_path), "security.sasl.plain.credentials": "carl:secret,eve:\x07"})
    UserFile(tmp_path / USERS_FILE).set_password("alice", "secret")

    def seconds(name: str) -> float:
        accounts = Accounts(lambda: config)
        began = time.thread_time()
        accounts.scram_keys("FLUSS", name, SCRAM_SHA_256)
        return time.thread_time() - began

    taken = {name: min(seconds(name) for _ in range(3)) for name in ("alice", "carl", "eve", "x", "y")}
    assert max(taken.values()) < 3 * min(taken.values()), taken


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({}, True),
        ({"security.protocol.map": "FLUSS:sasl_ssl"}, False),
        ({"security.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512"}, False),
        ({"security.sasl.plain.allow-unencrypted": "true"}, False),
        ({"bind.listeners": "FLUSS://127.0.0.1:0"}, False),
        ({"bind.listeners": "FLUSS://[::1]:0"}, False),
        ({"bind.listeners": "FLUSS://localhost:0"}, False),
        ({"bind.listeners": "FLUSS://:0"}, True),
    ],
)
def test_passwords_do_not_cross_networks_in_clear_text(options: dict[str, str], refused: bool) -> None:
    base = {
        "bind.listeners": "FLUSS://0.0.0.0:0",
        "security.protocol.map": "FLUSS:sasl",
        "security.sasl.plain.credentials": "a:b",
    }
    config = ServerConfig({**base, **options})
    if refused:
        with pytest.raises(ConfigError, match="clear text"):
            check_users(config)
    else:
        check_users(config)
