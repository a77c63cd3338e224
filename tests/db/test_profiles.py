# SPDX-License-Identifier: Apache-2.0
"""Profiles: named clusters in the user's configuration folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import fluss
from fluss.db.profiles import Profile, active_profile, load_profiles


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLUSS_CONFIG_DIR", str(tmp_path))
    monkeypatch.delenv("FLUSS_PROFILE", raising=False)
    return tmp_path


def write(folder: Path, text: str) -> None:
    (folder / "profiles.yaml").write_text(text)


def test_without_a_file_there_are_none(folder: Path) -> None:
    assert load_profiles() == ({}, None)
    assert active_profile() is None


def test_profiles_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "active: a\nprofiles:\n  a: {bootstrap_servers: 'h:1', user: alice, password_env: P}\n")
    profile = active_profile()
    assert profile == Profile("a", "h:1", "alice", password_env="P")
    with pytest.raises(fluss.errors.ConfigError, match="P with the password is not set"):
        profile.password()
    monkeypatch.setenv("P", "secret")
    assert profile.password() == "secret"
    assert "secret" not in repr(profile)


def test_a_password_file_must_be_private(folder: Path) -> None:
    file = folder / "password"
    file.write_text("secret\n")
    file.chmod(0o644)
    profile = Profile("a", "h:1", "alice", password_file=str(file))
    with pytest.raises(fluss.errors.ConfigError, match="chmod 600"):
        profile.password()
    file.chmod(0o600)
    assert profile.password() == "secret"


def test_a_password_command(folder: Path) -> None:
    command = f"{sys.executable} -c \"print('secret')\""
    assert Profile("a", "h:1", "alice", password_command=command).password() == "secret"
    failing = f"{sys.executable} -c \"print('secret'); exit(3)\""
    with pytest.raises(fluss.errors.ConfigError, match="exit code 3") as caught:
        Profile("a", "h:1", "alice", password_command=failing).password()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("profiles: {a: {bootstrap_server: 'h:1'}}", "needs bootstrap_servers"),
        ("profiles: {a: {bootstrap_servers: 'h:1', usr: x}}", "did you mean 'user'"),
        ("profiles: {a: {bootstrap_servers: 'h:1', password_env: x, password_file: y}}", "not several"),
        ("profiles: [", "not YAML"),
        ("[1]", "must have an entry 'profiles'"),
        ("active: b\nprofiles: {bb: {bootstrap_servers: 'h:1'}}", "did you mean 'bb'"),
    ],
)
def test_mistakes_are_named(folder: Path, text: str, problem: str) -> None:
    write(folder, text)
    with pytest.raises(fluss.errors.ConfigError, match=problem):
        active_profile()
