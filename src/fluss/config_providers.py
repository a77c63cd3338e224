# SPDX-License-Identifier: Apache-2.0
"""Values of options that lie elsewhere: in the environment, in files, in folders of secrets.

An option names the place, ``${env:NAME}``, ``${file:/path/of.properties:key}`` or ``${directory:/folder:file}``, and
``config.providers`` lists the kinds that may be used. Files are read below ``allowed.paths`` only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from fluss.errors import ConfigError

PROVIDERS = "config.providers"

_PARAMETER = re.compile(r"config\.providers\.([a-z]+)\.param\.(.+)")
_MARKER = re.compile(r"\$\{([^:}]+):(?:(.*):)?([^:]+)\}", re.DOTALL)
_BYTES_MAX = 1024 * 1024

Provider = Callable[[str, str], str]
"""Takes path and key of a marker and returns the value."""


def resolve(options: Mapping[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
    """Replace markers by what they stand for; return the options, and the keys whose values came from elsewhere.

    Without ``config.providers`` nothing is replaced. A marker is a whole value, also in a mapping or a list.
    A value that begins with ``$${`` stands for itself, without the first ``$``.

    Example:
        options, secret = resolve({"config.providers": "env", "security.sasl.password": "${env:FLUSS_PASSWORD}"})
    """
    declared = options.get(PROVIDERS)
    if declared is None:
        return dict(options), frozenset()
    names = declared.split(",") if isinstance(declared, str) else declared
    parameters: dict[str, dict[str, str]] = {}
    for key, value in options.items():
        if match := _PARAMETER.fullmatch(key):
            parameters.setdefault(match[1], {})[match[2]] = str(value)
    providers = {name.strip(): _provider(name.strip(), parameters) for name in names if name.strip()}
    resolved: set[str] = set()

    def replace(key: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {replace(key, name): replace(key, item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(replace(key, item) for item in value)
        if not isinstance(value, str):
            return value
        if value.startswith("$${"):
            return value[1:]
        if value.startswith("${") and value.endswith("}"):
            resolved.add(key)
            return _value(key, value, providers)
        if any(f"${{{name}:" in value for name in providers):  # the text of the marker would be the password
            raise ConfigError(f"option {key!r}: a marker must be the whole value, not a part of a longer text")
        return value

    found = {
        key: replace(key, value) for key, value in options.items() if key != PROVIDERS and not _PARAMETER.fullmatch(key)
    }
    return found, frozenset(resolved)


def _provider(name: str, parameters: Mapping[str, Mapping[str, str]]) -> Provider:
    make = {"env": _environment, "file": _property, "directory": _file_below}.get(name)
    if make is None:
        raise ConfigError(f"{PROVIDERS} names {name!r}; the providers are env, file and directory")
    given = dict(parameters.get(name, {}))
    parameter = "allowlist.pattern" if name == "env" else "allowed.paths"
    value = given.pop(parameter, "")
    if given:
        raise ConfigError(f"provider {name!r} has no parameter {next(iter(given))!r}; its one is {parameter!r}")
    try:
        return make(value)
    except (re.error, ConfigError) as error:
        raise ConfigError(f"{PROVIDERS}.{name}.param.{parameter}: {error}") from None


def _value(option: str, marker: str, providers: Mapping[str, Provider]) -> str:
    match = _MARKER.fullmatch(marker)
    if match is None:
        raise ConfigError(f"option {option!r}: {marker!r} is not of the form ${{provider:[path:]key}}")
    name, path, key = match[1], match[2] or "", match[3]
    provider = providers.get(name)
    if provider is None:
        raise ConfigError(f"option {option!r}: provider {name!r} of {marker!r} is not listed in {PROVIDERS}")
    try:
        return provider(path, key)
    except ConfigError as error:
        raise ConfigError(f"option {option!r}: {marker!r} cannot be resolved: {error.message}") from None


def _environment(pattern: str) -> Provider:
    allowed = re.compile(pattern or ".*")

    def read(path: str, key: str) -> str:
        if path:
            raise ConfigError("env takes no path; use ${env:NAME}")
        if not allowed.fullmatch(key):
            raise ConfigError(f"{key} does not match allowlist.pattern")
        if key not in os.environ:
            raise ConfigError(f"the environment variable {key} is not set")
        return os.environ[key]

    return read


def _property(roots: str) -> Provider:
    read_file = _reader(roots)

    def read(path: str, key: str) -> str:
        if not path:
            raise ConfigError("file needs a path; use ${file:/path/of.properties:key}")
        for line in read_file(path).splitlines():
            match = re.fullmatch(r"\s*([^#!\s=:][^\s=:]*)\s*[=:\s]\s*(.*)", line)
            if match is not None and match[1] == key:
                return match[2]
        raise ConfigError(f"{path} has no property {key!r}")

    return read


def _file_below(roots: str) -> Provider:
    read_file = _reader(roots)

    def read(path: str, key: str) -> str:
        if not path:
            raise ConfigError("directory needs a path; use ${directory:/folder:file}")
        return read_file(os.path.join(path, key)).removesuffix("\n")  # which most tools write behind a secret

    return read


def _reader(roots: str) -> Callable[[str], str]:
    # Without pathlib, which a client that only scans would load for this alone.
    allowed = [os.path.realpath(root.strip()) for root in roots.split(",") if root.strip()]
    if not allowed:
        raise ConfigError("name the folders that may be read, separated by commas")

    def read(path: str) -> str:
        real = os.path.realpath(path)
        if not any(os.path.commonpath((real, root)) == root for root in allowed):
            raise ConfigError(f"{path} lies outside of allowed.paths")
        try:
            with open(real, "rb") as file:
                data = file.read(_BYTES_MAX + 1)
            if len(data) > _BYTES_MAX:
                raise ConfigError(f"{path} is larger than {_BYTES_MAX} bytes")
            return data.decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None

    return read
