# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests: an authority, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass
class Authority:
    """Signs certificates; `ca` is the file that others trust."""

    folder: Path
    name: str = "tests"

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        self.ca = str(self.folder / f"{self.name}-ca.pem")
        certificate = self._sign(self._subject, self._key.public_key(), None, ca=True)
        Path(self.ca).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, name: str, *, host: str | None = None, file: str | None = None, organization: str = "", password: str = ""
    ) -> str:
        """Make a certificate with its key; the PEM file that has both is returned."""
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if organization:
            parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
        certificate = self._sign(x509.Name(parts), key.public_key(), host, ca=False)
        path = self.folder / (file or f"{name}.pem")
        path.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption(),
            )
        )
        return str(path)

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, host: str | None, *, ca: bool
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.timezone.utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if host is not None:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False
            )
        return builder.sign(self._key, hashes.SHA256())
