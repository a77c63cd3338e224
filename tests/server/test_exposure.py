# SPDX-License-Identifier: Apache-2.0
"""What the server shows of its settings, and what it never shows."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from tests.server.catalog.support import Harness, create, log_table, path
from tests.shared import raising

from fluss.errors import ConfigError, FlussError
from fluss.metadata import TablePath
from fluss.metadata.info import AlterConfigOp
from fluss.protocol import fluss_pb2 as pb
from fluss.server.catalog.lake_hook import LakeHook
from fluss.server.config import ServerConfig
from fluss.server.exposure import has_credentials, is_shown, scrub
from fluss.server.handlers import admin, cluster
from fluss.server.server import Server

SECRET = "s3cr3t-v4lue"
SECRET_KEYS = [
    "header.Authorization", "jdbc.passwd", "adls.sas", "rest.pwd", "s3.secret-key", "s3.access-key", "token",
    "credential", "fs.oss.accessKeySecret", "anything.at.all", "Warehouse",
]  # fmt: skip
SHOWN = {"warehouse": "/lake", "metastore": "filesystem", "s3.endpoint": "http://127.0.0.1:9000", "s3.region": "eu"}


def options() -> dict[str, object]:
    found: dict[str, object] = {"datalake.format": "paimon", "datalake.enabled": "true"}
    found |= {f"datalake.paimon.{key}": value for key, value in SHOWN.items()}
    found |= {f"datalake.paimon.{key}": SECRET for key in SECRET_KEYS}
    found["datalake.paimon.uri"] = f"postgresql://admin:{SECRET}@127.0.0.1/lake"
    return found


@pytest.mark.parametrize("rights", ["no authorizer", "authorizer"])
def test_readers_see_the_settings_that_they_need_and_nothing_else(tmp_path: Path, rights: str) -> None:
    more = {"authorizer.enabled": "true"} if rights == "authorizer" else {}
    harness = Harness(tmp_path, {**options(), **more})
    harness.call(admin.create_table, create(log_table(properties={"table.datalake.enabled": "true"})))
    info = harness.call(admin.get_table_info, pb.GetTableInfoRequest(table_path=path()))
    answer = harness.call(admin.get_metadata, pb.MetadataRequest(table_path=[path()]))
    for document in (info.table_json, answer.table_metadata[0].table_json):
        properties = json.loads(document)["properties"]
        prefix = "table.datalake.paimon."
        shown = {key[len(prefix) :]: value for key, value in properties.items() if key.startswith(prefix)}
        assert shown == SHOWN
        assert SECRET.encode() not in document


def test_described_options_have_their_values_on_the_list_only(tmp_path: Path) -> None:
    harness = Harness(tmp_path, options())
    change = pb.AlterClusterConfigsRequest()
    change.alter_configs.add(config_key="datalake.paimon.later", config_value=SECRET, op_type=AlterConfigOp.SET)
    harness.call(cluster.alter_cluster_configs, change)
    answer = harness.call(cluster.describe_cluster_configs, pb.DescribeClusterConfigsRequest())
    found = {entry.config_key: entry.config_value for entry in answer.configs}
    assert SECRET not in str(answer)
    assert (
        found["datalake.paimon.later"] == found["datalake.paimon.uri"] == found["datalake.paimon.adls.sas"] == "******"
    )
    assert {key: found[f"datalake.paimon.{key}"] for key in SHOWN} == SHOWN
    assert SECRET not in repr(harness.catalog.configs.current)
    assert SECRET not in repr(ServerConfig(options()))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/lake", False),
        ("s3://bucket/path", False),
        ("thrift://metastore:9083", False),
        ("http://127.0.0.1:8181", False),
        ("sqlite:////lake/catalog.db", False),
        ("abfss://container@account.dfs.core.windows.net/path", False),
        ("hdfs://namenode:8020/warehouse", False),
        ("postgresql://user:password@host/db", True),
        ("https://token@host/", True),
        ("abfss://container:key@account/path", True),
        ("jdbc:postgresql://host/db?password=x", True),
        ("jdbc:sqlserver://host;user=sa;password=x", True),
        ("http://[bad", True),
    ],
)
def test_urls_with_credentials(text: str, found: bool) -> None:
    assert has_credentials(text) is found
    assert is_shown("iceberg", "uri", text) is not found


def test_a_remote_folder_with_credentials_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"remote\.data\.dir") as caught:
        Server({"remote.data.dir": f"s3://key:{SECRET}@bucket/path"})
    assert SECRET not in str(caught.value)


def test_errors_of_lake_libraries_are_scrubbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Libraries put what they were given into their errors, and the creator of a table gets to read those."""
    caplog.set_level(logging.DEBUG)
    harness = Harness(tmp_path, options())
    harness.catalog.lake_hook = LakeHook(harness.catalog.configs)
    for kind, text in ((RuntimeError, f"cannot log in with {SECRET}"), (FlussError, f"refused: {SECRET}")):
        monkeypatch.setattr("fluss.lake.registry.create_table", raising(kind, text))
        request = create(log_table(properties={"table.datalake.enabled": "true"}))
        with pytest.raises(FlussError) as caught:
            harness.call(admin.create_table, request)
        assert "******" in caught.value.message
        assert SECRET not in str(caught.value)
        assert harness.catalog.find_table(TablePath("fluss", "t")) is None
    assert SECRET not in caplog.text


def test_scrubbing_leaves_what_is_shown() -> None:
    settings = {"warehouse": "/lake", "token": "abcd", "flag": "on"}
    assert scrub("no abcd on /lake", settings, "paimon") == "no ****** on /lake"
