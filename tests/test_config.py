# SPDX-License-Identifier: Apache-2.0
"""Client options."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from fluss.config import CONFIG_OPTIONS, WAIT_FOREVER_MS, Config, ConfigOption, option_of
from fluss.errors import ConfigError, FlussError
from fluss.options import split_addresses

DEFAULTS = {
    "bootstrap.servers": ("bootstrap_servers", "127.0.0.1:9123"),
    "writer.request-max-size": ("writer_request_max_size", 10485760),
    "writer.acks": ("writer_acks", "all"),
    "writer.retries": ("writer_retries", 2147483647),
    "writer.batch-size": ("writer_batch_size", 2097152),
    "writer.batch-timeout-ms": ("writer_batch_timeout_ms", 100),
    "writer.dynamic-batch-size.enabled": ("writer_dynamic_batch_size_enabled", True),
    "writer.dynamic-batch-size-min": ("writer_dynamic_batch_size_min", 262144),
    "writer.bucket.no-key-assigner": ("writer_bucket_no_key_assigner", "sticky"),
    "writer.enable-idempotence": ("writer_enable_idempotence", True),
    "writer.max-inflight-requests-per-bucket": ("writer_max_inflight_requests_per_bucket", 5),
    "writer.buffer.memory-size": ("writer_buffer_memory_size", 67108864),
    "writer.buffer.wait-timeout-ms": ("writer_buffer_wait_timeout_ms", WAIT_FOREVER_MS),
    "writer.kv-backpressure.max-throttle-ms": ("writer_kv_backpressure_max_throttle_ms", 3000),
    "writer.delivery-timeout-ms": ("writer_delivery_timeout_ms", 120000),
    "writer.dynamic-create-partition.enabled": ("writer_dynamic_create_partition_enabled", True),
    "lookup.queue-size": ("lookup_queue_size", 1_000_000),
    "lookup.max-batch-size": ("lookup_max_batch_size", 4096),
    "lookup.max-inflight-requests": ("lookup_max_inflight_requests", 2),
    "lookup.max-retries": ("lookup_max_retries", 2147483647),
    "lookup.batch-timeout": ("lookup_batch_timeout_ms", 0),
    "scanner.log.read-preference": ("scanner_log_read_preference", "local_first"),
    "scanner.log.check-crc": ("scanner_log_check_crc", True),
    "scanner.kv.fetch.max-bytes": ("scanner_kv_fetch_max_bytes", 4194304),
    "fs.s3.endpoint": ("fs_s3_endpoint", ""),
    "fs.s3.region": ("fs_s3_region", ""),
    "fs.s3.access-key": ("fs_s3_access_key", ""),
    "fs.s3.secret-key": ("fs_s3_secret_key", ""),
    "fs.s3.session-token": ("fs_s3_session_token", ""),
    "fs.s3.path-style-access": ("fs_s3_path_style_access", True),
    "fs.oss.endpoint": ("fs_oss_endpoint", ""),
    "fs.oss.region": ("fs_oss_region", ""),
    "fs.oss.accessKeyId": ("fs_oss_access_key_id", ""),
    "fs.oss.accessKeySecret": ("fs_oss_access_key_secret", ""),
    "fs.oss.securityToken": ("fs_oss_security_token", ""),
    "fs.gs.project.id": ("fs_gs_project_id", ""),
    "client.id": ("client_id", ""),
    "client.read-only": ("read_only", False),
    "metrics.enabled": ("metrics_enabled", True),
    "scanner.remote-log.prefetch-num": ("scanner_remote_log_prefetch_num", 4),
    "remote-file.download-thread-num": ("remote_file_download_thread_num", 3),
    "scanner.remote-log.read-concurrency": ("scanner_remote_log_read_concurrency", 4),
    "scanner.log.max-poll-records": ("scanner_log_max_poll_records", 500),
    "scanner.log.fetch.max-bytes": ("scanner_log_fetch_max_bytes", 16777216),
    "scanner.log.fetch.min-bytes": ("scanner_log_fetch_min_bytes", 1),
    "scanner.log.fetch.wait-max-time-ms": ("scanner_log_fetch_wait_max_time_ms", 500),
    "scanner.log.fetch.max-bytes-for-bucket": ("scanner_log_fetch_max_bytes_for_bucket", 1048576),
    "connect-timeout": ("connect_timeout_ms", 120000),
    "request-timeout": ("request_timeout_ms", 30000),
    "client.bucketing": ("client_bucketing", "java"),
    "security.protocol": ("security_protocol", "PLAINTEXT"),
    "security.sasl.mechanism": ("security_sasl_mechanism", "PLAIN"),
    "security.sasl.username": ("security_sasl_username", ""),
    "security.sasl.password": ("security_sasl_password", ""),
    "security.sasl.jaas.config": ("security_sasl_jaas_config", ""),
    "security.ssl.enabled": ("security_ssl_enabled", False),
    "security.ssl.truststore.location": ("security_ssl_truststore_location", ""),
    "security.ssl.truststore.type": ("security_ssl_truststore_type", "PEM"),
    "security.ssl.truststore.password": ("security_ssl_truststore_password", ""),
    "security.ssl.keystore.location": ("security_ssl_keystore_location", ""),
    "security.ssl.keystore.type": ("security_ssl_keystore_type", "PEM"),
    "security.ssl.keystore.password": ("security_ssl_keystore_password", ""),
    "security.ssl.key.location": ("security_ssl_key_location", ""),
    "security.ssl.key.password": ("security_ssl_key_password", ""),
    "security.ssl.enabled.protocols": ("security_ssl_enabled_protocols", "TLSv1.2,TLSv1.3"),
    "security.ssl.cipher.suites": ("security_ssl_cipher_suites", ""),
    "security.ssl.endpoint.identification.algorithm": ("security_ssl_endpoint_identification_algorithm", "https"),
    "security.ssl.fingerprint": ("security_ssl_fingerprint", ""),
}


def test_table_of_options() -> None:
    assert {option.key: (option.property_name, option.default) for option in CONFIG_OPTIONS.values()} == DEFAULTS
    assert all(option.doc == option.__doc__ for option in CONFIG_OPTIONS.values())


@pytest.mark.parametrize("key", [key for key in DEFAULTS if key != "security.sasl.jaas.config"])
def test_option_can_be_read_and_set_by_key_and_by_property(key: str) -> None:
    name, default = DEFAULTS[key]
    assert getattr(Config(), name) == default
    option = option_of(key)
    value: Any = {bool: False, int: 5, str: "value:1"}[type(default)]
    if option.choices:
        value = option.choices[-1]
    for given in (value, str(value)):
        config = Config({key: given})
        assert getattr(config, name) == value
        assert type(getattr(config, name)) is type(default)
        assert config.get(key) == value
        other = Config()
        setattr(other, name, given)
        assert other == config
        assert other.to_dict() == {key: value}


@pytest.mark.parametrize(
    ("alias", "key"),
    [
        ("request.max.size", "writer.request-max-size"),
        ("writer.batch.size", "writer.batch-size"),
        ("connect-timeout-ms", "connect-timeout"),
        ("request-timeout-ms", "request-timeout"),
    ],
)
def test_keys_of_older_guides(alias: str, key: str) -> None:
    assert Config({alias: "4096"}).get(key) == 4096


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("writer.retries", "many", "a whole number from 0 to 2147483647"),
        ("writer.retries", -1, "a whole number from 0"),
        ("writer.retries", 2**31, "to 2147483647"),
        ("writer.retries", True, "a whole number"),
        ("writer.retries", 1.5, "a whole number"),
        ("writer.retries", None, "a whole number"),
        ("writer.batch-size", "0", "from 1"),
        ("writer.batch-size", "9" * 30, "from 1"),
        ("writer.acks", "7", "'all', '-1', '0', '1'"),
        ("writer.acks", True, "'all', '-1', '0', '1'"),
        ("writer.enable-idempotence", "yes", "true or false"),
        ("writer.enable-idempotence", 1, "true or false"),
        ("writer.bucket.no-key-assigner", "random", "'sticky', 'round_robin'"),
        ("client.bucketing", "rust", "'java', 'pyfluss'"),
        ("security.protocol", "kerberos", "'PLAINTEXT', 'sasl'"),
        ("security.sasl.username", 5, "a string"),
        ("security.ssl.truststore.type", "JKS", "'PEM'. Convert a Java key store"),
        ("security.ssl.keystore.type", "PKCS12", "openssl pkcs12"),
        ("bootstrap.servers", "localhost", "host:port"),
        ("bootstrap.servers", "localhost:0", "host:port"),
        ("bootstrap.servers", "localhost:99999", "host:port"),
        ("bootstrap.servers", "a:1,,b:2", "host:port"),
        ("bootstrap.servers", "", "host:port"),
        ("bootstrap.servers", 9123, "host:port"),
    ],
)
def test_bad_value_names_key_value_and_what_is_allowed(key: str, value: object, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config({key: value})
    assert key in caught.value.message
    assert repr(value)[:50] in caught.value.message
    assert allowed in caught.value.message
    assert caught.value.error_code == -2


def test_unknown_key_names_the_known_ones() -> None:
    with pytest.raises(FlussError, match=r"unknown option 'writer\.ack'.*writer\.acks"):
        Config({"writer.ack": "all"})
    with pytest.raises(ConfigError, match="unknown option"):
        Config().get("nothing")
    with pytest.raises(ConfigError, match="not list"):
        Config(["a"])  # type: ignore[arg-type]


def test_choices_are_read_in_any_case_and_kept_in_one() -> None:
    config = Config({"security.protocol": "SASL", "writer.bucket.no-key-assigner": "ROUND_ROBIN", "writer.acks": -1})
    assert config.security_protocol == "sasl"
    assert config.is_sasl
    assert config.writer_bucket_no_key_assigner == "round_robin"
    assert config.writer_acks == "-1"


@pytest.mark.parametrize(("acks", "number"), [("all", -1), ("-1", -1), ("0", 0), (1, 1)])
def test_required_acks(acks: object, number: int) -> None:
    assert Config({"writer.acks": acks}).required_acks == number


def test_addresses() -> None:
    config = Config({"bootstrap.servers": "a.b:1, [::1]:9123 ,c:65535"})
    assert config.bootstrap_addresses == [("a.b", 1), ("::1", 9123), ("c", 65535)]
    assert split_addresses("::1:9123") == []


def test_password_is_shown_nowhere() -> None:
    config = Config({"security.sasl.password": "hunter2", "security.sasl.username": "ann"})
    assert "hunter2" not in repr(config)
    assert "hunter2" not in str(config)
    assert "***" in repr(config)
    assert "ann" in repr(config)
    assert config.security_sasl_password == "hunter2"
    with pytest.raises(ConfigError) as caught:
        config.set("security.sasl.password", b"hunter3")
    assert "hunter3" not in str(caught.value)
    assert "***" not in repr(Config({"security.sasl.password": ""}))


def test_equality_copy_and_pickle() -> None:
    config = Config({"writer.batch-size": 1})
    assert config == Config({"writer.batch.size": "1"})
    assert Config() == Config({"writer.acks": "all"}), "a default that was spelled out is the same"
    assert config != Config()
    assert config != "config"
    for twin in (config.copy(), copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert twin == config
        twin.writer_batch_size = 2
        assert config.writer_batch_size == 1
    with pytest.raises(TypeError):
        hash(config)


def test_options_that_must_fit_each_other() -> None:
    Config().validate()
    Config({"security.protocol": "sasl", "security.sasl.username": "u", "security.sasl.password": "p"}).validate()
    with pytest.raises(ConfigError, match=r"security\.sasl\.username is empty"):
        Config({"security.protocol": "sasl"}).validate()
    with pytest.raises(ConfigError, match=r"security\.sasl\.password is empty"):
        Config({"security.protocol": "sasl", "security.sasl.username": "u"}).validate()
    with pytest.raises(ConfigError, match=r"writer\.acks is '1'"):
        Config({"writer.acks": 1}).validate()
    Config({"writer.acks": 1, "writer.enable-idempotence": False}).validate()
    with pytest.raises(ConfigError, match="at most 5"):
        Config({"writer.max-inflight-requests-per-bucket": 6}).validate()


def test_class_attribute_is_the_option() -> None:
    assert isinstance(Config.writer_retries, ConfigOption)
    assert Config.writer_retries.key == "writer.retries"


def test_misspelt_attribute_is_an_error() -> None:
    config = Config()
    with pytest.raises(AttributeError):
        config.writer_retires = 3  # type: ignore[attr-defined]


def test_keys_and_values_of_the_java_client_are_accepted() -> None:
    config = Config(
        {
            "client.writer.batch-size": "64 kb",
            "client.writer.batch-timeout": "20 ms",
            "client.writer.buffer.wait-timeout": "1 min",
            "client.scanner.log.fetch.wait-max-time": "2 s",
            "client.request-timeout": "30s",
            "client.connect-timeout": "1 min",
            "client.security.protocol": "SASL",
        }
    )
    assert config.writer_batch_size == 65536
    assert config.writer_batch_timeout_ms == 20
    assert config.writer_buffer_wait_timeout_ms == 60_000
    assert config.scanner_log_fetch_wait_max_time_ms == 2_000
    assert (config.request_timeout_ms, config.connect_timeout_ms) == (30_000, 60_000)
    assert config.is_sasl
    assert "writer.batch-size" in config.to_dict(), "options are kept under the key of the table"


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("writer.batchsize", "writer.batch-size"),
        ("client.writer.aks", "writer.acks"),
        ("bootstrap.server", "bootstrap.servers"),
        ("scanner.log.max-poll-record", "scanner.log.max-poll-records"),
    ],
)
def test_a_misspelt_key_is_refused_with_the_nearest_one(key: str, near: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config({key: "1"})
    assert caught.value.message == f"unknown option {key!r}; did you mean {near!r}?"


def test_options_without_anything_to_act_on_are_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"'client\.writer\.buffer\.page-size' cannot be used: memory .* Remove it"):
        Config({"client.writer.buffer.page-size": "1 mb"})


def test_a_login_module_line_sets_user_and_password() -> None:
    line = 'org.apache.fluss.security.auth.sasl.plain.PlainLoginModule required username="ann" password="hun\\"ter";'
    config = Config({"client.security.protocol": "sasl", "client.security.sasl.jaas.config": line})
    config.validate()
    assert (config.security_sasl_username, config.security_sasl_password) == ("ann", 'hun"ter')
    assert "hun" not in repr(config)
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(ConfigError, match="username=") as caught:
        Config({"security.sasl.jaas.config": 'm required user_ann="hunter";'})
    assert "hunter" not in str(caught.value)
