# SPDX-License-Identifier: Apache-2.0
"""Who may talk to the console: host names, origins, sessions, and what pages may load.

- `Host` must be a name of the console. Otherwise a page of another site could have its own name resolve to 127.0.0.1
  (DNS rebinding) and read everything as the same origin.
- `Origin` and `Sec-Fetch-Site`, where a browser sends them, must be the console's own; requests that change something
  also carry a header that other sites cannot set without a preflight, which is never answered (CSRF).
- Every request to the API has a session: a random token in a cookie that scripts cannot read and that browsers do not
  send along with requests of other sites.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import secrets
import socket
from collections import Counter
from dataclasses import dataclass, field
from time import monotonic

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fluss.console.clients import Client
from fluss.console.settings import SESSION_IDLE_S, SESSIONS_MAX, Settings

REQUEST_HEADER = "x-fluss-console"

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cache-control": "no-store",
}
_WILDCARDS = ("0.0.0.0", "::")


def host_names(settings: Settings) -> frozenset[str]:
    """The names under which browsers may reach the console, without port."""
    names = {"localhost", "127.0.0.1", "::1", settings.host, *settings.allowed_hosts}
    if settings.must_login:
        names |= {socket.gethostname()}
    return frozenset(name.lower().strip("[]") for name in names)


def host_allowed(host: str, names: frozenset[str], *, any_address: bool) -> bool:
    """Whether the value of a `Host` header is one of the console's names."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
    name = name.lower().strip("[]")
    if name in names:
        return True
    if not any_address:
        return False
    try:
        # An address cannot be rebound: only names are resolved.
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """ASGI middleware that refuses foreign hosts and origins, and adds the security headers to every answer."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._names = host_names(settings)
        self._any_address = settings.host in _WILDCARDS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        reason = self._refusal(scope["method"], Headers(scope=scope))
        if reason is not None:
            await JSONResponse({"error": reason}, 403)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _refusal(self, method: str, headers: Headers) -> str | None:
        host = headers.get("host", "")
        if not host_allowed(host, self._names, any_address=self._any_address):
            return "This host name is not one of the console. Use the address it printed, or add it with --allow-host."
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
            return "Requests of other origins are refused."
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            # A link of another site may open the console's page: it can neither read it nor send anything with it.
            is_page = headers.get("sec-fetch-mode") == "navigate" and method == "GET"
            if not is_page:
                return "Requests of other sites are refused."
        if method not in ("GET", "HEAD") and REQUEST_HEADER not in headers:
            return f"Requests that change something carry the header {REQUEST_HEADER}."
        return None


@dataclass
class Session:
    """One browser that was let in."""

    client: Client
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    used_at: float = field(default_factory=monotonic)
    has_returned: bool = False
    """Whether the browser sent its cookie: what only looks whether the console runs never does."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is closed: its streams end then."""


class Sessions:
    """The sessions by token: bounded in number and idle time."""

    def __init__(self, port_of: int) -> None:
        # Cookies are not separated by port, and several consoles may run on one machine.
        self.cookie = f"fluss_console_{port_of}"
        self._sessions: dict[str, Session] = {}

    def open(self, client: Client) -> Session:
        """Let a browser in. If there are too many, the user with the most of them loses the one that matters least."""
        idle_since = monotonic() - SESSION_IDLE_S
        for session in [one for one in self._sessions.values() if one.used_at < idle_since]:
            self.close(session)
        while len(self._sessions) >= SESSIONS_MAX:
            counts = Counter(id(one.client) for one in self._sessions.values())
            most = max(counts.values())
            own = [one for one in self._sessions.values() if counts[id(one.client)] == most]
            self.close(min(own, key=lambda one: (one.has_returned, one.used_at)))
        session = Session(client)
        self._sessions[session.token] = session
        return session

    def find(self, request: Request) -> Session | None:
        """The session of a request."""
        given = request.cookies.get(self.cookie)
        session = self._sessions.get(given) if given else None
        if session is None or monotonic() - session.used_at > SESSION_IDLE_S:
            return None
        session.used_at = monotonic()
        session.has_returned = True
        return session

    def close(self, session: Session) -> None:
        session.ended.set()
        self._sessions.pop(session.token, None)

    def close_of(self, client: Client) -> None:
        """Close all sessions with a client."""
        for session in [one for one in self._sessions.values() if one.client is client]:
            self.close(session)


def same_secret(given: str, wanted: str) -> bool:
    """Compare in a time that does not depend on how much of it was right."""
    return hmac.compare_digest(given.encode(), wanted.encode())
