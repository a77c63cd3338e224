# SPDX-License-Identifier: Apache-2.0
"""Open the file system of a URI: a local folder, or an object store with the options and credentials for it.

Options have the names of Apache Fluss without `fs.` in front: ``s3.endpoint``, ``oss.accessKeyId``, ``gs.project.id``.
Server and client give them under keys of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fluss.errors import ConfigError, StorageError

if TYPE_CHECKING:
    import pyarrow.fs as pafs

S3_SCHEMES = frozenset({"s3", "s3a"})
SECRET_OPTIONS = frozenset(
    {
        "s3.access-key",
        "s3.secret-key",
        "s3.session-token",
        "oss.accessKeyId",
        "oss.accessKeySecret",
        "oss.securityToken",
    }
)
_CONNECT_S_MAX = 10.0
_REQUEST_S_MAX = 60.0


def scheme_of(uri: str) -> str:
    """Name the scheme of a URI; a plain path has the scheme ``file``."""
    if "://" in uri:
        return uri.partition("://")[0].lower()
    return "file"


def open_filesystem(uri: str, options: Mapping[str, str] | None = None) -> tuple[pafs.FileSystem, str]:
    """Open the file system of a URI and return it with the path inside it.

    Credentials that are not among the options are looked up by the library of the store: in the environment, in a
    profile, at the instance.

    Example:
        filesystem, root = open_filesystem("s3://bucket/fluss", {"s3.endpoint": "http://127.0.0.1:9000"})
    """
    import pyarrow.fs as pafs  # takes a while, and local servers without a remote log need it late

    given = dict(options or {})
    scheme = scheme_of(uri)
    if scheme in S3_SCHEMES:
        return _s3(given), _inner(uri)
    if scheme == "oss":
        return _oss(given), _inner(uri)
    if scheme in ("gs", "gcs"):
        return _gs(given), _inner(uri)
    if "://" not in uri and not uri.startswith("file:"):
        return pafs.LocalFileSystem(), uri
    filesystem, root = pafs.FileSystem.from_uri(uri)
    return filesystem, root


def scrub(text: object, options: Mapping[str, str]) -> str:
    """Take the credentials among the options out of a text that a library wrote."""
    found = str(text)
    for name in SECRET_OPTIONS:
        value = options.get(name)
        if value:
            found = found.replace(value, "***")
    return found


def _inner(uri: str) -> str:
    return uri.partition("://")[2].strip("/")


def _endpoint(options: Mapping[str, str], name: str, *, encrypted: bool = True) -> dict[str, Any]:
    """Split an endpoint into what Arrow takes: host and port, and the scheme."""
    text = options.get(name, "").strip().rstrip("/")
    if not text:
        return {}
    if "://" not in text:
        return {"endpoint_override": text, "scheme": "https" if encrypted else "http"}
    from urllib.parse import urlsplit  # every scanner loads this module, and few read a store

    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path or "@" in parts.netloc:
        raise ConfigError(f"{name}: got {text!r:.100}, but it takes a host and port such as 'http://127.0.0.1:9000'")
    return {"endpoint_override": parts.netloc, "scheme": parts.scheme}


def _keys(options: Mapping[str, str], access: str, secret: str, session: str) -> dict[str, Any]:
    if bool(options.get(access)) != bool(options.get(secret)):
        missing, present = (secret, access) if options.get(access) else (access, secret)
        raise ConfigError(f"{missing} is not set, but {present} is; set both, or none to use the environment")
    if not options.get(access):
        return {}
    return {
        "access_key": options[access],
        "secret_key": options[secret],
        "session_token": options.get(session) or None,
    }


def _s3(options: Mapping[str, str]) -> pafs.FileSystem:
    encrypted = options.get("s3.connection.ssl.enabled", "true") != "false"
    arguments = {
        **_keys(options, "s3.access-key", "s3.secret-key", "s3.session-token"),
        **_endpoint(options, "s3.endpoint", encrypted=encrypted),
    }
    if options.get("s3.region"):
        arguments["region"] = options["s3.region"]
    # Arrow addresses buckets by path as soon as the endpoint is given, unless an option says otherwise.
    if options.get("s3.path-style-access") == "false":
        arguments["force_virtual_addressing"] = True
    return _open_s3(arguments)


def _oss(options: Mapping[str, str]) -> pafs.FileSystem:
    """Reach Alibaba Cloud OSS over its S3 interface, which knows buckets by host name only."""
    arguments = {
        **_keys(options, "oss.accessKeyId", "oss.accessKeySecret", "oss.securityToken"),
        **_endpoint(options, "oss.endpoint"),
        "force_virtual_addressing": True,
    }
    if "endpoint_override" not in arguments:
        raise ConfigError("oss.endpoint is not set, but oss:// needs it, for instance oss-cn-hangzhou.aliyuncs.com")
    if options.get("oss.region"):
        arguments["region"] = options["oss.region"]
    return _open_s3(arguments)


def _open_s3(arguments: Mapping[str, Any]) -> pafs.FileSystem:
    try:
        from pyarrow.fs import S3FileSystem
    except ImportError:
        raise StorageError("this build of pyarrow has no S3; install the wheel of pyarrow from PyPI") from None
    return S3FileSystem(connect_timeout=_CONNECT_S_MAX, request_timeout=_REQUEST_S_MAX, **arguments)


def _gs(options: Mapping[str, str]) -> pafs.FileSystem:
    try:
        from pyarrow.fs import GcsFileSystem
    except ImportError:
        raise StorageError("this build of pyarrow has no Google Cloud Storage; install its wheel from PyPI") from None
    arguments = _endpoint(options, "gs.storage.root.url")
    if options.get("gs.project.id"):
        arguments["project_id"] = options["gs.project.id"]
    return GcsFileSystem(**arguments)
