# SPDX-License-Identifier: Apache-2.0
"""Which settings the server shows to others, and which stay inside.

Settings of a lake catalog are free-form: the server does not know what a key means, and any of them may be a credential
(`header.Authorization`, `jdbc.passwd`, `adls.sas`). So only keys on a list are shown: those with which readers find the
lake. Everything else reaches a reader by its own configuration (`lake_options=…`, ``fluss tier -D …``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from fluss.errors import ConfigError

REDACTED = "******"

_STORAGE = (
    "warehouse s3.endpoint s3.region s3.path-style-access s3.path.style.access fs.s3.endpoint fs.s3.region "
    "fs.oss.endpoint fs.oss.region gcs.project-id gcs.service.host adls.account-name adls.account-host hdfs.host "
    "hdfs.port "
)
_SHOWN = {
    "paimon": "metastore uri table.type hive-conf-dir hadoop-conf-dir location-in-properties prefix token.provider "
    "dlf.region cache-enabled",
    "iceberg": "type name uri catalog-impl io-impl py-io-impl prefix client.region glue.region glue.endpoint "
    "rest.sigv4-enabled rest.signing-region rest.signing-name oauth2-server-uri s3.force-virtual-addressing "
    "jdbc.schema-version init_catalog_tables cache-enabled",
    "lance": "endpoint region allow_http virtual_hosted_style_request",
    "delta": "endpoint_url region allow_http virtual_hosted_style_request",
}
SHOWN = {lake_format: frozenset((_STORAGE + keys).split()) for lake_format, keys in _SHOWN.items()}
"""The keys that are shown, by format of the lake."""
_LAKE_SETTING = re.compile(r"datalake\.(paimon|iceberg|lance|delta)\.(.+)")
_SCRUBBED_CHARS_MIN = 4
"""Shorter values, such as ``on``, are part of other words, and no secrets."""
_CONTAINER_SCHEMES = frozenset({"abfs", "abfss", "wasb", "wasbs"})
"""In their URLs the part before the @ is the name of a container."""


def is_shown(lake_format: str, key: str, value: str = "") -> bool:
    """Return whether readers of lake tables may see a setting of the catalog: its key is known, its value harmless."""
    return key in SHOWN.get(lake_format, frozenset()) and not has_credentials(value)


def is_hidden_lake_setting(name: str, value: str = "") -> bool:
    """Return whether a server option is a setting of a lake catalog that must not be shown."""
    match = _LAKE_SETTING.fullmatch(name)
    return match is not None and not is_shown(match.group(1), match.group(2), value)


def has_credentials(text: str) -> bool:
    """Return whether a URL carries a user, or parameters that may be anything: such a value is not shown.

    `jdbc:postgresql://host/db?password=…` and `postgresql://user:password@host/db` do, `s3://bucket/path` does not.
    """
    if ":" not in text:
        return False
    url = text.removeprefix("jdbc:")
    try:
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")[0]
    except ValueError:
        return True
    if user and (":" in user or parts.scheme.lower() not in _CONTAINER_SCHEMES):
        return True
    return bool(parts.query) or ";" in url


def check_remote_dir(remote_dir: str | None, option: str = "remote.data.dir") -> None:
    """Refuse a remote data directory or backup with credentials in its URL: it is reported to clients."""
    if remote_dir is None:
        return
    if urlsplit(remote_dir).netloc.rpartition("@")[0]:
        raise ConfigError(
            f"server option '{option}' has credentials in its URL, and clients get that URL. Give them to "
            "the server in its environment instead, or in the options s3.access-key and s3.secret-key."
        )
    if "://" in remote_dir and "?" in remote_dir:
        raise ConfigError(
            f"server option '{option}' has parameters in its URL. Set the options s3.endpoint and s3.region instead."
        )


def scrub(text: str, settings: Mapping[str, str], lake_format: str) -> str:
    """Take the values of hidden settings out of a text that a library wrote."""
    for key, value in settings.items():
        if is_shown(lake_format, key, value):
            continue
        # A library may name a password without the URL around it.
        for secret in (value, *re.findall(r"://[^/@]*?:([^/@]+)@", value)):
            if len(secret) >= _SCRUBBED_CHARS_MIN:
                text = text.replace(secret, REDACTED)
    return text
