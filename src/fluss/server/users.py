# SPDX-License-Identifier: Apache-2.0
"""The file of users: names and hashed passwords, which `fluss user` writes and the server reads.

Passwords are stored as SCRAM keys (RFC 5802), which log in by SCRAM and by PLAIN, and from which the password cannot be
read. The server reads the file again when it has changed, so that a new user can log in without a restart.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fluss.errors import ConfigError, InvalidArgumentError
from fluss.protocol.scram import SCRAM_HASHES, ScramKeys, prepare
from fluss.server import disk

USERS_FILE = "users.json"
_FORMAT = 1
_SALT_BYTES = 16
_NAME_CHARS_MAX = 128
_PASSWORD_CHARS_MAX = 1024
_FILE_BYTES_MAX = 16 * 1024 * 1024


class UserFile:
    """The users in one file.

    Example:
        >>> users = UserFile("shop/users.json")
        >>> users.set_password("alice", "a long password")
        >>> users.names()
        ['alice']
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._version: tuple[int, int, int] | None = None
        self._users: Mapping[str, Mapping[str, ScramKeys]] = {}
        self._salt_key: bytes | None = None

    def names(self) -> list[str]:
        """All users, sorted."""
        self._read()
        return sorted(self._users)

    def find(self, name: str, mechanism: str) -> ScramKeys | None:
        """The keys of a user for a mechanism; None if there is no such user."""
        self._read()
        return self._users.get(name, {}).get(mechanism)

    def salt_key(self) -> bytes | None:
        """What salts of unknown users are made from: they stay as they are, as those of the users in the file do."""
        self._read()
        return self._salt_key

    def set_password(self, name: str, password: str) -> None:
        """Add a user, or give one a new password."""
        name = _check_name(name)
        if not password or len(password) > _PASSWORD_CHARS_MAX:
            raise InvalidArgumentError(f"The password of '{name}' needs 1 to {_PASSWORD_CHARS_MAX} characters")
        salt = secrets.token_bytes(_SALT_BYTES)
        keys = {mechanism: ScramKeys.derive(mechanism, password, salt) for mechanism in SCRAM_HASHES}
        self._change(lambda users: users.update({name: keys}))

    def remove(self, name: str) -> None:
        """Remove a user. Connections that are open stay open."""
        if name not in self.names():
            raise InvalidArgumentError(f"There is no user '{name}' in '{self.path}'; 'fluss user ls' shows all")
        self._change(lambda users: users.pop(name, None))

    def check(self) -> None:
        """Refuse a file that cannot be read, or that others than its owner can."""
        self._version = None
        self._read()

    def _read(self) -> None:
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                version = (found.st_ino, found.st_mtime_ns, found.st_size)
                if version == self._version:
                    return
                if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                    raise ConfigError(
                        f"the file of users '{self.path}' can be read or changed by others (mode "
                        f"{stat.S_IMODE(found.st_mode):o}). Run: chmod 600 {self.path}"
                    )
                content = file.read(_FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            self._users, self._salt_key, self._version = {}, None, None
            return
        except OSError as error:
            raise ConfigError(f"cannot read the file of users '{self.path}': {error.strerror or error}.") from None
        self._users, self._salt_key = _parse(content, self.path)
        self._version = version

    def _change(self, change: Callable[[dict[str, Mapping[str, ScramKeys]]], object]) -> None:
        """Change the users. Of two changes at the same time, the second waits and begins with what the first wrote."""
        try:
            lock = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
            with os.fdopen(lock):
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._read()
                users = dict(self._users)
                change(users)
                self._write(users)
        except OSError as error:
            raise ConfigError(f"cannot write the file of users '{self.path}': {error.strerror or error}.") from None
        self._read()

    def _write(self, users: Mapping[str, Mapping[str, ScramKeys]]) -> None:
        """Replace the file in one step: a reader sees the old users or the new ones."""
        document = {
            "format": _FORMAT,
            "salt_key": base64.b64encode(self._salt_key or secrets.token_bytes(32)).decode(),
            "users": {
                name: {mechanism: _to_json(one) for mechanism, one in keys.items()} for name, keys in users.items()
            },
        }
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        disk.write_file(temporary, json.dumps(document, indent=1, sort_keys=True).encode())
        disk.rename(temporary, self.path)
        disk.sync_folder(self.path.parent)


def _check_name(name: str) -> str:
    prepared = prepare(name, "user name")
    if len(prepared) > _NAME_CHARS_MAX or prepared != name or name != name.strip():
        raise InvalidArgumentError(
            f"{name!r:.200} cannot be a user name: it needs 1 to {_NAME_CHARS_MAX} characters, none of them invisible"
        )
    return name


def _to_json(keys: ScramKeys) -> dict[str, str | int]:
    return {
        "salt": base64.b64encode(keys.salt).decode(),
        "iterations": keys.iterations,
        "stored_key": base64.b64encode(keys.stored_key).decode(),
        "server_key": base64.b64encode(keys.server_key).decode(),
    }


def _parse(content: bytes, path: Path) -> tuple[dict[str, dict[str, ScramKeys]], bytes | None]:
    """Never quotes the content: it holds what guesses of passwords are checked against."""
    try:
        document: Any = json.loads(content)
        if document["format"] != _FORMAT:
            raise ConfigError(
                f"the file of users '{path}' has format {document['format']!r:.20}, this version reads {_FORMAT}."
            )
        users = {
            str(name): {
                mechanism: ScramKeys(
                    base64.b64decode(entry["salt"], validate=True),
                    int(entry["iterations"]),
                    base64.b64decode(entry["stored_key"], validate=True),
                    base64.b64decode(entry["server_key"], validate=True),
                )
                for mechanism, entry in entries.items()
                if mechanism in SCRAM_HASHES
            }
            for name, entries in document["users"].items()
        }
        return users, base64.b64decode(document.get("salt_key", ""), validate=True) or None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"the file of users '{path}' cannot be read: it was not written by 'fluss user', or is damaged. "
            "Move it away and add the users again."
        ) from None
