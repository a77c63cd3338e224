# SPDX-License-Identifier: Apache-2.0
"""Profiles: named clusters in a file of the user's configuration folder.

The file is ``profiles.yaml`` in ``$FLUSS_CONFIG_DIR``, or in ``fluss`` of ``$XDG_CONFIG_HOME`` (``~/.config``)::

    active: staging
    profiles:
      staging:
        bootstrap_servers: fluss-1:9123,fluss-2:9123
        user: alice
        password_env: STAGING_PASSWORD      # or password_file, or password_command
        ca: ~/certificates/staging.pem      # or tls: true, or fingerprint
"""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fluss._text import did_you_mean
from fluss.config import Login
from fluss.errors import ConfigError
from fluss.options import read_yaml

FILE_NAME = "profiles.yaml"
_COMMAND_TIMEOUT_S = 30.0
_KEYS = ("bootstrap_servers", "user", "password_env", "password_file", "password_command", "tls", "ca", "fingerprint")


class UnknownProfileError(ConfigError):
    """There is no profile of this name."""


@dataclass(frozen=True)
class Profile:
    """One cluster, and how to log in to it. The password itself is never in here."""

    name: str
    bootstrap_servers: str
    user: str | None = None
    password_env: str | None = None
    """The environment variable that holds the password."""
    password_file: str | None = None
    """A file that holds the password, which only its owner may read."""
    password_command: str | None = None
    """A command that prints the password."""
    tls: bool = False
    ca: str | None = None
    fingerprint: str | None = None

    def login(self, *, with_password: bool) -> Login:
        """As whom to connect; the password is fetched only if it is needed."""
        password = self.password() if with_password and self.user is not None else None
        ca = None if self.ca is None else os.path.expanduser(self.ca)
        return Login(self.user, password, self.tls, ca, self.fingerprint)

    def password(self) -> str | None:
        """Fetch the password from where the profile says it is; None if it says nothing."""
        if self.password_env is not None:
            value = os.environ.get(self.password_env)
            if value is None:
                raise ConfigError(
                    f"profile {self.name!r}: the environment variable {self.password_env} with the password is not set"
                )
            return value
        if self.password_file is not None:
            return _password_from_file(self.name, Path(self.password_file).expanduser())
        if self.password_command is not None:
            return _password_from_command(self.name, self.password_command)
        return None


def config_dir() -> Path:
    """The folder of the user's configuration."""
    if own := os.environ.get("FLUSS_CONFIG_DIR"):
        return Path(own)
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "fluss"


def load_profiles() -> tuple[dict[str, Profile], str | None]:
    """All profiles by name, and the name of the active one. Without a file there are none."""
    path = config_dir() / FILE_NAME
    if not path.exists():
        return {}, None
    document = read_yaml(path, "the profiles in") or {}
    if not isinstance(document, dict) or not isinstance(document.get("profiles") or {}, dict):
        raise ConfigError(f"'{path}' must have an entry 'profiles' with one entry per profile")
    profiles = {str(name): _profile(str(name), item, path) for name, item in (document.get("profiles") or {}).items()}
    active = document.get("active")
    return profiles, None if active is None else str(active)


def active_profile() -> Profile | None:
    """The profile that ``$FLUSS_PROFILE`` or the file names as the active one; None if neither does."""
    profiles, active = load_profiles()
    name = os.environ.get("FLUSS_PROFILE") or active
    if name is None:
        return None
    return profiles[check_known(name, profiles)]


def check_known(name: str, profiles: Mapping[str, Profile]) -> str:
    """Return the name of a profile that exists."""
    if name not in profiles:
        path = config_dir() / FILE_NAME
        raise UnknownProfileError(f"there is no profile {name!r} in '{path}'{did_you_mean(name, profiles)}")
    return name


def _profile(name: str, item: Any, path: Path) -> Profile:
    if not isinstance(item, Mapping) or not isinstance(item.get("bootstrap_servers"), str):
        raise ConfigError(f"profile {name!r} in '{path}' needs bootstrap_servers: host:port")
    for key, value in item.items():
        if key not in _KEYS:
            raise ConfigError(f"profile {name!r} in '{path}': unknown entry {key!r}{did_you_mean(str(key), _KEYS)}")
        if not isinstance(value, bool if key == "tls" else str):
            raise ConfigError(
                f"profile {name!r} in '{path}': {key} must be {'true or false' if key == 'tls' else 'a text'}"
            )
    if len([key for key in item if str(key).startswith("password_")]) > 1:
        raise ConfigError(f"profile {name!r} in '{path}': name one source of the password, not several")
    return Profile(name, **item)


def _password_from_file(name: str, path: Path) -> str:
    try:
        mode = path.stat().st_mode
        if stat.S_IMODE(mode) & 0o077:
            raise ConfigError(
                f"profile {name!r}: others may read the password file '{path}'; run chmod 600 on it, or choose another"
            )
        return path.read_text(encoding="utf-8").strip("\r\n")
    except OSError as error:
        raise ConfigError(f"profile {name!r}: cannot read the password file '{path}': {error.strerror}") from None


def _password_from_command(name: str, command: str) -> str:
    try:
        done = subprocess.run(
            shlex.split(command), stdout=subprocess.PIPE, timeout=_COMMAND_TIMEOUT_S, check=True, text=True
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        # The error of a failed command holds what it printed, and that may be a secret.
        reason = (
            f"exit code {error.returncode}"
            if isinstance(error, subprocess.CalledProcessError)
            else type(error).__name__
        )
        raise ConfigError(f"profile {name!r}: the password command failed: {reason}") from None
    return done.stdout.strip("\r\n")
