# SPDX-License-Identifier: Apache-2.0
"""Which file system a URI opens, and which options it refuses. tests/s3 uses them on a real store."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs as pafs
import pytest

from fluss.errors import ConfigError
from fluss.net.filesystems import open_filesystem, scheme_of, scrub

S3 = {"s3.endpoint": "http://127.0.0.1:9", "s3.region": "eu-west-1", "s3.access-key": "AK", "s3.secret-key": "SK"}
OSS = {"oss.endpoint": "oss-cn-hangzhou.aliyuncs.com", "oss.accessKeyId": "AK", "oss.accessKeySecret": "SK"}


def test_local_paths(tmp_path: Path) -> None:
    for uri in (str(tmp_path), f"file://{tmp_path}"):
        filesystem, root = open_filesystem(uri)
        assert isinstance(filesystem, pafs.LocalFileSystem)
        assert root == str(tmp_path)
        assert scheme_of(uri) == "file"


@pytest.mark.parametrize(
    ("uri", "options", "kind"),
    [
        ("s3://bucket/a/b/", S3, "s3"),
        ("s3a://bucket/a/b", {**S3, "s3.path-style-access": "false"}, "s3"),
        ("s3://bucket/a/b", {**S3, "s3.endpoint": "127.0.0.1:9", "s3.connection.ssl.enabled": "false"}, "s3"),
        ("oss://bucket/a/b", OSS, "s3"),
        ("gs://bucket/a/b", {"gs.project.id": "p", "gs.storage.root.url": "http://127.0.0.1:9"}, "gcs"),
    ],
)
def test_object_stores(uri: str, options: dict[str, str], kind: str) -> None:
    filesystem, root = open_filesystem(uri, options)
    assert filesystem.type_name == kind
    assert root == "bucket/a/b"


@pytest.mark.parametrize(
    ("uri", "options", "reason"),
    [
        ("s3://b/p", {"s3.access-key": "AK"}, r"s3\.secret-key is not set, but s3\.access-key is"),
        ("s3://b/p", {"s3.secret-key": "SK"}, r"s3\.access-key is not set, but s3\.secret-key is"),
        ("s3://b/p", {**S3, "s3.endpoint": "ftp://host"}, r"s3\.endpoint: got 'ftp://host'"),
        ("s3://b/p", {**S3, "s3.endpoint": "http://host/path"}, "host and port"),
        ("oss://b/p", {}, r"oss\.endpoint is not set"),
    ],
)
def test_options_that_cannot_work(uri: str, options: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        open_filesystem(uri, options)
    assert "SK" not in str(caught.value)


def test_credentials_are_taken_out_of_texts() -> None:
    assert scrub("denied for AK with SK at eu-west-1", S3) == "denied for *** with *** at eu-west-1"
