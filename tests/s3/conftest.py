# SPDX-License-Identifier: Apache-2.0
"""One S3 server for the tests of a module; they are skipped where it was not built."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.s3.server import BINARY, BUCKET, MISSING, S3Server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    if not BINARY.exists():
        pytest.skip(MISSING)
    server = S3Server(tmp_path_factory.mktemp("s3") / "data").start()
    try:
        server.filesystem().create_dir(BUCKET)
        yield server
    finally:
        server.kill()
