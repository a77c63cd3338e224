# SPDX-License-Identifier: Apache-2.0
"""Options of object stores: spellings, what is refused, what is never shown, and what clients are told."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest
from tests.server.catalog.support import Harness

from fluss.errors import ConfigError, ErrorCode
from fluss.protocol import fluss_pb2 as pb
from fluss.server.config import ServerConfig, is_secret
from fluss.server.handlers import cluster
from fluss.server.server import Server
from fluss.server.store_tokens import sign

KEYS = {"s3.access-key": "AKVALUE", "s3.secret-key": "SKVALUE"}


def test_spellings_of_apache_fluss() -> None:
    for prefix in ("s3.", "s3a.", "fs.s3a."):
        config = ServerConfig(
            {f"{prefix}access.key": "a", f"{prefix}secret-key": "b", f"{prefix}path.style.access": "TRUE"}
        )
        expected = {"s3.access-key": "a", "s3.secret-key": "b", "s3.path-style-access": "true"}
        assert config.store_options == expected
    config = ServerConfig({"oss.endpoint": "e", "fs.oss.accessKeyId": "a", "fs.gs.project.id": "p"})
    assert config.store_options == {"oss.endpoint": "e", "oss.accessKeyId": "a", "gs.project.id": "p"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("s3.aws.credentials.provider", "tried in turn"),
        ("fs.oss.roleArn", "not issued here"),
        ("fs.gs.auth.service.account.json.keyfile", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("s3.acess-key", r"s3\.access-key"),
    ],
)
def test_options_that_are_refused(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        ServerConfig({name: "SKVALUE"})
    assert "SKVALUE" not in str(caught.value)


def test_a_location_with_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"s3\.endpoint"):
        Server({"remote.data.dir": "s3://bucket/path?endpoint_override=127.0.0.1:9000"})


def test_secrets_are_never_shown() -> None:
    names = ("s3.access-key", "s3.secret-key", "s3.session-token", "fs.oss.accessKeyId", "fs.oss.accessKeySecret")
    assert all(is_secret(name) for name in (*names, "fs.oss.securityToken", "fs.s3a.secret.key"))
    assert "VALUE" not in repr(ServerConfig(KEYS))


def test_clients_are_told_where_the_store_is_and_no_keys(tmp_path: Path) -> None:
    options = {"remote.data.dir": "s3a://bucket/x", "s3.endpoint": "http://s3:9000", "s3.region": "r", **KEYS}
    harness = Harness(tmp_path, options)
    answer = harness.call(cluster.get_filesystem_security_token, pb.GetFileSystemSecurityTokenRequest())
    assert (answer.schema, answer.token) == ("s3a", b"")
    assert {pair.key: pair.value for pair in answer.addition_info} == {
        "fs.s3a.endpoint": "http://s3:9000",
        "fs.s3a.region": "r",
        "fs.s3a.endpoint.region": "r",
    }
    described = harness.call(cluster.describe_cluster_configs, pb.DescribeClusterConfigsRequest())
    assert "VALUE" not in str(described)


@pytest.mark.parametrize("keys", [KEYS, {}])
def test_a_service_that_issues_nothing(tmp_path: Path, keys: dict[str, str]) -> None:
    role = {"s3.assumed.role.arn": "arn:aws:iam::1:role/r", "s3.assumed.role.sts.endpoint": "http://127.0.0.1:9"}
    harness = Harness(tmp_path, {"remote.data.dir": "s3://bucket/x", **role, **keys})
    error = harness.fails(
        ErrorCode.SECURITY_TOKEN_EXCEPTION,
        cluster.get_filesystem_security_token,
        pb.GetFileSystemSecurityTokenRequest(),
    )
    assert "VALUE" not in str(error)


def test_signatures() -> None:
    """The signature depends on everything that is signed, and carries neither the secret nor the body."""
    keys = ("AKVALUE", "SKVALUE", None)
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    first = sign("http://sts:9000", b"Action=AssumeRole", keys, "r", now)
    assert first["x-amz-date"] == "20260102T030405Z"
    assert first["host"] == "sts:9000"
    assert "Credential=AKVALUE/20260102/r/sts/aws4_request" in first["authorization"]
    assert "SKVALUE" not in str(first)
    others = [
        sign("http://sts:9001", b"Action=AssumeRole", keys, "r", now),
        sign("http://sts:9000", b"Action=Other", keys, "r", now),
        sign("http://sts:9000", b"Action=AssumeRole", ("AKVALUE", "other", None), "r", now),
        sign("http://sts:9000", b"Action=AssumeRole", ("AKVALUE", "SKVALUE", "session"), "r", now),
    ]
    assert len({one["authorization"] for one in [first, *others]}) == 5
