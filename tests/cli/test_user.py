# SPDX-License-Identifier: Apache-2.0
"""`fluss user`, and the options of `fluss server` for logins and TLS."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from fluss.cli import main
from fluss.server.command import build_config
from fluss.server.users import USERS_FILE, UserFile


def fluss(*words: str, text: str | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(main, list(words), input=text)
    return done.exit_code, done.output


def test_users_are_added_listed_and_removed(tmp_path: Path) -> None:
    folder = str(tmp_path / "shop")
    assert fluss("user", "add", "alice", "--data-dir", folder, "--password-file", "-", text="secret\n")[0] == 0
    code, output = fluss("user", "add", "alice", "--data-dir", folder, "--password-file", "-", "--json", text="new\n")
    assert (code, json.loads(output)["changed"]) == (0, True)
    assert fluss("user", "ls", "--data-dir", folder) == (0, "alice\n")
    assert json.loads(fluss("user", "ls", "--data-dir", folder, "--json")[1]) == [{"name": "alice"}]
    assert "secret" not in (tmp_path / "shop" / USERS_FILE).read_text()
    assert fluss("user", "rm", "alice", "--data-dir", folder)[0] == 0
    code, output = fluss("user", "rm", "alice", "--data-dir", folder)
    assert code == 1
    assert "no user 'alice'" in output
    assert "no users" in fluss("user", "ls", "--data-dir", folder)[1]


def test_a_password_is_not_guessed_without_a_terminal(tmp_path: Path) -> None:
    code, output = fluss("user", "add", "alice", "--data-dir", str(tmp_path / "x"))
    assert code == 2
    assert "--password-file" in output
    assert not (tmp_path / "x").exists()


def test_listing_makes_no_folder(tmp_path: Path) -> None:
    fluss("user", "ls", "--data-dir", str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def config_of(tmp_path: Path, **options: object) -> dict[str, str]:
    return dict(build_config(str(tmp_path), None, 0, None, (), **options).explicit)  # type: ignore[arg-type]


def test_login_asks_every_listener_for_users(tmp_path: Path) -> None:
    UserFile(tmp_path / USERS_FILE).set_password("alice", "secret")
    assert config_of(tmp_path, login=True)["security.protocol.map"] == "FLUSS:sasl"


def test_a_certificate_for_development_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = config_of(tmp_path, login=True, tls_self_signed=True)
    assert options["security.ssl.enabled.listeners"] == "FLUSS"
    assert options["security.ssl.keystore.location"] == str(tmp_path / "tls" / "self-signed.pem")
    assert "SHA-256 fingerprint: " in capsys.readouterr().err


def test_clients_with_certificates_are_users_by_common_name(tmp_path: Path) -> None:
    options = config_of(tmp_path, tls_cert="server.pem", tls_key="key.pem", tls_client_ca="ca.pem")
    assert options["security.protocol.map"] == "FLUSS:mtls"
    assert options["security.ssl.truststore.location"] == "ca.pem"
    assert "CN=" in options["security.ssl.principal.mapping.rules"]


@pytest.mark.parametrize(
    "options",
    [
        {"tls_key": "key.pem"},
        {"tls_cert": "a.pem", "tls_self_signed": True},
        {"login": True, "tls_cert": "a.pem", "tls_client_ca": "ca.pem"},
    ],
)
def test_options_that_do_not_go_together(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(click.UsageError):
        config_of(tmp_path, **options)
