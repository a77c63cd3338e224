# SPDX-License-Identifier: Apache-2.0
"""The formats there are. Their libraries are imported when a lake is opened."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from fluss.errors import ConfigError, MissingDependencyError
from fluss.lake.api import Lake, Options
from fluss.lake.layout import LakeConfig

_FORMATS = {
    "paimon": ("fluss.lake.paimon", "PaimonLake"),
    "iceberg": ("fluss.lake.iceberg", "IcebergLake"),
    "lance": ("fluss.lake.lance", "LanceLake"),
    "delta": ("fluss.lake.delta", "DeltaLake"),
}

FORMATS = tuple(_FORMATS)


def open_lake(config: LakeConfig) -> Lake:
    """The lake of a configuration."""
    if config.lake_format not in _FORMATS:
        raise ConfigError(
            f"lake format '{config.lake_format}' is not supported here; there are {', '.join(sorted(_FORMATS))}"
        )
    module, name = _FORMATS[config.lake_format]
    try:
        make: Callable[[Options], Lake] = getattr(import_module(module), name)
    except ImportError as error:
        raise MissingDependencyError(
            f"lake format {config.lake_format} needs more packages ({error.name} is missing); "
            f"run: pip install 'fluss-python[{config.lake_format}]'"
        ) from None
    return make(config.options)
