# SPDX-License-Identifier: Apache-2.0
"""What operators set on the running server, kept on disk: options that were changed since the start, and tags."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from fluss.errors import (
    ClusterConfigError,
    ConfigError,
    InvalidArgumentError,
    ServerNotExistError,
    SeverTagAlreadyExistError,
    SeverTagNotExistError,
)
from fluss.metadata.info import AlterConfigOp, ConfigEntry
from fluss.server.catalog.storage import CatalogStorage
from fluss.server.config import SERVER_OPTIONS, ServerConfig, is_dynamic, is_secret
from fluss.server.exposure import REDACTED, is_hidden_lake_setting, is_shown

_log = logging.getLogger("fluss.server.catalog")


class ClusterConfigs:
    """The effective configuration: ``current`` is replaced as a whole by every change."""

    def __init__(self, initial: ServerConfig, storage: CatalogStorage) -> None:
        self.initial = initial
        self._storage = storage
        self.on_changed: list[Callable[[ServerConfig], None]] = []
        found, self.damage = storage.read(
            "configs",
            lambda content: {
                str(name): None if value is None else str(value) for name, value in content["dynamic"].items()
            },
        )
        self.dynamic: dict[str, str | None] = found or {}
        """None takes away what the server was started with."""
        _check_lake(initial)
        try:
            self.current = initial.with_options(self.dynamic)
            _check_lake(self.current)
        except ConfigError as error:
            # An option that an older release could change, or a clash with new start options: the start options win.
            _log.error("stored dynamic options are ignored: %s", error)
            self.dynamic = {}
            self.current = initial

    # ------------------------------------------------------------------ the lake

    @property
    def lake_format(self) -> str | None:
        return self.current.text("datalake.format")

    @property
    def lake_enabled(self) -> bool:
        """An unset switch means: on when a format is set."""
        switch = self.current.boolean("datalake.enabled")
        return self.lake_format is not None if switch is None else switch

    def shown_lake_properties(self, lake_format: str) -> dict[str, str]:
        """Return the lake settings that a table shows to its readers."""
        prefix = f"datalake.{lake_format}."
        return {
            f"table.{name}": value
            for name, value in sorted(self.current.with_prefix(prefix).items())
            if is_shown(lake_format, name[len(prefix) :], value) and not self.current.hides(name)
        }

    def hidden_lake_settings(self) -> list[str]:
        """Return the names of the lake settings that are kept from readers."""
        lake_settings = self.current.with_prefix("datalake.")
        return sorted(name for name, value in lake_settings.items() if is_hidden_lake_setting(name, value))

    # ------------------------------------------------------------------ describe and alter

    def describe(self) -> list[ConfigEntry]:
        entries = {
            key: ConfigEntry(
                key, REDACTED if key in self.initial.from_providers else _redact(key, value), "INITIAL_SERVER_CONFIG"
            )
            for key, value in self.initial.explicit.items()
        }
        for key, value in self.dynamic.items():
            shown = None if value is None else _redact(key, value)
            entries[key] = ConfigEntry(key, shown, "DYNAMIC_SERVER_CONFIG")
        return [entries[key] for key in sorted(entries)]

    def plan(self, changes: Iterable[tuple[str, str | None, int]]) -> tuple[dict[str, str | None], ServerConfig]:
        """Apply (key, value, operation) to a copy and check the result as a whole."""
        dynamic = dict(self.dynamic)
        for key, value, operation in changes:
            if not is_dynamic(key):
                raise ClusterConfigError(f"The config key '{key}' cannot be changed while the server runs.")
            if operation == AlterConfigOp.DELETE:
                dynamic.pop(key, None)
            elif operation == AlterConfigOp.SET:
                dynamic[key] = value
            elif value is None:
                raise ClusterConfigError(f"A value is needed to change the config key '{key}'.")
            elif operation in (AlterConfigOp.APPEND, AlterConfigOp.SUBTRACT):
                option = SERVER_OPTIONS.get(key)
                if option is None or option.kind not in ("list", "map"):
                    raise ClusterConfigError(f"The config key '{key}' is no list or map, so it can only be set.")
                parts = _parts(dynamic.get(key, self.initial.explicit.get(key)) or "", option.kind)
                for name, part in _parts(value, option.kind).items():
                    if operation == AlterConfigOp.APPEND:
                        parts[name] = part
                    else:
                        parts.pop(name, None)
                dynamic[key] = ",".join(parts.values())
            else:
                raise ClusterConfigError(f"Unknown operation {operation} on the config key '{key}'.")
        try:
            current = self.initial.with_options(dynamic)
            _check_lake(current)
        except ConfigError as error:
            raise ClusterConfigError(error.message) from None
        return dynamic, current

    def write(self, dynamic: Mapping[str, str | None]) -> None:
        self._storage.write("configs", {"dynamic": dict(dynamic)})

    def apply(self, dynamic: dict[str, str | None], current: ServerConfig) -> None:
        self.dynamic = dynamic
        self.current = current
        for listener in tuple(self.on_changed):
            listener(current)


def _check_lake(config: ServerConfig) -> None:
    if config.boolean("datalake.enabled") and config.text("datalake.format") is None:
        raise ConfigError("server option 'datalake.enabled' is true, so 'datalake.format' must be set as well.")


def _parts(text: str, kind: str) -> dict[str, str]:
    """Items of a list by themselves, pairs of a map by their key, in order."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return {part.partition(":")[0].strip() if kind == "map" else part: part for part in parts}


def _redact(key: str, value: str) -> str:
    if key == "security.sasl.plain.credentials":
        return ",".join(f"{name}:{REDACTED}" for name in _parts(value, "map"))
    return REDACTED if is_secret(key, value) else value


TAG_NAMES = {0: "PERMANENT_OFFLINE", 1: "TEMPORARY_OFFLINE"}


class ServerTags:
    def __init__(self, storage: CatalogStorage, server_id: int) -> None:
        self._storage = storage
        self._server_id = server_id
        found, self.damage = storage.read(
            "server-tags", lambda content: {int(server): int(tag) for server, tag in content["tags"].items()}
        )
        self.tags: dict[int, int] = found or {}

    def _check(self, server_ids: Iterable[int], tag: int) -> None:
        if tag not in TAG_NAMES:
            raise InvalidArgumentError(f"Unknown server tag {tag}; known are 0 (permanent) and 1 (temporary).")
        for server_id in server_ids:
            if server_id != self._server_id:
                raise ServerNotExistError(f"Server {server_id} does not exist; the only one is {self._server_id}.")

    def plan_add(self, server_ids: list[int], tag: int) -> dict[int, int]:
        self._check(server_ids, tag)
        for server_id in server_ids:
            old = self.tags.get(server_id, tag)
            if old != tag:
                raise SeverTagAlreadyExistError(f"Server {server_id} has the tag {TAG_NAMES.get(old, old)} already.")
        return {**self.tags, **dict.fromkeys(server_ids, tag)}

    def plan_remove(self, server_ids: list[int], tag: int) -> dict[int, int]:
        self._check(server_ids, tag)
        for server_id in server_ids:
            old = self.tags.get(server_id, tag)
            if old != tag:
                raise SeverTagNotExistError(
                    f"Server {server_id} has not the tag {TAG_NAMES[tag]} but {TAG_NAMES.get(old, old)}."
                )
        return {server_id: old for server_id, old in self.tags.items() if server_id not in server_ids}

    def write(self, tags: dict[int, int]) -> None:
        self._storage.write("server-tags", {"tags": {str(server): tag for server, tag in tags.items()}})
