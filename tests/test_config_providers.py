# SPDX-License-Identifier: Apache-2.0
"""Values of options that come from the environment and from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluss.config import Config
from fluss.config_providers import resolve
from fluss.errors import ConfigError
from fluss.server.catalog.cluster_configs import ClusterConfigs
from fluss.server.catalog.documents import DocumentStore
from fluss.server.catalog.storage import CatalogStorage
from fluss.server.config import ServerConfig

PASSWORD = "security.sasl.password"


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "token").write_text("from a folder\n")  # as `echo` writes it
    (folder / "of.properties").write_text("# key=no\nother=1\nkey = from a file \nlast: x:y=z\n")
    (tmp_path / "outside").write_text("no")
    (folder / "link").symlink_to(tmp_path / "outside")
    monkeypatch.setenv("FLUSS_TEST_SECRET", "from the environment")
    return folder


def providers(folder: Path) -> dict[str, str]:
    return {
        "config.providers": "env, file,directory",
        "config.providers.file.param.allowed.paths": f"/nowhere, {folder}",
        "config.providers.directory.param.allowed.paths": str(folder),
        "config.providers.env.param.allowlist.pattern": "FLUSS_.*",
    }


@pytest.mark.parametrize(
    ("marker", "value"),
    [
        ("${env:FLUSS_TEST_SECRET}", "from the environment"),
        ("${file:{}/of.properties:key}", "from a file "),
        ("${file:{}/of.properties:last}", "x:y=z"),
        ("${directory:{}:token}", "from a folder"),
        ("$${env:FLUSS_TEST_SECRET}", "${env:FLUSS_TEST_SECRET}"),
        ("a ${vault:FLUSS_TEST_SECRET}", "a ${vault:FLUSS_TEST_SECRET}"),
    ],
)
def test_markers_stand_for_values(secrets: Path, marker: str, value: str) -> None:
    marker = marker.replace("{}", str(secrets))
    found, resolved = resolve({**providers(secrets), "x": marker, "y": 1})
    assert found == {"x": value, "y": 1}
    assert resolved == (set() if "${" in value else {"x"})
    inside: dict[str, object] = {"x": {"user": marker, "n": [marker, 1]}}
    assert resolve({**providers(secrets), **inside}) == ({"x": {"user": value, "n": [value, 1]}}, resolved)
    assert resolve({"x": marker}) == ({"x": marker}, frozenset())


@pytest.mark.parametrize(
    ("marker", "reason"),
    [
        ("${vault:x}", "'vault' .* is not listed in config.providers"),
        ("${env}", "not of the form"),
        ("${env:HOME}", "HOME does not match allowlist.pattern"),
        ("${env:FLUSS_NOT_SET}", "FLUSS_NOT_SET is not set"),
        ("${env:path:FLUSS_TEST_SECRET}", "env takes no path"),
        ("${file:key}", "file needs a path"),
        ("${file:{}/of.properties:none}", "has no property 'none'"),
        ("${directory:{}:none}", "cannot be read: No such file"),
        ("${directory:{}:../outside}", "lies outside of allowed.paths"),
        ("${directory:{}:link}", "lies outside of allowed.paths"),
        ("admin:${env:FLUSS_TEST_SECRET}", "must be the whole value"),
    ],
)
def test_what_cannot_be_resolved(secrets: Path, marker: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"'x'.*{reason}"):
        resolve({**providers(secrets), "x": marker.replace("{}", str(secrets))})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"config.providers": "vault"}, "the providers are env, file and directory"),
        ({"config.providers": "file"}, "name the folders that may be read"),
        ({"config.providers": "env", "config.providers.env.param.pattern": "x"}, "no parameter 'pattern'"),
        ({"config.providers": "env", "config.providers.env.param.allowlist.pattern": "("}, "allowlist.pattern"),
    ],
)
def test_providers_that_cannot_be_used(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        resolve(options)


def test_a_client_takes_its_password_from_elsewhere(secrets: Path) -> None:
    config = Config({**providers(secrets), f"client.{PASSWORD}": "${env:FLUSS_TEST_SECRET}"})
    assert config.get(PASSWORD) == "from the environment"
    named = Config({**providers(secrets), "client.id": "${env:FLUSS_TEST_SECRET}"})
    for one in (config, named, named.copy()):
        assert "from the environment" not in repr(one)


def test_a_server_never_shows_what_came_from_elsewhere(secrets: Path, tmp_path: Path) -> None:
    """Also under names that do not look like secrets; and clients cannot make it read files."""
    options = {**providers(secrets), "datalake.format": "paimon", "datalake.paimon.owner": "${env:FLUSS_TEST_SECRET}"}
    config = ServerConfig(options)
    assert config.explicit["datalake.paimon.owner"] == "from the environment"
    storage = CatalogStorage(DocumentStore(tmp_path / "catalog"))
    storage.prepare()
    configs = ClusterConfigs(config, storage)
    shown = [repr(config), repr(config.with_options({"max.bucket.num": 7})), str(configs.describe())]
    shown.append(str(configs.shown_lake_properties("paimon")))
    assert not any("from the environment" in text for text in shown)
    changed = config.with_options({"datalake.paimon.other": "${env:FLUSS_TEST_SECRET}"})
    assert changed.explicit["datalake.paimon.other"] == "${env:FLUSS_TEST_SECRET}"
