# SPDX-License-Identifier: Apache-2.0
"""SCRAM-SHA-256 and -512 (RFC 5802, RFC 7677): prove a password without sending it.

The client sends `client-first`, the server answers with salt and iterations, the client sends its proof, and the server
answers with a proof of its own: both know the password, and neither it nor anything that replays is on the wire. The
server stores `ScramKeys`, from which the password cannot be read.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import stringprep
import unicodedata
from dataclasses import dataclass, field
from typing import Final

from fluss.errors import AuthenticateError, InvalidArgumentError

SCRAM_SHA_256: Final = "SCRAM-SHA-256"
SCRAM_SHA_512: Final = "SCRAM-SHA-512"
SCRAM_HASHES: Final = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}

ITERATIONS_DEFAULT: Final = 8192
_ITERATIONS_MIN = 4096
_ITERATIONS_MAX = 1_000_000
"""A server that asks for more keeps the client busy for seconds."""
_MESSAGE_BYTES_MAX = 8 * 1024
_NO_CHANNEL_BINDING = b"n,,"
_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


@dataclass(frozen=True, slots=True)
class ScramKeys:
    """What a server stores of a password."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def derive(cls, mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS_DEFAULT) -> ScramKeys:
        """Compute the keys of a password. Takes some milliseconds, without the interpreter lock."""
        salted = _salted_password(mechanism, password, salt, iterations)
        client_key = _hmac(mechanism, salted, b"Client Key")
        return cls(salt, iterations, _hash(mechanism, client_key), _hmac(mechanism, salted, b"Server Key"))

    def matches(self, mechanism: str, password: str) -> bool:
        """Whether this is the password, for logins that send it as it is (PLAIN over TLS)."""
        try:
            found = ScramKeys.derive(mechanism, password, self.salt, self.iterations)
        except InvalidArgumentError:
            return False
        return hmac.compare_digest(found.stored_key, self.stored_key)


class ScramClient:
    """The client's side of one login: `first`, then `final` with the answer, then `verify` with the last answer.

    `answer` makes these steps by the number of the challenge, as `fluss.protocol.sasl.SaslLogin` wants it.
    """

    def __init__(self, mechanism: str, username: str, password: str, nonce: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        name = prepare(username, "user name").replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={nonce}".encode()
        self._server_signature = b""
        self._challenges = 0

    def first(self) -> bytes:
        return _NO_CHANNEL_BINDING + self._first_bare

    def answer(self, challenge: bytes) -> bytes | None:
        self._challenges += 1
        if self._challenges == 1:
            return self.final(challenge)
        if self._challenges == 2:
            self.verify(challenge)
        return None

    def finish(self) -> None:
        if self._challenges < 2:
            raise AuthenticateError("The server ended the login without proving that it knows the password")

    def final(self, challenge: bytes) -> bytes:
        """Answer the salt of the server with a proof."""
        fields = _read_fields(challenge)
        try:
            nonce, salt, iterations = fields["r"], base64.b64decode(fields["s"], validate=True), int(fields["i"])
        except (KeyError, ValueError):
            raise AuthenticateError("The server sent a SCRAM challenge that cannot be read") from None
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticateError("The server sent a SCRAM challenge with a nonce that is not an answer to ours")
        if not _ITERATIONS_MIN <= iterations <= _ITERATIONS_MAX:
            raise AuthenticateError(
                f"The server asks for {iterations} iterations of the password hash; "
                f"{_ITERATIONS_MIN} to {_ITERATIONS_MAX} are accepted"
            )
        salted = _salted_password(self._mechanism, self._password, salt, iterations)
        client_key = _hmac(self._mechanism, salted, b"Client Key")
        without_proof = b"c=" + base64.b64encode(_NO_CHANNEL_BINDING) + b",r=" + nonce.encode()
        transcript = b",".join((self._first_bare, bytes(challenge), without_proof))
        signature = _hmac(self._mechanism, _hash(self._mechanism, client_key), transcript)
        self._server_signature = _hmac(self._mechanism, _hmac(self._mechanism, salted, b"Server Key"), transcript)
        return without_proof + b",p=" + base64.b64encode(_xor(client_key, signature))

    def verify(self, challenge: bytes) -> None:
        """Check that the server knows the password too."""
        try:
            signature = base64.b64decode(_read_fields(challenge).get("v", ""), validate=True)
        except ValueError:
            signature = b""
        if not self._server_signature or not hmac.compare_digest(signature, self._server_signature):
            raise AuthenticateError(
                "The server could not prove that it knows the password: it may not be the server it seems to be"
            )


class ScramServer:
    """The server's side of one login: `username` of `client-first`, then `challenge`, then `finish`."""

    def __init__(self, mechanism: str, client_first: bytes, nonce: str) -> None:
        self.mechanism = mechanism
        header, separator, bare = _bounded(client_first).partition(b",,")
        if not separator or header not in (b"n", b"y"):
            raise AuthenticateError("Invalid SCRAM client-first message: channel binding and authzid are not offered")
        fields = _read_fields(bare)
        if "r" not in fields or "n" not in fields or "m" in fields:
            raise AuthenticateError("Invalid SCRAM client-first message: it needs a user name and a nonce")
        self.username = fields["n"].replace("=2C", ",").replace("=3D", "=")
        self._header = header + b",,"
        self._first_bare = bytes(bare)
        self._nonce = fields["r"] + nonce
        self._server_first = b""

    def challenge(self, keys: ScramKeys) -> bytes:
        salt = base64.b64encode(keys.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={keys.iterations}".encode()
        return self._server_first

    def finish(self, client_final: bytes, keys: ScramKeys) -> bytes | None:
        """Return the server's proof; None if the client's proof is not of this password."""
        without_proof, separator, proof_text = _bounded(client_final).rpartition(b",p=")
        fields = _read_fields(without_proof) if separator else {}
        try:
            proof = base64.b64decode(proof_text, validate=True)
            binding = base64.b64decode(fields.get("c", ""), validate=True)
        except ValueError:
            raise AuthenticateError("Invalid SCRAM client-final message: it is not base64") from None
        if binding != self._header or not hmac.compare_digest(fields.get("r", "").encode(), self._nonce.encode()):
            raise AuthenticateError("Invalid SCRAM client-final message: it does not belong to this login")
        transcript = b",".join((self._first_bare, self._server_first, bytes(without_proof)))
        signature = _hmac(self.mechanism, keys.stored_key, transcript)
        if len(proof) != len(signature):
            return None
        if not hmac.compare_digest(_hash(self.mechanism, _xor(proof, signature)), keys.stored_key):
            return None
        return b"v=" + base64.b64encode(_hmac(self.mechanism, keys.server_key, transcript))


def prepare(text: str, what: str) -> str:
    """Bring a name or password into the one form that both sides hash (SASLprep, RFC 4013)."""
    mapped = "".join(
        " " if stringprep.in_table_c12(letter) else letter for letter in text if not stringprep.in_table_b1(letter)
    )
    prepared = unicodedata.normalize("NFKC", mapped)
    if not prepared:
        raise InvalidArgumentError(f"The {what} for SASL is empty; set both user name and password")
    if any(prohibited(letter) for letter in prepared for prohibited in _PROHIBITED):
        raise InvalidArgumentError(f"The {what} for SASL has a character that SASL does not allow (RFC 4013)")
    return prepared


def _salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(SCRAM_HASHES[mechanism], prepare(password, "password").encode(), salt, iterations)


def _hmac(mechanism: str, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, SCRAM_HASHES[mechanism])


def _hash(mechanism: str, data: bytes) -> bytes:
    return hashlib.new(SCRAM_HASHES[mechanism], data).digest()


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _bounded(message: bytes) -> bytes:
    if len(message) > _MESSAGE_BYTES_MAX:
        raise AuthenticateError(f"A SCRAM message has {len(message)} bytes; at most {_MESSAGE_BYTES_MAX} are accepted")
    return bytes(message)


def _read_fields(message: bytes) -> dict[str, str]:
    """Read `a=1,b=2`. Of a repeated letter the first counts, as the order is fixed and the rest are extensions."""
    try:
        parts = _bounded(message).decode().split(",")
    except UnicodeDecodeError:
        raise AuthenticateError("A SCRAM message is not UTF-8") from None
    fields: dict[str, str] = {}
    for part in parts:
        name, _, value = part.partition("=")
        fields.setdefault(name, value)
    return fields
