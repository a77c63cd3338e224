# SPDX-License-Identifier: Apache-2.0
"""Cluster options, tags, rebalance, health, producer offsets, manifests, tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.server.catalog.support import NOW_MS, Harness, create, create_partition, log_table, partitioned_table, path

from fluss.errors import ConfigError
from fluss.metadata.info import AlterConfigOp
from fluss.protocol import fluss_pb2 as pb
from fluss.server.handlers import admin, cluster


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


# ---------------------------------------------------------------------- options


def change(*changes: tuple[str, str | None, int]) -> pb.AlterClusterConfigsRequest:
    request = pb.AlterClusterConfigsRequest()
    for key, value, operation in changes:
        request.alter_configs.add(config_key=key, op_type=operation, config_value=value)
    return request


def described(harness: Harness) -> dict[str, tuple[str | None, str]]:
    answer = harness.call(cluster.describe_cluster_configs, pb.DescribeClusterConfigsRequest())
    values = {item.config_key: item.config_value if item.HasField("config_value") else None for item in answer.configs}
    return {item.config_key: (values[item.config_key], item.config_source) for item in answer.configs}


def test_describe_shows_sources_and_hides_secrets(tmp_path: Path) -> None:
    secret = "s3cret-word"
    harness = Harness(
        tmp_path,
        {
            "bind.listeners": "FLUSS://127.0.0.1:0,CLIENT://127.0.0.1:0",
            "default.bucket.number": 3,
            "datalake.format": "paimon",
            "datalake.paimon.s3.access-key": secret,
            "datalake.paimon.warehouse": "/w",
            "security.sasl.plain.jaas.config": f'PlainLoginModule required user_a="{secret}";',
            "security.sasl.listener.name.client.plain.jaas.config": f'X required user_a="{secret}";',
            "security.sasl.plain.credentials": f"bob:{secret},eve:{secret}",
        },
    )
    harness.call(cluster.alter_cluster_configs, change(("datalake.format", "iceberg", AlterConfigOp.SET)))
    found = described(harness)
    assert found["default.bucket.number"] == ("3", "INITIAL_SERVER_CONFIG")
    assert found["datalake.format"] == ("iceberg", "DYNAMIC_SERVER_CONFIG")
    assert found["datalake.paimon.warehouse"] == ("/w", "INITIAL_SERVER_CONFIG")
    assert found["datalake.paimon.s3.access-key"][0] == "******"
    assert found["security.sasl.plain.credentials"][0] == "bob:******,eve:******"
    assert secret not in str(found)


def test_changes_are_kept_and_can_be_taken_back(tmp_path: Path) -> None:
    harness = Harness(tmp_path, {"datalake.format": "paimon"})
    seen: list[str | None] = []
    harness.catalog.configs.on_changed.append(lambda config: seen.append(config.text("datalake.format")))
    harness.call(cluster.alter_cluster_configs, change(("datalake.format", "iceberg", AlterConfigOp.SET)))
    harness.call(cluster.alter_cluster_configs, change(("kv.snapshot.interval", "1 min", AlterConfigOp.SET)))
    assert harness.catalog.configs.lake_format == "iceberg"
    assert harness.catalog.configs.current.integer("kv.snapshot.interval") == 60_000
    assert seen == ["iceberg", "iceberg"]
    harness.reopen()
    assert harness.catalog.configs.lake_format == "iceberg"
    harness.call(cluster.alter_cluster_configs, change(("datalake.format", None, AlterConfigOp.DELETE)))
    assert described(harness)["datalake.format"] == ("paimon", "INITIAL_SERVER_CONFIG")
    harness.call(cluster.alter_cluster_configs, change(("datalake.format", None, AlterConfigOp.SET)))
    for _ in range(2):  # no value is one too, and hides that of the start
        assert described(harness)["datalake.format"] == (None, "DYNAMIC_SERVER_CONFIG")
        assert harness.catalog.configs.lake_format is None
        harness.reopen()
    harness.call(cluster.alter_cluster_configs, change(("datalake.format", None, AlterConfigOp.DELETE)))
    harness.call(cluster.alter_cluster_configs, change())
    harness.reopen()
    assert harness.catalog.configs.lake_format == "paimon"


def test_a_change_of_the_lake_is_seen_by_tables(tmp_path: Path) -> None:
    harness = Harness(tmp_path, {"datalake.format": "paimon"})
    harness.call(admin.create_table, create(log_table(properties={"table.datalake.enabled": "true"})))

    def properties() -> dict[str, str]:
        info = harness.call(admin.get_table_info, pb.GetTableInfoRequest(table_path=path()))
        found: dict[str, str] = json.loads(info.table_json)["properties"]
        return found

    assert "table.datalake.paimon.warehouse" not in properties()
    harness.call(cluster.alter_cluster_configs, change(("datalake.paimon.warehouse", "/w", AlterConfigOp.SET)))
    assert properties()["table.datalake.paimon.warehouse"] == "/w"


def test_refused_changes_change_nothing(harness: Harness) -> None:
    refused = [
        (("default.bucket.number", "3", AlterConfigOp.SET), "default.bucket.number"),
        (("nonsense", "3", AlterConfigOp.SET), "nonsense"),
        (("super.users", "User:eve", AlterConfigOp.SET), "super.users"),
        (("authorizer.enabled", "false", AlterConfigOp.SET), "authorizer.enabled"),
        (("datalake.format", "excel", AlterConfigOp.SET), "datalake.format"),
        (("datalake.nonsense", "x", AlterConfigOp.SET), "datalake.nonsense"),
        (("datalake.enabled", "true", AlterConfigOp.SET), "datalake.format"),
        (("kv.snapshot.interval", "often", AlterConfigOp.SET), "kv.snapshot.interval"),
        (("kv.snapshot.interval", None, AlterConfigOp.APPEND), "A value is needed"),
        (("kv.snapshot.interval", "1 s", AlterConfigOp.APPEND), "kv.snapshot.interval"),
        (("kv.snapshot.interval", "1 s", 9), "9"),
    ]
    for item, text in refused:
        # The good change before it is not applied either.
        request = change(("datalake.paimon.warehouse", "/w", AlterConfigOp.SET), item)
        harness.fails(64, cluster.alter_cluster_configs, request, text)
    assert harness.catalog.configs.dynamic == {}
    assert described(harness) == {}


def test_a_lake_that_is_on_needs_a_format_at_start_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"datalake\.format"):
        Harness(tmp_path, {"datalake.enabled": "true"})


def test_options_that_no_longer_fit_are_dropped_at_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness(tmp_path, {"datalake.format": "paimon"})
    harness.call(cluster.alter_cluster_configs, change(("datalake.enabled", "true", AlterConfigOp.SET)))
    del harness.options["datalake.format"]
    with caplog.at_level("ERROR"):
        harness.reopen()
    assert "datalake.format" in caplog.text
    assert not harness.catalog.configs.lake_enabled


def test_appending_to_and_subtracting_from_a_map(tmp_path: Path) -> None:
    harness = Harness(tmp_path, {"security.sasl.plain.credentials": "a:1"})
    key = "security.sasl.plain.credentials"
    harness.call(cluster.alter_cluster_configs, change((key, "b:2,c:3", AlterConfigOp.APPEND)))
    assert harness.catalog.configs.current.mapping(key) == {"a": "1", "b": "2", "c": "3"}
    harness.call(
        cluster.alter_cluster_configs, change((key, "b:9", AlterConfigOp.APPEND), (key, "c:", AlterConfigOp.SUBTRACT))
    )
    assert harness.catalog.configs.current.mapping(key) == {"a": "1", "b": "9"}


# ---------------------------------------------------------------------- tags, rebalance, health


def test_server_tags(harness: Harness) -> None:
    def add(tag: int, *servers: int) -> pb.AddServerTagRequest:
        return pb.AddServerTagRequest(server_ids=servers, server_tag=tag)

    def remove(tag: int, *servers: int) -> pb.RemoveServerTagRequest:
        return pb.RemoveServerTagRequest(server_ids=servers, server_tag=tag)

    harness.call(cluster.add_server_tag, add(1, 0))
    harness.call(cluster.add_server_tag, add(1, 0))
    harness.fails(59, cluster.add_server_tag, add(0, 0))
    harness.fails(58, cluster.add_server_tag, add(1, 5), "5")
    harness.fails(-1, cluster.add_server_tag, add(7, 0))
    harness.reopen()
    assert harness.catalog.server_tags.tags == {0: 1}
    harness.fails(60, cluster.remove_server_tag, remove(0, 0))
    harness.fails(58, cluster.remove_server_tag, remove(1, 5))
    harness.call(cluster.remove_server_tag, remove(1, 0))
    harness.call(cluster.remove_server_tag, remove(1, 0))
    harness.reopen()
    assert harness.catalog.server_tags.tags == {}


def test_server_tags_by_rack(tmp_path: Path) -> None:
    harness = Harness(tmp_path, {"tablet-server.rack": "r1"})
    harness.call(cluster.add_server_tag_by_rack, pb.AddServerTagByRackRequest(racks=["r1"], server_tag=1))
    assert harness.catalog.server_tags.tags == {0: 1}
    harness.fails(58, cluster.add_server_tag_by_rack, pb.AddServerTagByRackRequest(racks=["r1", "r2"], server_tag=1))
    harness.call(cluster.remove_server_tag_by_rack, pb.RemoveServerTagByRackRequest(racks=["r1"], server_tag=1))
    assert harness.catalog.server_tags.tags == {}


def test_rebalance_of_one_server_is_done_at_once(harness: Harness) -> None:
    none = harness.call(cluster.list_rebalance_progress, pb.ListRebalanceProgressRequest(rebalance_id="any"))
    assert not none.HasField("rebalance_id")
    harness.call(cluster.cancel_rebalance, pb.CancelRebalanceRequest(rebalance_id="any"))
    harness.fails(61, cluster.rebalance, pb.RebalanceRequest(goals=[9]))
    harness.call(cluster.rebalance, pb.RebalanceRequest())
    task = harness.call(cluster.rebalance, pb.RebalanceRequest(goals=[0, 1])).rebalance_id
    for request in (pb.ListRebalanceProgressRequest(), pb.ListRebalanceProgressRequest(rebalance_id=task)):
        answer = harness.call(cluster.list_rebalance_progress, request)
        assert (answer.rebalance_id, answer.rebalance_status, len(answer.table_progress)) == (task, 3, 0)
    harness.fails(62, cluster.list_rebalance_progress, pb.ListRebalanceProgressRequest(rebalance_id="other"))
    harness.call(cluster.cancel_rebalance, pb.CancelRebalanceRequest(rebalance_id=task))
    harness.fails(62, cluster.cancel_rebalance, pb.CancelRebalanceRequest(rebalance_id="other"))


def test_health(harness: Harness) -> None:
    harness.call(admin.create_table, create(log_table(bucket_count=3)))
    harness.call(admin.create_table, create(partitioned_table(bucket_count=2), "p"))
    for value in ("a", "b"):
        harness.call(admin.create_partition, create_partition("p", dt=value))

    def health() -> tuple[int, ...]:
        answer = harness.call(cluster.get_cluster_health, pb.GetClusterHealthRequest())
        return (
            answer.num_replicas,
            answer.in_sync_replicas,
            answer.num_leader_replicas,
            answer.active_leader_replicas,
            answer.status,
        )

    assert health() == (7, 7, 7, 7, 0)
    harness.server.damaged_bucket_count = 1
    assert health() == (7, 6, 7, 6, 2)


# ---------------------------------------------------------------------- producer offsets


def register(producer_id: str = "p", ttl_ms: int | None = None, offset: int = 5) -> pb.RegisterProducerOffsetsRequest:
    request = pb.RegisterProducerOffsetsRequest(producer_id=producer_id)
    table = request.table_offsets.add(table_id=7)
    table.bucket_offsets.add(bucket_id=0, log_end_offset=offset)
    table.bucket_offsets.add(bucket_id=1, partition_id=3, log_end_offset=offset + 1)
    if ttl_ms is not None:
        request.ttl_ms = ttl_ms
    return request


def fetch(harness: Harness, producer_id: str = "p") -> pb.GetProducerOffsetsResponse:
    answer = harness.call(cluster.get_producer_offsets, pb.GetProducerOffsetsRequest(producer_id=producer_id))
    assert isinstance(answer, pb.GetProducerOffsetsResponse)
    return answer


def delete(producer_id: str = "p") -> pb.DeleteProducerOffsetsRequest:
    return pb.DeleteProducerOffsetsRequest(producer_id=producer_id)


def test_the_first_registration_wins(harness: Harness) -> None:
    request = register()
    assert harness.call(cluster.register_producer_offsets, request).result == 0
    assert harness.call(cluster.register_producer_offsets, register(offset=99)).result == 1
    for _ in range(2):
        answer = fetch(harness)
        assert answer.producer_id == "p"
        assert answer.expiration_time == NOW_MS + 24 * 3_600_000
        assert list(answer.table_offsets) == list(request.table_offsets)
        harness.reopen()
    harness.call(cluster.delete_producer_offsets, delete())
    harness.call(cluster.delete_producer_offsets, delete())
    assert fetch(harness) == pb.GetProducerOffsetsResponse()
    assert harness.call(cluster.register_producer_offsets, register(offset=99)).result == 0
    harness.reopen()
    assert fetch(harness).table_offsets[0].bucket_offsets[0].log_end_offset == 99


def test_registrations_hold_a_limited_number_of_offsets(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss.server.catalog.producers.OFFSETS_PER_OWNER_MAX", 3)
    harness.call(cluster.register_producer_offsets, register())
    harness.fails(-1, cluster.register_producer_offsets, register("q"), "more than 3 offsets of buckets", "ANONYMOUS")
    harness.call(cluster.delete_producer_offsets, delete())
    assert harness.call(cluster.register_producer_offsets, register("q")).result == 0


def test_registrations_expire(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.call(cluster.register_producer_offsets, register(ttl_ms=1000))
    harness.clock.now_ms += 999
    assert fetch(harness).producer_id == "p"
    harness.clock.now_ms += 1
    assert fetch(harness) == pb.GetProducerOffsetsResponse()
    assert harness.call(cluster.register_producer_offsets, register(ttl_ms=1000)).result == 0
    harness.clock.now_ms += 1000
    harness.run(harness.catalog.expire_producers())
    assert not any(harness.catalog.storage.producers.iterdir())


@pytest.mark.parametrize("producer_id", ["", ".", "a b", "x" * 201, "ä"])
def test_bad_producer_ids(harness: Harness, producer_id: str) -> None:
    harness.fails(63, cluster.register_producer_offsets, register(producer_id), "Producer id")
    harness.fails(63, cluster.get_producer_offsets, pb.GetProducerOffsetsRequest(producer_id=producer_id))
    harness.fails(63, cluster.delete_producer_offsets, delete(producer_id))


# ---------------------------------------------------------------------- manifests, tokens


def test_the_token_is_empty(tmp_path: Path) -> None:
    for name, remote, scheme in (("a", None, "file"), ("b", "s3://bucket/x", "s3"), ("c", "file:///x", "file")):
        harness = Harness(tmp_path / name, {} if remote is None else {"remote.data.dir": remote})
        answer = harness.call(cluster.get_filesystem_security_token, pb.GetFileSystemSecurityTokenRequest())
        assert (answer.schema, answer.token, answer.HasField("token")) == (scheme, b"", True)
        assert not answer.HasField("expiration_time")


def test_manifests_of_known_tables_only(harness: Harness) -> None:
    harness.call(admin.create_table, create(log_table()))
    answer = harness.call(cluster.list_remote_log_manifests, pb.ListRemoteLogManifestsRequest(table_id=0))
    assert list(answer.manifests) == []
    harness.fails(21, cluster.list_remote_log_manifests, pb.ListRemoteLogManifestsRequest(table_id=9))
