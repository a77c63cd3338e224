# SPDX-License-Identifier: Apache-2.0
"""A bucket of a primary-key table, without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.server.kv.support import Bucket, opened, table


@pytest.fixture
async def bucket(tmp_path: Path) -> AsyncIterator[Bucket]:
    async with opened(tmp_path, table()) as bucket:
        yield bucket
