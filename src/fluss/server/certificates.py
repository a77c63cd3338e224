# SPDX-License-Identifier: Apache-2.0
"""A certificate for development: signed by itself, trusted by its fingerprint."""

from __future__ import annotations

import datetime
import ipaddress
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fluss.errors import ConfigError
from fluss.server import disk

SELF_SIGNED_FILE = "self-signed.pem"
_VALID_DAYS = 825
_RENEW_BEFORE_DAYS = 30


def ensure_self_signed(folder: Path, hosts: Iterable[str]) -> Path:
    """Return the PEM file of a certificate and its key in `folder`; make it if there is none, or it expires soon.

    A certificate that is there is kept, so that clients which have pinned its fingerprint still connect.
    """
    x509 = _cryptography()
    path = folder / SELF_SIGNED_FILE
    if path.exists():
        found = x509.load_pem_x509_certificate(path.read_bytes())
        left = found.not_valid_after_utc - datetime.datetime.now(datetime.timezone.utc)
        if left > datetime.timedelta(days=_RENEW_BEFORE_DAYS):
            return path
    folder.mkdir(parents=True, exist_ok=True)
    disk.write_atomically(path, make_self_signed(hosts))
    return path


def make_self_signed(hosts: Iterable[str]) -> bytes:
    """Make a key and a certificate for these hosts and for this machine, as one PEM text."""
    x509 = _cryptography()
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fluss development server")])
    now = datetime.datetime.now(datetime.timezone.utc)
    names = dict.fromkeys(("localhost", "127.0.0.1", "::1", socket.gethostname(), *hosts))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([_alternative_name(name) for name in names if name]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    text: bytes = certificate.public_bytes(serialization.Encoding.PEM) + private
    return text


def _alternative_name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _cryptography() -> Any:
    try:
        from cryptography import x509
    except ImportError:
        raise ConfigError(
            "--tls-self-signed makes a certificate with the package 'cryptography', which is not installed. Run: "
            "pip install 'fluss-python[tls]'. A certificate of your own needs no package: --tls-cert and --tls-key."
        ) from None
    return x509
