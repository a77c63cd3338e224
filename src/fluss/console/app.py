# SPDX-License-Identifier: Apache-2.0
"""The web application: pages, sessions and the routes of the API."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from fluss._version import VERSION
from fluss.console.clients import Client
from fluss.console.routes import access, data, overview, schema, sql, storage, streams, upload
from fluss.console.security import Guard, Session, same_secret
from fluss.console.settings import Settings
from fluss.console.state import State, api, error_response, read_json, state_of
from fluss.errors import AuthenticateError, FlussError

STATIC = Path(__file__).parent / "static"
_LOGINS_AT_ONCE = 16
_LOGINS_OF_ADDRESS_AT_ONCE = 4
_FAILED_LOGIN_S = 0.5


def build_app(settings: Settings, sock: socket.socket | None = None) -> Starlette:
    """Make the application.

    Args:
        settings: What it connects to.
        sock: A socket to the embedded server that it accompanies, if any.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        state = app.state.console = State(settings, sock)
        app.state.logins = Counter[str]()
        await state.start()
        try:
            yield
        finally:
            await state.stop()

    return Starlette(
        routes=[
            Route("/", page),
            Route("/api/session", session_info),
            Route("/api/login", login, methods=["POST"]),
            Route("/api/logout", logout, methods=["POST"]),
            *(
                Route(f"/api/{path}", api(handler), methods=["POST"] if post else ["GET"])
                for module in (overview, access, data, sql, streams, schema, storage, upload)
                for path, handler, post in module.ROUTES
            ),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Guard, settings=settings)],
        lifespan=lifespan,
    )


def _with_cookie(response: Response, state: State, session: Session) -> Response:
    secure = state.settings.certificate is not None
    response.set_cookie(state.sessions.cookie, session.token, path="/", httponly=True, samesite="strict", secure=secure)
    return response


async def page(request: Request) -> Response:
    """The page of the console. The printed link lets a browser in; without login, so does the page itself."""
    state = state_of(request)
    token = request.query_params.get("token")
    if token is not None:
        redirect = RedirectResponse("/", 303)
        if state.link_token is not None and same_secret(token, state.link_token):
            return _with_cookie(redirect, state, state.sessions.open(state.shared))
        return redirect
    answer = FileResponse(STATIC / "index.html")
    if state.sessions.find(request) is None and state.link_token is None and not state.asks_login:
        return _with_cookie(answer, state, state.sessions.open(state.shared))
    return answer


async def session_info(request: Request) -> Response:
    """Whether the browser is let in, and what it may do."""
    state = state_of(request)
    session = state.sessions.find(request)
    opened = None
    if session is None and state.link_token is None and not state.asks_login:
        # The page may be older than the console, which has no login to send it to.
        session = opened = state.sessions.open(state.shared)
    about = {
        "version": VERSION,
        "server": state.settings.bootstrap_servers,
        "read_only": state.settings.read_only,
        "embedded": state.inspection.embedded,
        "needs_link": state.link_token is not None,
    }
    problem = None
    if session is not None and session.client is state.shared:
        try:
            await session.client.db()
        except AuthenticateError:
            if state.settings.user is None:  # the server asks for users: from now on the console does as well
                state.asks_login = True
            else:
                problem = "The server refused the user and password that the console was started with."
        except FlussError as error:
            problem = error.message
    inside = session is not None and not (state.asks_login and session.client is state.shared)
    user = session.client.user if inside and session is not None else None
    answer = JSONResponse({**about, "login": state.asks_login, "inside": inside, "user": user, "problem": problem})
    return answer if opened is None else _with_cookie(answer, state, opened)


async def login(request: Request) -> Response:
    """Let a user of the server in; the server checks the password."""
    state = state_of(request)
    try:
        body = await read_json(request)
        user, password = str(body.get("user", ""))[:256], str(body.get("password", ""))[:1024]
        with _logging_in(request):
            client = await _client_of(state, user, password)
        return _with_cookie(JSONResponse({"user": user}), state, state.sessions.open(client))
    except Exception as error:
        return error_response(error)


@contextlib.contextmanager
def _logging_in(request: Request) -> Iterator[None]:
    """Refuse a login too many at a time: each takes memory and a thread, and one address must not take all slots."""
    logins: Counter[str] = request.app.state.logins
    address = request.client.host if request.client is not None else ""
    if logins[address] >= _LOGINS_OF_ADDRESS_AT_ONCE or logins.total() >= _LOGINS_AT_ONCE:
        raise AuthenticateError("Too many logins are being checked at the moment. Try again in a few seconds.")
    logins[address] += 1
    try:
        yield
    finally:
        logins[address] -= 1
        if not logins[address]:
            del logins[address]


async def _client_of(state: State, user: str, password: str) -> Client:
    """The connection of a user, which the sessions of the user share as long as the server accepts its password."""
    if not user or not password:
        raise AuthenticateError("Enter a user and a password.")
    client = Client(state.settings, user, password)
    try:
        await _check_login(state, client)
    except FlussError as error:
        await client.close()
        known = state.users.get(user)
        if isinstance(error, AuthenticateError) and known is not None and known.has_password(password):
            del state.users[user]  # removed, or with another password by now
            await state.close_client(known)
        await asyncio.sleep(_FAILED_LOGIN_S)
        raise
    known = state.users.get(user)
    if known is not None and known.has_password(password):
        await client.close()
        return known
    state.users[user] = client
    if known is not None:
        await state.close_client(known)
    return client


async def _check_login(state: State, client: Client) -> None:
    """Connect with the password, and make sure that the server looks at it: one without users accepts any."""
    await client.db()
    if state.server_checks_users:
        return
    probe = Client(state.settings, f"console-{secrets.token_hex(8)}", secrets.token_urlsafe(16))
    try:
        await probe.db()
    except AuthenticateError:
        state.server_checks_users = True
        return
    finally:
        await probe.close()
    raise AuthenticateError(
        "The server has no users, so no login is possible. Set its options 'security.protocol.map' and "
        "'security.sasl.plain.credentials', or run the console on 127.0.0.1."
    )


async def logout(request: Request) -> Response:
    """Close the session."""
    state = state_of(request)
    session = state.sessions.find(request)
    if session is not None:
        state.sessions.close(session)
    answer = JSONResponse({})
    answer.delete_cookie(state.sessions.cookie, path="/")
    return answer
