# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fluss.errors import ConfigError
from fluss.server.auth import check_users, users_of, warn_of_open_listeners
from fluss.server.command import build_config
from fluss.server.config import (
    SERVER_OPTIONS,
    Endpoint,
    ServerConfig,
    is_dynamic,
    is_secret,
    load_config_file,
    parse_endpoints,
)
from fluss.server.foreign_options import PASSED_OVER, REFUSED
from fluss.server.server import Server


def test_defaults() -> None:
    config = ServerConfig()
    assert config.bind_endpoints == (Endpoint("FLUSS", "127.0.0.1", 9123),)
    assert config.integer("log.segment.file-size") == 1 << 30
    assert config.integer("netty.connection.max-idle-time") == 600_000
    assert config.integer("netty.server.max-request-size") == 100 << 20
    assert config.text("remote.data.dir") is None
    assert config.text("log.commit.sync") == "group"
    assert config.boolean("datalake.enabled") is None


def test_every_option_has_a_meaning_and_a_default_that_parses() -> None:
    for option in SERVER_OPTIONS.values():
        assert option.doc
        if option.default is not None:
            assert ServerConfig({option.key: option.type.show(option.default)}).get(option.key) == option.default


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("no.such.option", "1", "unknown server option 'no.such.option'; docs/configuration.md lists"),
        ("default.bucket.numbr", "1", "did you mean 'default.bucket.number'?"),
        ("data.dirs", "/a,/b", "'data.dirs' cannot be used: .*use data.dir"),
        ("tablet-server.host", "h", "use bind.listeners"),
        ("kafka.enabled", "true", "the Kafka protocol is not served"),
        ("metrics.reporters", "jmx", "only prometheus is known"),
        ("table.log.ttl", "7d", "'table.log.ttl' cannot be used: it is a table property"),
        ("default.bucket.number", "0", "a whole number from 1 "),
        ("default.bucket.number", "many", "'default.bucket.number': got 'many', but it takes a whole number"),
        ("log.segment.file-size", "1 potato", "'log.segment.file-size'"),
        ("kv.snapshot.interval", "10", "'kv.snapshot.interval'"),
        ("authorizer.enabled", "maybe", "true or false"),
        ("datalake.format", "other", "one of 'paimon', "),
        ("bind.listeners", "FLUSS//x:1", "NAME://host:port"),
        ("bind.listeners", "FLUSS://x:1,FLUSS://x:2", "twice"),
        ("bind.listeners", "CLIENT://x:1", "lacks the internal listener"),
        ("bind.listeners", "FLUSS://x:70000", "NAME://host:port"),
        ("advertised.listeners", "OTHER://x:1", "'OTHER', which is not bound"),
        ("security.protocol.map", "FLUSS:tls", "PLAINTEXT, SASL, SSL"),
        ("security.protocol.map", "FLUS:sasl", "'FLUS', which is not bound"),
        ("security.ssl.enabled.listeners", "FLUS", "'FLUS', which is not bound"),
        ("security.sasl.listener.name.flus.plain.jaas.config", 'm user_a="b";', "'flus', which is not bound"),
        ("security.sasl.enabled.mechanisms", "PLAIN,SCRAM", "'SCRAM'"),
    ],
)
def test_bad_options_are_refused_by_name(name: str, value: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ServerConfig({name: value})


def test_secrets_are_never_shown() -> None:
    config = ServerConfig(
        {
            "security.sasl.plain.jaas.config": 'm required user_a="hush";',
            "datalake.paimon.s3.secret": "hush",
            "security.sasl.plain.credentials": "a:hush",
        }
    )
    assert "hush" not in repr(config)
    with pytest.raises(ConfigError) as caught:
        ServerConfig({"security.sasl.plain.credentials": "hush"})
    assert "hush" not in str(caught.value)
    assert is_secret("datalake.iceberg.s3.access-key-id")


@pytest.mark.parametrize("users", [{"a": "hush,b:x"}, {"a": "hush,"}, {"a": " hush"}, {"a:b": "hush"}, {"a": None}])
def test_users_that_text_cannot_hold_are_refused(users: dict[str, object]) -> None:
    """A password with a comma would be cut there, and its rest be another user."""
    with pytest.raises(ConfigError, match=r"'security\.sasl\.plain\.credentials'") as caught:
        ServerConfig({"security.sasl.plain.credentials": users})
    assert "hush" not in str(caught.value)


def test_options_can_be_set_and_removed() -> None:
    config = ServerConfig({"datalake.format": "Paimon"})
    assert config.text("datalake.format") == "paimon"
    changed = config.with_options({"datalake.format": None, "datalake.iceberg.uri": "x"})
    assert changed.text("datalake.format") is None
    assert changed.with_prefix("datalake.") == {"datalake.iceberg.uri": "x"}


def test_yaml_file_flat_and_nested(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text(
        "default.bucket.number: 3\n"
        "log:\n  segment:\n    file-size: 64mb\n"
        "security.protocol.map:\n  FLUSS: sasl\n"
        "security.sasl.enabled.mechanisms: [PLAIN]\n"
        "authorizer.enabled: true\n"
    )
    config = ServerConfig(load_config_file(path))
    assert config.integer("default.bucket.number") == 3
    assert config.integer("log.segment.file-size") == 64 << 20
    assert config.protocol_of("fluss") == "SASL"
    assert config.boolean("authorizer.enabled") is True
    path.write_text("- a\n- b\n")
    with pytest.raises(ConfigError, match="name: value"):
        load_config_file(path)
    path.write_text("a: [\n")
    with pytest.raises(ConfigError, match="not YAML"):
        load_config_file(path)
    with pytest.raises(ConfigError, match="cannot read"):
        load_config_file(tmp_path / "none.yaml")


def test_endpoints() -> None:
    assert parse_endpoints("bind.listeners", "FLUSS://[::1]:0, client://:9124") == (
        Endpoint("FLUSS", "::1", 0),
        Endpoint("CLIENT", "", 9124),
    )


def test_users_of_a_listener_win_over_common_ones() -> None:
    config = ServerConfig(
        {
            "bind.listeners": "FLUSS://h:1,CLIENT://h:2",
            "security.protocol.map": "FLUSS:sasl,CLIENT:SASL",
            "security.sasl.plain.jaas.config": 'm required user_a="1" user_b="2";',
            "security.sasl.listener.name.client.plain.jaas.config": 'm required user_c="3";',
            "security.sasl.plain.credentials": "d:4",
        }
    )
    assert users_of(config, "CLIENT") == {"c": "3"}
    assert users_of(config, "FLUSS") == {"a": "1", "b": "2", "d": "4"}


def test_sasl_without_users_is_refused() -> None:
    with pytest.raises(ConfigError, match="no user is configured"):
        check_users(ServerConfig({"security.protocol.map": "FLUSS:sasl"}))
    with pytest.raises(ConfigError, match="names no user"):
        check_users(
            ServerConfig({"security.protocol.map": "FLUSS:sasl", "security.sasl.plain.jaas.config": "m required;"})
        )


STOCK = """
zookeeper.address: localhost:2181
default.bucket.number: 1
default.replication.factor: 1
data.dir: {folder}/data
remote.data.dir: {folder}/remote
bind.listeners: FLUSS://localhost:0
tablet-server.id: 0
tablet-server.controlled-shutdown.max-retries: 3
kv.rocksdb.block.cache-size: 8mb
kafka.enabled: false
"""
"""What the configuration file of an Apache Fluss server holds, with some of the options that are often added."""


async def test_the_file_of_a_cluster_starts_the_server_and_one_line_says_what_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "server.yaml"
    path.write_text(STOCK.format(folder=tmp_path))
    config = ServerConfig(load_config_file(path))
    with caplog.at_level(logging.INFO, "fluss.server"):
        config.log_passed_over()
    (record,) = caplog.records
    for name in ("zookeeper.address", "tablet-server.controlled-shutdown.max-retries", "kafka.enabled"):
        assert name in config.passed_over
        assert name in record.getMessage()
    assert "this server needs no ZooKeeper" in record.getMessage()
    assert not set(config.passed_over) & set(config.explicit)

    server = Server(config)
    await server.start()
    await server.stop()
    caplog.clear()
    ServerConfig().log_passed_over()
    assert not caplog.records


def test_no_option_is_both_known_and_foreign() -> None:
    known = {key for option in SERVER_OPTIONS.values() for key in (option.key, *option.aliases)}
    assert not known & (PASSED_OVER.keys() | REFUSED.keys())
    assert not PASSED_OVER.keys() & REFUSED.keys()
    assert all(PASSED_OVER.values())


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_options_that_would_promise_too_much_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"server option '{name}' cannot be used: "):
        ServerConfig({name: "true"})


def test_the_reporter_of_a_cluster_serves_the_metrics_page() -> None:
    assert ServerConfig().get("metrics.prometheus.port") is None
    assert ServerConfig({"metrics.reporters": "prometheus"}).integer("metrics.prometheus.port") == 9249
    config = ServerConfig({"metrics.reporters": "prometheus", "metrics.reporter.prometheus.port": "9250"})
    assert config.integer("metrics.prometheus.port") == 9250
    assert config.with_options({"default.bucket.number": 2}).integer("metrics.prometheus.port") == 9250


def test_dynamic_options() -> None:
    assert {option.key for option in SERVER_OPTIONS.values() if option.dynamic} == {
        "clock.jump-tolerance", "datalake.enabled", "datalake.format", "kv.snapshot.interval",
        "log.replica.min-in-sync-replicas-number", "log.retention.default",
        "log.retention.roll-active-segment.enabled", "quota.consumer_byte_rate", "quota.max_connections",
        "quota.producer_byte_rate", "security.sasl.plain.credentials", "server.data-disk.write-limit-ratio",
        "server.data-disk.write-recover-ratio",
    }  # fmt: skip
    assert is_dynamic("datalake.paimon.warehouse")
    assert not is_dynamic("data.dir")
    limiter = "kv.rocksdb.shared-rate-limiter.bytes-per-sec"  # has nothing to act on, but a cluster takes it
    assert is_dynamic(limiter)
    assert limiter in ServerConfig().with_options({limiter: "1 mb"}).passed_over
    assert not is_dynamic("no.such.option")


@pytest.mark.parametrize("given", [None, "shop"])
def test_the_data_folder_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    """Commands on the same machine find it from any folder."""
    monkeypatch.chdir(tmp_path)
    config = build_config(given, None, None, None, ())
    assert config.get("data.dir") == str(tmp_path / (given or "fluss-data"))


def test_the_command_takes_options_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLDER", str(tmp_path / "data"))
    monkeypatch.setenv("LISTENERS", "FLUSS://127.0.0.1:7")
    settings = ("config.providers=env", "data.dir=${env:FOLDER}", "bind.listeners=${env:LISTENERS}")
    config = build_config(None, None, None, None, settings)
    assert config.get("data.dir") == str(tmp_path / "data")
    assert config.bind_endpoints == (Endpoint("FLUSS", "127.0.0.1", 7),)
    assert "127.0.0.1" not in repr(config)


@pytest.mark.parametrize(("host", "warned"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_a_server_that_everyone_can_reach_warns(host: str, warned: bool, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_open_listeners(ServerConfig({"bind.listeners": f"FLUSS://{host}:0"}))
    assert ("asks for no login" in caplog.text) is warned
