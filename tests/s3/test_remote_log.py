# SPDX-License-Identifier: Apache-2.0
"""Remote segments on a real S3 server: credentials of readers, kills of both servers, and secrets that stay inside."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.s3.server import BUCKET, S3Server
from tests.waiting import wait_for

from fluss import Schema, TableDescriptor, TablePath
from fluss.lake.tasks import LakeSession
from fluss.metadata import EARLIEST_OFFSET, TableBucket
from fluss.server.local import LocalServer

ROLE = "arn:aws:iam::123456789012:role/fluss-readers"
SMALL = {
    "log.segment.file-size": "4kb",
    "remote.log.task-interval-duration": "200ms",
    "log.retention.check-interval": "200ms",
}
TEXT = "x" * 200


@pytest.fixture(autouse=True)
def _no_credentials_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    # Without keys the library of the store would ask the network of a cloud for some, and wait.
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


class Log:
    """A log table on a server of its own whose closed segments go to S3."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        self.path = TablePath("fluss", "events")
        self.written = 0

    def session(self, **options: str) -> LakeSession:
        given = {f"client.fs.s3.{name.replace('_', '-')}": value for name, value in options.items()}
        return LakeSession({"bootstrap.servers": self.server.bootstrap_servers, **given})

    def create(self) -> TableBucket:
        with_text = pa.schema([("id", pa.int64()), ("text", pa.string())])
        descriptor = TableDescriptor(
            Schema(with_text), bucket_count=1, properties={"table.log.tiered.local-segments": "1"}
        )
        session = self.session()
        try:
            session.run(session.admin.create_table(self.path, descriptor))
            return TableBucket(session.info(self.path).table_id, 0)
        finally:
            session.close()

    def append(self, count: int) -> None:
        session = self.session()

        async def work() -> None:
            table = await session.connection.get_table(self.path)
            writer = table.new_append().create_writer()
            for i in range(self.written, self.written + count):
                writer.append({"id": i, "text": TEXT})
                if i % 10 == 9:
                    await writer.flush()
            await writer.flush()

        try:
            session.run(work())
            self.written += count
        finally:
            session.close()

    def read(self, session: LakeSession) -> list[int]:
        bucket = TableBucket(session.info(self.path).table_id, 0)
        scan = session.scan(self.path)
        found: list[int] = []
        for batch in session.iterate(scan.read_batches({bucket: EARLIEST_OFFSET}, {bucket: self.written})):
            found += batch.batch.column(0).to_pylist()
        return found

    def remote_end(self) -> int:
        session = self.session()
        try:
            manifests = session.run(session.admin.list_remote_log_manifests(self.path))
            return max((one.end_offset for one in manifests), default=0)
        finally:
            session.close()


@pytest.fixture
def log(s3: S3Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Log]:
    more = {"s3.assumed.role.arn": ROLE, "s3.assumed.role.sts.endpoint": s3.endpoint}
    own = {"remote.data.dir": f"s3://{BUCKET}/{request.node.name}"}
    server = LocalServer(tmp_path / "data", options={**s3.options(**more), **SMALL, **own}).start()
    made = Log(server)
    try:
        made.create()
        yield made
    finally:
        server.kill()


def test_readers_use_credentials_of_the_cluster(log: Log, s3: S3Server) -> None:
    log.append(300)
    wait_for(lambda: log.remote_end() > 200)
    session = log.session()
    try:
        assert log.read(session) == list(range(300))
        token = session.run(session.admin.get_file_system_security_token())
        assert token.scheme == "s3"
        assert token.expiration_time is not None
        assert token.expiration_time > time.time() * 1000 + 600_000
        assert token.properties["fs.s3a.endpoint"] == s3.endpoint
        # The keys of the server are its own; what it lends are others.
        assert s3.access_key.encode() not in token.token
        assert s3.secret_key.encode() not in token.token
        assert token.token.decode() not in repr(token)
        described = session.run(session.admin.describe_cluster_configs())
        assert s3.secret_key not in repr(described)
        assert s3.access_key not in repr(described)
        assert s3.secret_key not in repr(session.info(log.path))
    finally:
        session.close()
    assert "copied" in log.server.log_text
    assert s3.secret_key not in log.server.log_text
    assert s3.access_key not in log.server.log_text


def test_readers_use_keys_of_their_own(s3: S3Server, tmp_path: Path) -> None:
    options = {**s3.options(), **SMALL, "remote.data.dir": f"s3a://{BUCKET}/own/keys"}
    with LocalServer(tmp_path / "data", options=options) as server:
        log = Log(server)
        log.create()
        log.append(200)
        wait_for(lambda: log.remote_end() > 100)
        session = log.session(access_key=s3.access_key, secret_key=s3.secret_key)
        assert s3.secret_key not in repr(session)
        try:
            assert log.read(session) == list(range(200))
            token = session.run(session.admin.get_file_system_security_token())
            assert (token.scheme, token.token) == ("s3a", b"")
        finally:
            session.close()
        assert s3.files(f"{BUCKET}/own/keys/log")


def test_readers_without_credentials_learn_why(s3: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {**s3.options(), **SMALL, "remote.data.dir": f"s3://{BUCKET}/closed"}
    with LocalServer(tmp_path / "data", options=options) as server:
        log = Log(server)
        log.create()
        log.append(200)
        wait_for(lambda: log.remote_end() > 100)
        session = log.session(access_key="nobody-here", secret_key="not-the-secret")
        scanner = session.run(session.scan(log.path).create_log_scanner())
        try:
            scanner.subscribe(0, EARLIEST_OFFSET)
            wait_for(lambda: bool(session.run(scanner.poll(100))) or "cannot be opened" in caplog.text)
        finally:
            session.run(scanner.close())
            session.close()
    assert "INVALID_ACCESS_KEY_ID" in caplog.text or "ACCESS_DENIED" in caplog.text
    assert "not-the-secret" not in caplog.text
    assert "nobody-here" not in caplog.text


@pytest.mark.slow
def test_the_server_is_killed_while_it_copies(log: Log, s3: S3Server) -> None:
    for _ in range(4):
        log.append(250)
        before = log.remote_end()
        deadline = time.monotonic() + 5
        while log.remote_end() == before and time.monotonic() < deadline:
            time.sleep(0.02)
        log.server.crash()
        log.server.start()
    log.append(50)
    wait_for(lambda: log.remote_end() > 950)
    session = log.session()
    try:
        assert log.read(session) == list(range(1050))
    finally:
        session.close()
    # What the killed servers copied without listing it is gone, and every listed segment is there.
    folder = f"{BUCKET}/test_the_server_is_killed_while_it_copies/log"
    wait_for(lambda: len([name for name in s3.files(folder) if name.endswith(".manifest")]) == 1)
    segments = {name.rsplit("/", 2)[-2] for name in s3.files(folder) if name.endswith(".log")}
    ends = sorted(int(name.rsplit("/", 1)[1][:-4]) for name in s3.files(folder) if name.endswith(".log"))
    assert len(ends) == len(set(ends)) == len(segments), "no segment is there twice"


@pytest.mark.slow
def test_the_store_is_killed_and_started_again(log: Log, s3: S3Server) -> None:
    log.append(200)
    wait_for(lambda: log.remote_end() > 100)
    s3.kill()
    try:
        log.append(200)  # writes need no store
        wait_for(lambda: "failed" in log.server.log_text)
        session = log.session()
        found: list[int] = []
        reader = threading.Thread(target=lambda: found.extend(log.read(session)))
        reader.start()
        time.sleep(1.5)
        assert reader.is_alive(), "the scan waits for the store"
    finally:
        s3.start()
    reader.join(60)
    session.close()
    assert found == list(range(400))
    wait_for(lambda: log.remote_end() > 350)
    assert s3.secret_key not in log.server.log_text
    assert s3.access_key not in log.server.log_text
