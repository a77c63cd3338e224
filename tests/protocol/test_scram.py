# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import AuthenticateError, FlussError, InvalidArgumentError
from fluss.protocol.scram import SCRAM_HASHES, SCRAM_SHA_256, ScramClient, ScramKeys, ScramServer, prepare

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
mechanisms = st.sampled_from(sorted(SCRAM_HASHES))
nonces = st.text("abcdefghijkABC0123+/", min_size=1, max_size=20)


def test_the_exchange_of_rfc_7677() -> None:
    client = ScramClient(SCRAM_SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    keys = ScramKeys.derive(SCRAM_SHA_256, "pencil", SALT, 4096)
    server = ScramServer(SCRAM_SHA_256, client.first(), "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert server.username == "user"
    challenge = server.challenge(keys)
    assert challenge == b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    final = client.final(challenge)
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    proof = server.finish(final, keys)
    assert proof == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    client.verify(proof)


@given(mechanisms, st.text(min_size=1, max_size=12), st.text(min_size=1, max_size=12), nonces, nonces, st.booleans())
def test_only_the_right_password_logs_in(
    mechanism: str, name: str, password: str, nonce: str, server_nonce: str, right: bool
) -> None:
    try:
        prepare(name, "user name")
        prepare(password, "password")
    except InvalidArgumentError:
        return
    keys = ScramKeys.derive(mechanism, password if right else password + "x", SALT, 4096)
    client = ScramClient(mechanism, name, password, nonce)
    server = ScramServer(mechanism, client.first(), server_nonce)
    assert server.username == prepare(name, "user name")
    proof = server.finish(client.final(server.challenge(keys)), keys)
    assert (proof is not None) is right
    assert keys.matches(mechanism, password) is right
    if proof is not None:
        client.verify(proof)


@given(st.binary(max_size=80))
def test_foreign_messages_raise_errors_of_ours(message: bytes) -> None:
    keys = ScramKeys.derive(SCRAM_SHA_256, "pencil", SALT, 4096)
    client = ScramClient(SCRAM_SHA_256, "user", "pencil", "abc")
    server = ScramServer(SCRAM_SHA_256, client.first(), "def")
    server.challenge(keys)
    for read in (
        lambda: ScramServer(SCRAM_SHA_256, message, "n"),
        lambda: client.final(message),
        lambda: server.finish(message, keys),
        lambda: client.verify(message),
    ):
        with contextlib.suppress(FlussError):
            read()


def test_a_server_that_does_not_know_the_password_is_refused() -> None:
    client = ScramClient(SCRAM_SHA_256, "user", "pencil", "abc")
    impostor = ScramKeys.derive(SCRAM_SHA_256, "other", SALT, 4096)
    server = ScramServer(SCRAM_SHA_256, client.first(), "def")
    client.final(server.challenge(impostor))
    with pytest.raises(AuthenticateError, match="could not prove"):
        client.verify(b"v=" + base64.b64encode(bytes(32)))
    with pytest.raises(AuthenticateError, match="could not prove"):
        ScramClient(SCRAM_SHA_256, "user", "pencil", "abc").verify(b"v=")


@pytest.mark.parametrize(
    ("challenge", "message"),
    [
        (b"r=xyz,s=AAAA,i=4096", "nonce"),
        (b"r=abc,s=AAAA,i=4096", "nonce"),
        (b"r=abcd,s=AAAA,i=1", "asks for 1 iterations"),
        (b"r=abcd,s=AAAA,i=99999999", "asks for 99999999 iterations"),
        (b"r=abcd,s=!,i=4096", "cannot be read"),
        (b"e=other-error", "cannot be read"),
    ],
)
def test_a_challenge_that_weakens_the_login_is_refused(challenge: bytes, message: str) -> None:
    with pytest.raises(AuthenticateError, match=message):
        ScramClient(SCRAM_SHA_256, "user", "pencil", "abc").final(challenge)


def test_passwords_are_compared_in_one_form() -> None:
    keys = ScramKeys.derive(SCRAM_SHA_256, "I\u00adX \u2168", SALT, 4096)
    assert keys.matches(SCRAM_SHA_256, "IX IX")
    assert not keys.matches(SCRAM_SHA_256, "bell\u0007")
    with pytest.raises(InvalidArgumentError, match="RFC 4013"):
        ScramKeys.derive(SCRAM_SHA_256, "bell\u0007", SALT, 4096)
    assert "\\x" not in repr(keys).replace(repr(keys.salt), "")
