# SPDX-License-Identifier: Apache-2.0
"""Options of the object store that `remote.data.dir` may lie in, under the names of Apache Fluss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluss.options import Boolean, OptionType, Text

_S3_PREFIXES = ("s3.", "s3a.", "fs.s3a.")


def _s3(name: str, kind: OptionType[Any], doc: str, *others: str, secret: bool = False) -> tuple[Any, ...]:
    spellings = [f"{prefix}{one}" for one in (name, *others) for prefix in _S3_PREFIXES]
    return spellings[0], kind, doc, tuple(spellings[1:]), secret


def _fs(name: str, doc: str, *, secret: bool = False) -> tuple[Any, ...]:
    return f"fs.{name}", Text(), doc, (name,), secret


STORE_ROWS: tuple[tuple[Any, ...], ...] = (
    _s3("endpoint", Text(), "host and port of the S3 service, such as http://127.0.0.1:9000; unset means AWS"),
    _s3("region", Text(), "region of the bucket", "endpoint.region"),
    _s3("access-key", Text(), "access key of the server; unset means the environment, a profile or the instance's role",
        "access.key", secret=True),
    _s3("secret-key", Text(), "secret key that belongs to it", "secret.key", secret=True),
    _s3("session-token", Text(), "token of temporary keys", "session.token", secret=True),
    _s3("path-style-access", Boolean(), "address buckets by path; the default with an endpoint", "path.style.access"),
    _s3("connection.ssl.enabled", Boolean(), "use https with an endpoint that names no scheme; the default"),
    _s3("assumed.role.arn", Text(), "role whose temporary, read-only credentials are given to clients that read remote "
        "segments; unset means that clients use credentials of their own"),
    _s3("assumed.role.sts.endpoint", Text(), "service that issues those credentials; unset means AWS in s3.region"),
    _fs("oss.endpoint", "host of Alibaba Cloud OSS"),
    _fs("oss.region", "region of the bucket"),
    _fs("oss.accessKeyId", "access key of the server", secret=True),
    _fs("oss.accessKeySecret", "secret key that belongs to it", secret=True),
    _fs("oss.securityToken", "token of temporary keys", secret=True),
    _fs("gs.project.id", "project of Google Cloud Storage; the key file is named by GOOGLE_APPLICATION_CREDENTIALS"),
    _fs("gs.storage.root.url", "host and port of another service with the interface of Google Cloud Storage"),
)  # fmt: skip
"""Key, type, meaning, other spellings and whether it is a secret, of each option."""

_GS_KEYS = "name the key file in the environment variable GOOGLE_APPLICATION_CREDENTIALS of the server"
_OSS_TOKENS = "temporary credentials of OSS are not issued here; clients read with keys of their own (client.fs.oss.*)"

STORE_REFUSED: dict[str, str] = {
    **dict.fromkeys(
        (f"{prefix}aws.credentials.provider" for prefix in _S3_PREFIXES),
        "without s3.access-key the environment, a profile and the instance's role are tried in turn",
    ),
    **dict.fromkeys(("fs.oss.roleArn", "oss.roleArn", "fs.oss.sts.endpoint", "oss.sts.endpoint"), _OSS_TOKENS),
    **dict.fromkeys(
        (
            "fs.gs.auth.service.account.json.keyfile",
            "fs.gs.auth.service.account.keyfile",
            "fs.gs.auth.type",
            "gs.auth.service.account.json.keyfile",
            "gs.auth.service.account.keyfile",
            "gs.auth.type",
        ),
        _GS_KEYS,
    ),
}
"""Options of the stores that cannot be honoured, and what to do instead."""


def store_options(explicit: Mapping[str, str]) -> dict[str, str]:
    """Pick the options of object stores out of those of the server, without ``fs.`` in front."""
    return {
        key.removeprefix("fs."): explicit[key].strip().lower() if isinstance(kind, Boolean) else explicit[key]
        for key, kind, *_ in STORE_ROWS
        if key in explicit
    }
