# SPDX-License-Identifier: Apache-2.0
"""The formats there are, and what the server asks of them. Their libraries are imported when a lake is opened."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module

import pyarrow as pa

from fluss.errors import ConfigError, MissingDependencyError
from fluss.lake.api import Lake, LakeBucket, LakeTableChangedError, Options
from fluss.lake.layout import LakeConfig, strip_prefix
from fluss.metadata import Column, TableDescriptor, TableInfo, TablePath

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


def _open(lake_format: str, options: Mapping[str, str]) -> Lake:
    return open_lake(LakeConfig(lake_format, strip_prefix(lake_format, options)))


def create_table(
    lake_format: str, options: Mapping[str, str], path: TablePath, descriptor: TableDescriptor, must_be_empty: bool
) -> None:
    """Create the lake table, or make sure that the one there fits (else code 54)."""
    if lake_format in FORMATS:
        with _open(lake_format, options) as lake:
            lake.create_table(path, descriptor, must_be_empty=must_be_empty)


def add_columns(lake_format: str, options: Mapping[str, str], path: TablePath, columns: Sequence[Column]) -> None:
    """Add columns to the lake table. One that is not there gets them when the tiering service creates it."""
    if lake_format in FORMATS:
        with _open(lake_format, options) as lake, contextlib.suppress(LakeTableChangedError):
            lake.add_columns(path, columns)


def look_up(
    lake_format: str,
    options: Mapping[str, str],
    info: TableInfo,
    partition: tuple[str, ...],
    bucket: int,
    keys: pa.RecordBatch,
) -> Iterator[pa.RecordBatch]:
    """Read rows of one bucket of a partition by key; see `OpenLakeTable.look_up`."""
    with _open(lake_format, options) as lake:
        yield from lake.table(info.lake_path).look_up(LakeBucket(bucket, partition), info, keys)
