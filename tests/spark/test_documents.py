# SPDX-License-Identifier: Apache-2.0
"""What the documents say of Spark is true as well: their blocks that need it run, in the one session of these tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.docs.blocks import ROOT, Block, LazyServer, read_blocks, run_page
from tests.spark.conftest import BRIDGE
from tests.spark.marks import needs_start

from fluss.spark import configure

PAGES = sorted(
    path
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "examples" / "README.md")
    if any(block.needs == "spark" for block in read_blocks(path))
)

SECURED = {
    # The listener FLUSS is the internal one and trusted; clients get a listener of their own.
    "bind.listeners": "FLUSS://127.0.0.1:0,CLIENT://127.0.0.1:0",
    "security.protocol.map": {"CLIENT": "SASL"},
    "security.sasl.plain.credentials": {"spark": "spark-secret"},
}


@pytest.fixture
def cluster(page: Path) -> Iterator[LazyServer]:
    """What pages call localhost:9123; the page on Spark shows how to log in."""
    server = LazyServer(SECURED if page.name == "spark.md" else None)
    yield server
    server.stop()


@pytest.fixture
def shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a page gets for `session()` is the session of all tests: it may change and stop it, and they go on."""
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    yield
    spark.sql("USE spark_catalog.default")
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
    for name in ("spark.fluss.bootstrap.servers", "spark.sql.streaming.stateStore.providerClass"):
        spark.conf.unset(name)
    configure(spark)


def runs_here(block: Block) -> bool:
    return block.needs in (None, "spark")


@pytest.mark.skipif(not BRIDGE, reason="pages load the jar, and it would stay loaded")
@needs_start  # pages show how limits cut a stream into micro-batches
@pytest.mark.usefixtures("shared_session")
@pytest.mark.parametrize(
    "page",
    # People start with these two pages; of others, tests of their own cover what is run here.
    [
        pytest.param(page, id=page.name, marks=() if page.name in ("spark.md", "tutorial.md") else pytest.mark.slow)
        for page in PAGES
    ],
)
def test_every_block_runs(page: Path, cluster: LazyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asyncio.run(run_page(filter(runs_here, read_blocks(page)), cluster))


def test_blocks_that_need_a_cluster_are_run_on_one() -> None:
    """`test_clusters.py` runs them by these names; one that is called otherwise would not be run at all."""
    for page in PAGES:
        for block in read_blocks(page):
            if block.needs == "cluster":
                assert any(master in block.text for master in ("local-cluster[", "spark://", "sc://")), block.where
