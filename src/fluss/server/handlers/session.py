# SPDX-License-Identifier: Apache-2.0
"""What a connection begins with: API versions and authentication."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from fluss.errors import AuthenticateError
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.apis import APIS
from fluss.protocol.sasl import PLAIN
from fluss.protocol.scram import ScramServer
from fluss.server.auth import FAILURES_PER_CONNECTION_MAX, Principal, WrongCredentialsError, user_of_token
from fluss.server.handlers.request import RequestContext

_SOFTWARE_CHARS_MAX = 120

T = TypeVar("T")


async def api_versions(
    api_keys: Iterable[int], context: RequestContext, request: pb.ApiVersionsRequest
) -> pb.ApiVersionsResponse:
    """Exactly what is served. The server type is left out: this address answers as coordinator and tablet server."""
    software = f"{request.client_software_name} {request.client_software_version}".strip()
    context.session.software = software[:_SOFTWARE_CHARS_MAX]
    response = pb.ApiVersionsResponse()
    for key in sorted(api_keys):
        api = APIS[key]
        response.api_versions.add(api_key=key, min_version=api.min_version, max_version=api.max_version)
    return response


async def authenticate(context: RequestContext, request: pb.AuthenticateRequest) -> pb.AuthenticateResponse:
    session = context.session
    login = session.login
    try:
        return await _authenticate(context, request)
    except AuthenticateError as error:
        user = None if login is None else login[0].username
        if session.sasl and request.protocol.upper() == PLAIN:
            user = user_of_token(request.token) or None
        context.server.audit.login_failed(session.peer, session.listener, user, error.message)
        raise


async def _authenticate(context: RequestContext, request: pb.AuthenticateRequest) -> pb.AuthenticateResponse:
    """Log a connection in. The texts of refusals are those of the Java server."""
    session = context.session
    protocol = request.protocol[:64]
    if not session.sasl:
        if request.protocol.upper() != "PLAINTEXT":
            raise AuthenticateError(
                "Authenticate protocol not match: protocol of server is 'PLAINTEXT' while protocol of client is "
                f"'{protocol}'"
            )
        return pb.AuthenticateResponse()
    enabled = [name.upper() for name in context.server.config.strings("security.sasl.enabled.mechanisms")]
    if request.protocol.upper() not in enabled:
        raise AuthenticateError(f"SASL server enables [{', '.join(enabled)}] while protocol of client is '{protocol}'")
    if session.authenticated:
        # Some clients answer the empty challenge below with a second round.
        return pb.AuthenticateResponse()
    mechanism = request.protocol.upper()
    if mechanism == PLAIN:
        return await _log_in_plain(context, request.token)
    if session.login is None:
        return await _begin_scram(context, mechanism, request.token)
    return await _finish_scram(context, request.token)


async def _log_in_plain(context: RequestContext, token: bytes) -> pb.AuthenticateResponse:
    session, accounts = context.session, context.server.accounts
    try:
        principal = await _in_thread(context, partial(accounts.log_in_plain, session.listener, token))
    except WrongCredentialsError:
        await _delay_refusal(context, user_of_token(token))
        raise
    _succeed(context, principal, PLAIN)
    # Present and empty: to the Java client this differs from absent.
    return pb.AuthenticateResponse(challenge=b"")


async def _begin_scram(context: RequestContext, mechanism: str, token: bytes) -> pb.AuthenticateResponse:
    session, accounts = context.session, context.server.accounts
    login = ScramServer(mechanism, token, secrets.token_urlsafe(24))
    keys = await _in_thread(context, partial(accounts.scram_keys, session.listener, login.username, mechanism))
    session.login = login, keys
    return pb.AuthenticateResponse(challenge=login.challenge(keys))


async def _finish_scram(context: RequestContext, token: bytes) -> pb.AuthenticateResponse:
    session = context.session
    assert session.login is not None
    (login, keys), session.login = session.login, None
    proof = login.finish(token, keys)
    if proof is None:
        await _delay_refusal(context, login.username)
        raise WrongCredentialsError
    _succeed(context, Principal(login.username), login.mechanism)
    return pb.AuthenticateResponse(challenge=proof)


async def _in_thread(context: RequestContext, work: Callable[[], T]) -> T:
    """Check one login of an address at a time: those of other addresses, and the disk, do not wait for its guesses."""
    session = context.session
    share = session.share
    async with share.usage.login:
        if session.failed_logins >= FAILURES_PER_CONNECTION_MAX:
            raise WrongCredentialsError
        return await share.in_thread(context.server.logins, work)


async def _delay_refusal(context: RequestContext, user: str) -> None:
    """Hold the refusal of a wrong password back; a connection with several of them is closed."""
    session = context.session
    context.server.metrics.add("tabletserver_failedLogins_total")
    session.failed_logins += 1
    if session.failed_logins >= FAILURES_PER_CONNECTION_MAX:
        session.close_soon()
    await asyncio.sleep(context.server.login_throttle.failed(session.host, user))


def _succeed(context: RequestContext, principal: Principal, mechanism: str) -> None:
    if context.session.authenticated:
        return  # by a request that was sent together with this one
    context.server.login_throttle.succeeded(context.session.host, principal.name)
    context.session.authenticate(principal)
    context.server.audit.logged_in(context.session, mechanism)
