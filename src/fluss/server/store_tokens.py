# SPDX-License-Identifier: Apache-2.0
"""Temporary credentials with which clients read remote segments straight from S3.

The server assumes the role `s3.assumed.role.arn` for them, narrowed to reading below `remote.data.dir`, whatever the
role itself allows. Without a role no credentials leave the server: clients learn where the store is and use their
own. The server's own keys are never handed out.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from urllib.parse import quote, urlencode, urlsplit

from fluss.errors import SecurityTokenError
from fluss.metadata import FileSystemCredentials, datetime_from_text, epoch_millis
from fluss.net.filesystems import S3_SCHEMES, scheme_of, scrub

_DURATION_S = 3600
_TIMEOUT_S = 20.0
_ANSWER_BYTES_MAX = 256 * 1024
_RENEW_SHARE = 0.25
"""Credentials are issued anew when less than this share of their life is left."""


@dataclass(frozen=True)
class StoreToken:
    """What a client needs to reach the remote data directory. Credentials never show in a repr."""

    scheme: str
    token: bytes = field(default=b"", repr=False)
    expires_ms: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


class StoreTokens:
    """Issues tokens and keeps the newest until its life ends."""

    def __init__(
        self, remote_dir: str, options: Mapping[str, str], executor: Executor | None, now_ms: Callable[[], int]
    ) -> None:
        self._scheme = scheme_of(remote_dir)
        self._place = remote_dir.partition("://")[2].strip("/")
        self._options = dict(options)
        self._executor = executor
        self._now_ms = now_ms
        self._lock = asyncio.Lock()
        self._newest: tuple[StoreToken, int] | None = None
        """The newest token, and when to issue another."""

    async def get(self) -> StoreToken:
        """Return a token that is valid for some time; raises SecurityTokenError if none can be had."""
        settings = self._settings()
        if self._scheme not in S3_SCHEMES or not self._options.get("s3.assumed.role.arn"):
            return StoreToken(self._scheme, settings=settings)
        async with self._lock:
            if self._newest is None or self._now_ms() >= self._newest[1]:
                loop = asyncio.get_running_loop()
                credentials, expires_ms = await loop.run_in_executor(self._executor, self._assume_role)
                now_ms = self._now_ms()
                renew_ms = now_ms + int((expires_ms - now_ms) * (1 - _RENEW_SHARE))
                token = StoreToken(self._scheme, credentials.to_json_bytes(), expires_ms, settings)
                self._newest = token, renew_ms
            return self._newest[0]

    def _settings(self) -> dict[str, str]:
        """Where the store is, under the names that clients of Apache Fluss know."""
        if self._scheme in S3_SCHEMES:
            # Java clients look for the region under the first name, Rust clients under the second.
            names = {
                "fs.s3a.region": "s3.region",
                "fs.s3a.endpoint.region": "s3.region",
                "fs.s3a.endpoint": "s3.endpoint",
                "fs.s3a.path.style.access": "s3.path-style-access",
            }
        else:
            known = ("oss.endpoint", "oss.region", "gs.project.id", "gs.storage.root.url")
            names = {f"fs.{name}": name for name in known if name.startswith(self._scheme)}
        return {key: self._options[name] for key, name in names.items() if self._options.get(name)}

    def _assume_role(self) -> tuple[FileSystemCredentials, int]:
        region = self._options.get("s3.region") or "us-east-1"
        endpoint = self._options.get("s3.assumed.role.sts.endpoint") or f"https://sts.{region}.amazonaws.com"
        if "://" not in endpoint:
            endpoint = f"https://{endpoint}"
        parameters = {
            "Action": "AssumeRole",
            "Version": "2011-06-15",
            "RoleArn": self._options["s3.assumed.role.arn"],
            "RoleSessionName": f"fluss-{uuid.uuid4()}",
            "DurationSeconds": str(_DURATION_S),
            "Policy": json.dumps(_read_only(self._place), separators=(",", ":")),
        }
        try:
            answer = _post(endpoint, parameters, self._keys(), region)
            return _credentials(answer)
        except (OSError, ValueError) as error:
            raise SecurityTokenError(
                f"no credentials for readers of '{self._scheme}://{self._place}' were issued by {endpoint}: "
                f"{scrub(error, self._options)}. Check s3.assumed.role.arn and s3.assumed.role.sts.endpoint."
            ) from None

    def _keys(self) -> tuple[str, str, str | None]:
        access, secret = self._options.get("s3.access-key"), self._options.get("s3.secret-key")
        if not access or not secret:
            raise SecurityTokenError(
                "s3.assumed.role.arn is set, but s3.access-key and s3.secret-key are not: the server needs keys of its "
                "own to assume the role."
            )
        return access, secret, self._options.get("s3.session-token") or None


def _read_only(place: str) -> dict[str, object]:
    bucket, _, prefix = place.partition("/")
    below = f"{prefix}/*" if prefix else "*"
    arn = f"arn:aws:s3:::{bucket}"
    listed: dict[str, object] = {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": [arn]}
    if prefix:
        listed["Condition"] = {"StringLike": {"s3:prefix": [below]}}
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": [f"{arn}/{below}"]},
            {"Effect": "Allow", "Action": ["s3:GetBucketLocation"], "Resource": [arn]},
            listed,
        ],
    }


def _post(endpoint: str, parameters: Mapping[str, str], keys: tuple[str, str, str | None], region: str) -> bytes:
    import urllib.error  # takes a while, and few servers need it
    import urllib.request

    body = urlencode(parameters, quote_via=quote).encode()
    headers = sign(endpoint, body, keys, region, datetime.now(timezone.utc))
    request = urllib.request.Request(endpoint.rstrip("/") + "/", body, headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            return bytes(response.read(_ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        with error:
            text = error.read(_ANSWER_BYTES_MAX)
        raise OSError(f"HTTP {error.code}, {_reason(text)}") from None
    except urllib.error.URLError as error:
        raise OSError(str(error.reason)) from None


def sign(endpoint: str, body: bytes, keys: tuple[str, str, str | None], region: str, now: datetime) -> dict[str, str]:
    """Sign a request to a security token service with version 4 of the signatures of AWS; returns its headers."""
    access, secret, session = keys
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    headers = {
        "content-type": "application/x-www-form-urlencoded; charset=utf-8",
        "host": urlsplit(endpoint).netloc,
        "x-amz-date": stamp,
    }
    if session:
        headers["x-amz-security-token"] = session
    names = ";".join(sorted(headers))
    listed = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = "\n".join(("POST", "/", "", listed, names, hashlib.sha256(body).hexdigest()))
    scope = f"{stamp[:8]}/{region}/sts/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={access}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers


def _credentials(answer: bytes) -> tuple[FileSystemCredentials, int]:
    found = _elements(answer)
    try:
        expires = datetime_from_text(found["Expiration"])
        keys = FileSystemCredentials(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])
    except (KeyError, ValueError):
        raise ValueError("the answer has no AccessKeyId, SecretAccessKey, SessionToken and Expiration") from None
    return keys, epoch_millis(expires)


def _elements(answer: bytes) -> dict[str, str]:
    """Read the texts of an XML document by the names of their elements; empty if it is none."""
    from xml.etree import ElementTree

    try:
        return {part.tag.rpartition("}")[2]: part.text or "" for part in ElementTree.fromstring(answer).iter()}
    except ElementTree.ParseError:
        return {}


def _reason(answer: bytes) -> str:
    """Name code and message of an error of the service."""
    found = _elements(answer)
    return f"{found.get('Code', 'no code')}: {found.get('Message', 'no message')}"
