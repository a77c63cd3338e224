# SPDX-License-Identifier: Apache-2.0
"""The options of the client and of lake catalogs that stand among those of Spark, of a file and of the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fluss.config import CONFIG_OPTIONS, Config, Login
from fluss.errors import ConfigError
from fluss.options import OptionTable

CATALOG_PREFIX = "option."
"""Tables of a Spark catalog hand their options over with this prefix, and at times without it as well."""

_LAKE_PREFIX = "datalake."
"""Options of the lake catalog, named as on the server, for those that the server does not show."""

CLIENT_OPTIONS = OptionTable("option", CONFIG_OPTIONS.values(), prefix="client.", ignore_case=True)
"""Every option of the client, with and without the prefix `client.`."""


def is_client_option(name: str) -> bool:
    """Whether an option is one of the client's."""
    return CLIENT_OPTIONS.find(name) is not None


def is_lake_option(name: str) -> bool:
    """Whether an option is one of the lake catalog's."""
    return name.lower().startswith(_LAKE_PREFIX)


def catalog_options(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The options of the client, checked, and those of the lake, among the options of a catalog."""
    client: dict[str, Any] = {}
    lake: dict[str, str] = {}
    for name, value in {**options_of_file(options), **options}.items():
        option = CLIENT_OPTIONS.find(name)
        if option is not None:
            client[option.key] = value
        elif is_lake_option(name):
            lake[name.lower()] = str(value)
    return checked_client(client), lake


def checked_client(client: dict[str, Any]) -> dict[str, Any]:
    """Options of the client with those of the environment, checked."""
    client = {**environment_options(), **client}
    if "bootstrap.servers" not in client:
        raise ConfigError(
            "option bootstrap.servers is missing: give the address of a server, such as 'localhost:9123', as an "
            "option, as spark.fluss.bootstrap.servers of fluss.spark.session(), or in the variable "
            "FLUSS_BOOTSTRAP_SERVERS of the driver"
        )
    Config(client).validate()
    return client


def environment_options() -> dict[str, Any]:
    """The options of the client that the environment of the driver gives, as for the command line."""
    found: dict[str, Any] = {}
    if servers := os.environ.get("FLUSS_BOOTSTRAP_SERVERS"):
        found["bootstrap.servers"] = servers
    return found | Login.of_environment().options()


def options_of_file(options: Mapping[str, str]) -> dict[str, Any]:
    """What the file of the option `client.options.file` gives; nothing where there is none."""
    for name, value in options.items():
        if name.lower().removeprefix(CATALOG_PREFIX) == "client.options.file":
            return options_in_file(value)
    return {}


def options_in_file(name: str) -> dict[str, Any]:
    """The options in a JSON file."""
    try:
        document = json.loads(Path(name).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"client.options.file: {name} cannot be read as JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"client.options.file: {name} must hold an object of options by name")
    return document
