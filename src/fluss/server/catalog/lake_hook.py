# SPDX-License-Identifier: Apache-2.0
"""What a lake implementation may do when a lake-enabled table changes.

The server records the state of the lake and does not write to it. Without a hook the tiering worker creates the lake
table when it first writes; with one the lake is changed before the catalog, and a refusal (code 54) stops the change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from fluss import _plugins
from fluss.errors import ErrorCode, FlussError, InvalidTableError, MissingDependencyError, UnknownServerError
from fluss.metadata import Column, TableDescriptor, TableInfo, TablePath
from fluss.net.deadline import wait_for
from fluss.server.catalog.cluster_configs import ClusterConfigs
from fluss.server.exposure import scrub

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("fluss.server.catalog")

_SECONDS_MAX = 60.0


class LakeTables(Protocol):
    """What the server asks of the lake; the lake package implements it under the name ``server.lake``."""

    def create_table(
        self,
        lake_format: str,
        options: Mapping[str, str],
        path: TablePath,
        descriptor: TableDescriptor,
        must_be_empty: bool,
    ) -> None: ...

    def add_columns(
        self, lake_format: str, options: Mapping[str, str], path: TablePath, columns: Sequence[Column]
    ) -> None: ...

    def look_up(
        self,
        lake_format: str,
        options: Mapping[str, str],
        info: TableInfo,
        partition: tuple[str, ...],
        bucket: int,
        keys: pa.RecordBatch,
    ) -> Iterator[pa.RecordBatch]: ...


def lake_options(configs: ClusterConfigs) -> tuple[str, dict[str, str]] | None:
    """Return the format of the lake and the options of its catalog, as of now; None where there is none to reach."""
    if configs.lake_format is None:
        return None
    options = configs.current.with_prefix(f"datalake.{configs.lake_format}.")
    return (configs.lake_format, dict(options)) if options else None


class LakeHook:
    """Does what `fluss.lake` does, in a thread, with the lake options of the moment.

    Without catalog options there is no lake to reach, and without the packages of the format this machine cannot reach
    it: then the tiering service, which has both, creates the table.
    """

    def __init__(self, configs: ClusterConfigs) -> None:
        self._configs = configs
        self._warned = False

    async def create_table(self, path: TablePath, descriptor: TableDescriptor, *, must_be_empty: bool) -> None:
        """Create the lake table, or check that the one there fits; raise LakeTableAlreadyExistError if it does not."""
        await self._do(lambda lake, name, options: lake.create_table(name, options, path, descriptor, must_be_empty))

    async def add_columns(self, path: TablePath, columns: Sequence[Column]) -> None:
        """Add columns to the lake table; can be repeated."""
        await self._do(lambda lake, name, options: lake.add_columns(name, options, path, tuple(columns)))

    async def _do(self, change: Callable[[LakeTables, str, Mapping[str, str]], None]) -> None:
        found = lake_options(self._configs)
        if found is None:
            return
        lake_format, options = found
        prefix = f"datalake.{lake_format}."
        settings = {name[len(prefix) :]: value for name, value in options.items()}

        def work() -> None:
            change(_plugins.implementation("server.lake"), lake_format, options)

        try:
            await wait_for(asyncio.to_thread(work), _SECONDS_MAX)
        except MissingDependencyError as error:
            if not self._warned:
                self._warned = True
                _log.warning("lake tables are left to the tiering service: %s", error.message)
        except FlussError as error:
            message = scrub(error.message, settings, lake_format)
            if error.error_code == ErrorCode.CLIENT_ERROR:
                raise InvalidTableError(f"The lake does not take the table: {message}") from None
            raise type(error)(message, error.error_code) from None
        except asyncio.TimeoutError:
            raise UnknownServerError(
                f"The lake did not answer within {_SECONDS_MAX:.0f} s. Nothing changed here; the lake may still change."
            ) from None
        except Exception as error:
            # Libraries of lake formats raise what they like; whatever it is, the table must not come into being. Their
            # texts may quote the settings they were given.
            message = scrub(str(error), settings, lake_format)
            raise UnknownServerError(f"The lake failed: {type(error).__name__}: {message}") from None
