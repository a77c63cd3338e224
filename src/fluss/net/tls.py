# SPDX-License-Identifier: Apache-2.0
"""TLS for both ends of a connection: contexts from files, and what a client checks of a server's certificate."""

from __future__ import annotations

import hashlib
import os
import re
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from fluss.errors import AuthenticateError, ConfigError, FlussError

TLS_PROTOCOLS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_JKS_MAGIC = bytes.fromhex("feedfeed")
_FILE_BYTES_MAX = 4 * 1024 * 1024
_PEM = b"-----BEGIN "
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_OTHER_NAME = (62, 64)
"""The codes of OpenSSL for a certificate of another host name or address."""


class TlsError(AuthenticateError):
    """A certificate is not trusted, or a handshake failed."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where certificates and keys are (PEM files), and which versions and ciphers of TLS are used."""

    certificate: str = ""
    """The own certificate with its chain, and the key if `key` is empty."""
    key: str = ""
    key_password: str = field(default="", repr=False)
    ca: str = ""
    """The certificates that sign those of the other side. A client without them trusts those of the system."""
    protocols: Sequence[str] = tuple(TLS_PROTOCOLS)
    ciphers: Sequence[str] = ()


class ClientTls:
    """How a client checks servers, and what it shows to them.

    With a `fingerprint` (SHA-256 of the certificate, as hex) exactly that certificate is accepted, with any signature
    and for any host. Several, separated by commas, accept each of them, as a renewal needs; a PEM file stands for the
    certificate that it has when a connection opens. Without a fingerprint the certificate must be signed by a trusted
    authority, and for the host that was asked for.
    """

    def __init__(self, files: TlsFiles, *, check_hostname: bool = True, fingerprint: str = "") -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        pins = [pin.strip() for pin in fingerprint.split(",")] if fingerprint else []
        self._pinned_files = [pin for pin in pins if os.sep in pin or os.path.isfile(pin)]
        self._fingerprints = [parse_fingerprint(pin) for pin in pins if pin not in self._pinned_files]
        if pins:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE  # the certificate itself is compared, in `check`
        else:
            context.check_hostname = check_hostname
            if files.ca:
                _load_ca(context, files.ca)
            else:
                context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        _configure(context, files)
        self.context = context

    def check(self, peer: str, certificate: bytes | None) -> None:
        """Compare the certificate (DER) of a server with the pinned one, before anything is sent."""
        accepted = [*self._fingerprints]
        for path in self._pinned_files:
            with suppress(ConfigError):  # being replaced
                accepted.append(certificate_fingerprint(path))
        if not self._pinned_files and not accepted:
            return
        found = hashlib.sha256(certificate or b"").hexdigest()
        if found not in accepted:
            expected = " or ".join(accepted or self._pinned_files)
            raise TlsError(
                f"Server {peer} has a certificate with the fingerprint {found}, but {expected} is expected. "
                "If its certificate was renewed, use the new fingerprint; otherwise it may not be your server"
            )


def tls_failure(peer: str, error: ssl.SSLError) -> FlussError:
    """Describe why a handshake failed, and what to do. Trying again does not help, so the error is not retriable."""
    if isinstance(error, ssl.SSLCertVerificationError):
        what = f"The certificate of server {peer} is not trusted: {error.verify_message.rstrip('.')}."
        if error.verify_code in _OTHER_NAME:
            return TlsError(
                f"{what} Connect by a name that it is valid for; if the server gave this address, set its option "
                "advertised.listeners"
            )
        return TlsError(
            f"{what} Name the authority that signed it (ca=, option client.security.ssl.truststore.location), or pin "
            "the certificate (fingerprint=)"
        )
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNEXPECTED_MESSAGE", "RECORD_LAYER_FAILURE"):
        return ConfigError(f"Server {peer} does not use TLS on this port; connect without tls, or to its TLS port")
    return TlsError(
        f"The TLS handshake with server {peer} failed: {_reason(error)}. A server that asks for certificates of "
        "clients needs client.security.ssl.keystore.location"
    )


def server_context(files: TlsFiles, *, require_client_certificate: bool = False) -> ssl.SSLContext:
    """Make the context of a listener. Clients need a certificate if `require_client_certificate`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if not files.certificate:
        raise ConfigError(
            "TLS needs a certificate: set 'security.ssl.keystore.location', or use --tls-cert or --tls-self-signed."
        )
    if files.ca:
        _load_ca(context, files.ca)
        context.verify_mode = ssl.CERT_REQUIRED if require_client_certificate else ssl.CERT_OPTIONAL
    elif require_client_certificate:
        raise ConfigError(
            "a listener that asks clients for certificates needs the authorities that sign them: set "
            "'security.ssl.truststore.location', or use --tls-client-ca."
        )
    _configure(context, files)
    return context


def parse_fingerprint(text: str) -> str:
    """Read a SHA-256 fingerprint: 64 hex digits, with or without colons, in any case."""
    found = text.strip().lower().removeprefix("sha256:").replace(":", "")
    if not _FINGERPRINT.fullmatch(found):
        raise ConfigError(
            "client.security.ssl.fingerprint takes the SHA-256 of a certificate as 64 hex digits, as "
            "'fluss server' prints it, or the PEM file of that certificate"
        )
    return found


def certificate_fingerprint(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of the first certificate of a PEM file, as hex."""
    text = _read_pem(os.fspath(path)).decode("ascii", "replace")
    found = re.search("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", text, re.DOTALL)
    if found is None:
        raise ConfigError(f"the TLS file '{os.fspath(path)}' has no certificate.")
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(found[0])).hexdigest()


def _configure(context: ssl.SSLContext, files: TlsFiles) -> None:
    versions = [TLS_PROTOCOLS[name] for name in files.protocols if name in TLS_PROTOCOLS]
    if not versions or len(versions) != len(files.protocols):
        raise ConfigError(
            f"TLS versions {', '.join(files.protocols) or '(none)'}: known are {' and '.join(TLS_PROTOCOLS)}."
        )
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if files.ciphers:
        try:
            context.set_ciphers(":".join(files.ciphers))
        except ssl.SSLError:
            raise ConfigError(
                f"TLS cipher suites {', '.join(files.ciphers)}: none is known; use the names of OpenSSL, which "
                "'openssl ciphers' lists."
            ) from None
    if files.certificate:
        load_certificate(context, files)


def load_certificate(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Use the certificate and key that the files have now, also for new handshakes of a context in use."""
    for path in filter(None, (files.certificate, files.key)):
        _read_pem(path)
    try:
        # A function, not the text: with None OpenSSL would ask on the terminal.
        context.load_cert_chain(files.certificate, files.key or None, password=lambda: files.key_password)
    except (OSError, ValueError) as error:
        where = f"'{files.certificate}'" + (f" and '{files.key}'" if files.key else "")
        raise ConfigError(
            f"cannot use the certificate and key in {where}: {_reason(error)}. They must belong together, and an "
            "encrypted key needs its password."
        ) from None


def _load_ca(context: ssl.SSLContext, path: str) -> None:
    is_folder = os.path.isdir(path)
    if not is_folder:
        _read_pem(path)
    try:
        context.load_verify_locations(*((None, path) if is_folder else (path, None)))
    except OSError as error:
        raise ConfigError(f"cannot read the certificates of authorities in '{path}': {_reason(error)}.") from None


def _read_pem(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(_FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"cannot read the TLS file '{path}': {error.strerror or error}.") from None
    if _PEM in content:
        return content
    if content.startswith(_JKS_MAGIC):
        raise ConfigError(
            f"'{path}' is a Java key store. Convert it once: keytool -importkeystore -srckeystore {path} -destkeystore "
            "keys.p12 -deststoretype PKCS12, then openssl pkcs12 -in keys.p12 -out keys.pem -nodes."
        )
    raise ConfigError(
        f"'{path}' is not a PEM file. A PKCS#12 store is converted by: openssl pkcs12 -in {path} -out keys.pem -nodes."
    )


def _reason(error: Exception) -> str:
    return (getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)).lower().replace("_", " ")
