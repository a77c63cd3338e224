# SPDX-License-Identifier: Apache-2.0
"""A real Apache Fluss that keeps its segments on S3: our client reads them with the credentials it lends."""

from __future__ import annotations

import os
import time
from typing import Any

import pyarrow as pa
import pytest
from tests.interop import cluster, environment
from tests.s3.server import BUCKET, REGION, S3Server

from fluss import Schema, TableDescriptor, TablePath
from fluss.client.scan import remote
from fluss.lake.tasks import LakeSession
from fluss.metadata import EARLIEST_OFFSET, TableBucket

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

ROWS = 6000


@pytest.fixture(scope="module")
def plugin() -> str:
    """The file system plugin of Apache Fluss for S3."""
    name = f"fluss-fs-s3-{environment.FLUSS_VERSION}.jar"
    try:
        environment.java()
        if not (environment.CACHE / name).exists():
            artifact = f"org.apache.fluss:fluss-fs-s3:{environment.FLUSS_VERSION}"
            command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}"]
            environment._run(
                [*command, f"-DoutputDirectory={environment.CACHE}"], "the S3 plugin of Fluss from Maven Central", 600
            )
        return f"{environment.CACHE / name}{os.pathsep}{environment.classpath()}"
    except environment.Unavailable as missing:
        pytest.skip(str(missing))


def test_clients_read_segments_of_a_real_cluster(s3: S3Server, plugin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "classpath", lambda version=None: plugin)
    opened: list[str] = []
    open_store = remote.RemoteReader._open_store

    async def counted(self: Any, scheme: str, directory: str) -> Any:
        opened.append(directory)
        return await open_store(self, scheme, directory)

    monkeypatch.setattr(remote.RemoteReader, "_open_store", counted)
    options = {
        "remote.data.dir": f"s3://{BUCKET}/real",
        "s3.endpoint": s3.endpoint,
        "s3.region": REGION,
        "s3.endpoint.region": REGION,  # where its library looks for the region
        "s3.access-key": s3.access_key,
        "s3.secret-key": s3.secret_key,
        "s3.path-style-access": "true",
        "s3.assumed.role.arn": "arn:aws:iam::123456789012:role/readers",
        "s3.assumed.role.sts.endpoint": s3.endpoint,
        "log.segment.file-size": "64kb",
        "remote.log.task-interval-duration": "1s",
    }
    path = TablePath("fluss", "events")
    with cluster.RealCluster(tablets=1, options=options) as servers:
        session = LakeSession({"bootstrap.servers": servers.plain})
        try:
            schema = Schema(pa.schema([("id", pa.int64()), ("text", pa.string())]))
            properties = {"table.log.tiered.local-segments": "1", "table.log.arrow.compression.type": "NONE"}
            descriptor = TableDescriptor(schema, bucket_count=1, properties=properties)
            session.run(session.admin.create_table(path, descriptor))

            async def write() -> None:
                writer = (await session.connection.get_table(path)).new_append().create_writer()
                for i in range(ROWS):
                    writer.append({"id": i, "text": "x" * 100})
                    if i % 100 == 99:
                        await writer.flush()

            session.run(write())
            deadline = time.monotonic() + 120
            end = 0
            while end < ROWS * 3 // 4:
                assert time.monotonic() < deadline, f"the cluster copied its log up to {end} only"
                time.sleep(1)
                names = [name.rsplit("/", 1)[1] for name in s3.files(f"{BUCKET}/real/log")]
                end = max((int(name[:-4]) for name in names if name.endswith(".log")), default=0)
            time.sleep(3)  # the round that copies segments then deletes the local ones
            bucket = TableBucket(session.info(path).table_id, 0)
            found: list[int] = []
            scan = session.scan(path)
            for batch in session.iterate(scan.read_batches({bucket: EARLIEST_OFFSET}, {bucket: ROWS})):
                found += batch.batch.column(0).to_pylist()
            assert found == list(range(ROWS))
            assert opened, "rows came from the store"
            assert opened[0].startswith(f"s3://{BUCKET}/real/")
        finally:
            session.close()
