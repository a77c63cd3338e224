# SPDX-License-Identifier: Apache-2.0
"""Warehouses on a real S3 server, in every format: tiering, union reads, sweeps, and a store that is killed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lake.support import PACKAGES, LakeHarness, every_format, lake_harness, row, rows_of
from tests.s3.server import BUCKET, REGION, S3Server

from fluss.errors import FlussError
from fluss.lake.layout import lake_config
from fluss.lake.registry import open_lake
from fluss.lake.rounds import Round, RoundSettings
from fluss.lake.tasks import LocalRunner
from fluss.lake.union import union_read
from fluss.metadata import TablePath
from fluss.server.local import LocalServer

_numbers = itertools.count(1)


def catalog_options(s3: S3Server, lake_format: str, folder: Path) -> tuple[dict[str, str], dict[str, str]]:
    """What readers may see of the lake, and what only those who write get."""
    warehouse = {"warehouse": f"s3://{BUCKET}/{lake_format}"}
    if lake_format == "paimon":
        shown = {"metastore": "filesystem", "s3.endpoint": s3.endpoint, "s3.region": REGION}
        secret = {"s3.access-key": s3.access_key, "s3.secret-key": s3.secret_key}
    elif lake_format == "iceberg":
        shown = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "s3.endpoint": s3.endpoint,
            "s3.region": REGION,
        }
        secret = {"s3.access-key-id": s3.access_key, "s3.secret-access-key": s3.secret_key}
    elif lake_format == "delta":
        shown = {"endpoint_url": s3.endpoint, "region": REGION, "allow_http": "true"}
        secret = {"access_key_id": s3.access_key, "secret_access_key": s3.secret_key}
    else:
        shown = {"endpoint": s3.endpoint, "region": REGION, "allow_http": "true"}
        secret = {"access_key_id": s3.access_key, "secret_access_key": s3.secret_key}
    return {**warehouse, **shown}, secret


class S3Lake:
    """A harness whose warehouse is in the store."""

    def __init__(self, harness: LakeHarness, secret: dict[str, str]) -> None:
        self.harness = harness
        self.secret = secret

    def round(self, **options: object) -> Round:
        h = self.harness
        return Round(h.session, h.client, LocalRunner(2), lake_options=self.secret, **options)  # type: ignore[arg-type]

    def union(self, path: TablePath, **options: object) -> list[dict[str, object]]:
        return rows_of(union_read(self.harness.session, path, lake_options=self.secret, **options))  # type: ignore[arg-type]


@pytest.fixture
def lake(request: pytest.FixtureRequest, s3: S3Server, tmp_path: Path) -> Iterator[S3Lake]:
    lake_format: str = request.param
    pytest.importorskip(PACKAGES[lake_format])
    shown, secret = catalog_options(s3, lake_format, tmp_path)
    options = {f"datalake.{lake_format}.{name}": value for name, value in {**shown, **secret}.items()}
    server = LocalServer(options={"datalake.format": lake_format, **options}).start()
    try:
        with lake_harness(server, lake_format, tmp_path, f"lake_{next(_numbers)}") as harness:
            yield S3Lake(harness, secret)
    finally:
        server.kill()


@every_format
def test_tiering_and_union_read(lake: S3Lake, s3: S3Server) -> None:
    h = lake.harness
    path = h.create("t")
    h.append(path, [row(i) for i in range(50)])
    lake.round().run(path)
    h.append(path, [row(i) for i in range(50, 60)])
    assert lake.union(path) == [row(i) for i in range(60)]
    assert lake.union(path, lake_only=True) == [row(i) for i in range(50)]
    assert s3.files(f"{BUCKET}/{h.lake_format}")
    # Readers are told where the lake is, and none of the keys.
    properties = repr(h.session.info(path).properties)
    assert s3.endpoint in properties
    assert s3.secret_key not in properties
    assert s3.access_key not in properties
    assert s3.secret_key not in h.server.log_text


@every_format
def test_files_of_a_lost_round_are_swept(lake: S3Lake) -> None:
    h = lake.harness
    path = h.create("t")
    h.append(path, [row(1)])
    lake.round().run(path)
    h.append(path, [row(2)])

    def crash(step: str) -> None:
        if step == "written":
            raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        lake.round(on_step=crash).run(path)
    with open_lake(lake_config(h.session.info(path), lake.secret)) as opened:
        assert opened.table(path).sweep(older_than_ms=2**53)
        assert opened.table(path).sweep(older_than_ms=2**53) == []
    lake.round().run(path)
    assert lake.union(path, lake_only=True) == [row(1), row(2)]


@every_format
def test_compaction_and_expiry(lake: S3Lake) -> None:
    h = lake.harness
    path = h.create("t", buckets=1)
    settings = RoundSettings(compact=True, compact_files_min=3, expire=True, expire_keep_min=1, expire_after_s=-60.0)
    compacted = expired = 0
    for step in range(5):
        h.append(path, [row(i) for i in range(step * 5, step * 5 + 5)])
        one = lake.round(settings=settings)
        report = one.run(path)
        one.maintain(report, sweep=True)
        compacted, expired = compacted + report.compacted, expired + report.expired
    assert compacted > 0
    assert expired > 0
    assert lake.union(path, lake_only=True) == [row(i) for i in range(25)]


@pytest.mark.slow
@every_format
@pytest.mark.parametrize("step", ["planned", "written", "prepared", "lake committed"])
def test_the_store_dies_at_each_step_of_a_round(lake: S3Lake, s3: S3Server, step: str) -> None:
    h = lake.harness
    path = h.create("t")
    h.append(path, [row(i) for i in range(10)])
    lake.round().run(path)
    h.append(path, [row(i) for i in range(10, 20)])

    def kill(name: str) -> None:
        if name == step:
            s3.kill()

    try:
        lake.round(on_step=kill).run(path)
        failed = ""
    except (FlussError, OSError, RuntimeError, ValueError) as error:
        failed = str(error)
    finally:
        s3.start()
    lake.round().run(path)
    assert lake.union(path, lake_only=True) == [row(i) for i in range(20)], "every row once"
    # After the commit, formats that ask the store once more fail, and the next round tells the server.
    assert failed or step == "lake committed"
    assert s3.secret_key not in failed
    assert s3.access_key not in failed
