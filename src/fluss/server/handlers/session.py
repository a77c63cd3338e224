# SPDX-License-Identifier: Apache-2.0
"""What a connection begins with: API versions and authentication."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from fluss.errors import AuthenticateError
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.apis import API_VERSIONS, APIS, AUTHENTICATE
from fluss.server.auth import Principal, WrongCredentialsError, authenticate_plain, user_of_token, users_of
from fluss.server.handlers.request import Handler, RequestContext, proto_handler
from fluss.server.throttle import FAILURES_PER_CONNECTION_MAX

_SOFTWARE_CHARS_MAX = 120


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
    try:
        return await _authenticate(context, request)
    except AuthenticateError as error:
        user = (user_of_token(request.token) or None) if session.sasl else None
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
    session.authenticate(await _log_in(context, request.token))
    # Present and empty: the Java client tells this apart from absent.
    return pb.AuthenticateResponse(challenge=b"")


async def _log_in(context: RequestContext, token: bytes) -> Principal:
    """Check a password, not more often than guesses may come; a connection with several wrong ones is closed."""
    session, throttle = context.session, context.server.login_throttle
    user = user_of_token(token)
    wait_seconds = throttle.reserve(session.host, user)
    if wait_seconds is None:
        session.close_soon()
        raise AuthenticateError("too many failed logins of this user from this address; try again in a minute")
    if wait_seconds:
        await asyncio.sleep(wait_seconds)
    try:
        principal = authenticate_plain(token, users_of(context.server.config, session.listener))
    except WrongCredentialsError:
        throttle.failed(session.host, user)
        context.server.metrics.add("tabletserver_failedLogins_total")
        session.failed_logins += 1
        if session.failed_logins >= FAILURES_PER_CONNECTION_MAX:
            session.close_soon()
        raise
    throttle.succeeded(session.host, user)
    return principal


def register(registry: dict[int, Handler]) -> None:
    registry[API_VERSIONS.key] = proto_handler(API_VERSIONS, partial(api_versions, registry))
    registry[AUTHENTICATE.key] = proto_handler(AUTHENTICATE, authenticate)
