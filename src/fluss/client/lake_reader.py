# SPDX-License-Identifier: Apache-2.0
"""What the client asks of the lake. The lake package, which is built on the client, implements it as `client.lake`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import pyarrow as pa

from fluss import _plugins
from fluss.metadata import TablePath


class LakeReader(Protocol):
    """Reads tables from their lake and from the log after it."""

    def union_read_once(
        self, options: Mapping[str, Any], path: TablePath, columns: Sequence[str], lake_only: bool = False, /
    ) -> pa.Table:
        """Read these columns of a table, with these client options. Blocks the calling thread."""
        ...


def lake_reader() -> LakeReader:
    """Return the reader; its package is imported with the first call."""
    return cast("LakeReader", _plugins.implementation("client.lake"))
