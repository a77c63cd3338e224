# SPDX-License-Identifier: Apache-2.0
"""Client options."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from fluss.config import CONFIG_OPTIONS, Config, ConfigOption
from fluss.errors import ConfigError, FlussError
from fluss.options import split_addresses


@pytest.mark.parametrize("key", [key for key in CONFIG_OPTIONS if key != "security.sasl.jaas.config"])
def test_option_can_be_read_and_set_by_key_and_by_property(key: str) -> None:
    option = CONFIG_OPTIONS[key]
    name = option.property_name
    assert option.doc == option.__doc__
    assert getattr(Config(), name) == option.default
    value: Any = {bool: False, int: 5, str: "value:1"}[type(option.default)]
    if option.choices:
        value = option.choices[-1]
    for given in (value, str(value)):
        config = Config({key: given})
        assert getattr(config, name) == value
        assert type(getattr(config, name)) is type(option.default)
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
        ("writer.retries", None, "a whole number"),
        ("writer.batch-size", "0", "from 1"),
        ("writer.acks", True, "'all', '-1', '0', '1'"),
        ("writer.enable-idempotence", "yes", "true or false"),
        ("security.sasl.username", 5, "a string"),
        ("security.ssl.truststore.type", "JKS", "'PEM'. Convert a Java key store"),
        ("security.ssl.keystore.type", "PKCS12", "openssl pkcs12"),
        ("bootstrap.servers", "localhost", "host:port"),
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
