# SPDX-License-Identifier: Apache-2.0
"""The authorization matrix against a running server: every API with every single right of a user.

Our server must answer as its table of rights says. The real one must answer as that table says without the rows that
are stricter here, and with what is deliberate: our server answers a table id of which the caller may know nothing like
an unknown one, the real server refuses it and names the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from google.protobuf.message import Message
from tests.interop.cluster import USERS
from tests.server.rights_support import (
    HIDDEN,
    OBSERVER,
    PERMITTED,
    REFUSED,
    SAMPLES,
    Sample,
    Target,
    binding,
    expected,
    outcome,
)

from fluss.errors import FlussError
from fluss.metadata.acl import AclBinding, OperationType, Resource
from fluss.net.connection import Connection
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials
from fluss.server.handlers.rights import RIGHTS, Scope

USER = "alice"
_NOT_WALKED = frozenset(
    {
        apis.DROP_TABLE,  # it would be gone
        apis.GET_PRODUCER_OFFSETS,  # they belong to their user here
        apis.DELETE_PRODUCER_OFFSETS,
        apis.CREATE_ACLS,  # what a walk changes while it is judged by it
        apis.DROP_ACLS,
    }
)
_UNCHECKED = {
    # Checked from the next release on.
    "fluss-0.9.1-incubating": frozenset({apis.DATABASE_EXISTS, apis.TABLE_EXISTS, apis.LIST_OFFSETS}),
}
_SPREAD_SECONDS_MAX = 20.0


def on_the_real_server(sample: Sample, told: str, release: str) -> str | None:
    """What the real server answers where our row says `told`; None where its answer says nothing about rights."""
    need = RIGHTS[sample.api.key]
    if need.stricter is not None:
        return None
    if sample.api in _UNCHECKED.get(release, frozenset()):
        return PERMITTED
    if need.scope is Scope.TABLE_ID and told == HIDDEN:
        return REFUSED
    return told


_OF_TABLET_SERVERS = frozenset({1014, 1015, 1016, 1017, 1021, 1026, 1033, 1034, 1059, 1061})
"""Keys of the APIs that a coordinator does not serve."""


class Walk:
    """Connections of the user and of the administrator to the nodes of one server."""

    def __init__(self, admins: list[Connection], users: list[Connection]) -> None:
        self.admins = admins
        self.users = users

    def user_for(self, api: apis.Api[Message, Message]) -> Connection | None:
        """A connection to a node that serves the API: the first is the coordinator's, the last a tablet server's."""
        node = self.users[-1] if api.key in _OF_TABLET_SERVERS else self.users[0]
        return node if node.supports(api) else None

    async def grant(self, rules: Iterable[AclBinding]) -> None:
        """Make these the only rules of the two users, and wait until every node knows."""
        wanted = {_message(rule).SerializeToString() for rule in rules}
        drop = pb.DropAclsRequest(acl_filter=[_of(USER), _of(OBSERVER)])
        await self.admins[0].call(apis.DROP_ACLS, drop)
        await self.admins[0].call(apis.CREATE_ACLS, pb.CreateAclsRequest(acl=[_message(rule) for rule in rules]))
        deadline = asyncio.get_running_loop().time() + _SPREAD_SECONDS_MAX
        for admin in self.admins:
            while True:
                found = set()
                for user in (USER, OBSERVER):
                    listed = await admin.call(apis.LIST_ACLS, pb.ListAclsRequest(acl_filter=_of(user)))
                    found |= {acl.SerializeToString() for acl in listed.acl}
                if found == wanted:
                    break
                if asyncio.get_running_loop().time() > deadline:
                    raise TimeoutError("the access rules did not reach every node")
                await asyncio.sleep(0.05)

    async def ask(self, sample: Sample, target: Target) -> str | None:
        node = self.user_for(sample.api)
        if node is None:
            return None
        try:
            answer: Message | FlussError = await node.call(sample.api, sample.request(target))
        except FlussError as error:
            answer = error
        return outcome(sample, target, answer)


def _of(user: str) -> pb.PbAclFilter:
    return pb.PbAclFilter(
        resource_type=1, principal_name=user, principal_type="User", operation_type=1, permission_type=1
    )


def _message(rule: AclBinding) -> pb.PbAclInfo:
    return pb.PbAclInfo(
        resource_name=rule.resource_name,
        resource_type=rule.resource_type,
        principal_name=rule.principal_name,
        principal_type=rule.principal_type,
        host=rule.host,
        operation_type=rule.operation,
        permission_type=rule.permission,
    )


@asynccontextmanager
async def opened(plain: str, sasl: str) -> AsyncIterator[Walk]:
    async def each(addresses: str, credentials: Credentials | None) -> list[Connection]:
        found = []
        for address in addresses.split(","):
            host, _, port = address.rpartition(":")
            found.append(
                await Connection.open(
                    host, int(port), connect_timeout_ms=20_000, request_timeout_ms=30_000, credentials=credentials
                )
            )
        return found

    admins = await each(plain, None)
    users = await each(sasl, Credentials(USER, USERS[USER]))
    try:
        yield Walk(admins, users)
    finally:
        for connection in (*admins, *users):
            await connection.close()


async def differences(plain: str, sasl: str, database: str, table: str, *, server: str) -> list[str]:
    """Walk all APIs and rights on a table that exists; returns what was answered otherwise than expected."""
    wrong = []
    ours = server == "ours"
    async with opened(plain, sasl) as walk:
        path = pb.PbTablePath(database_name=database, table_name=table)
        info = await walk.admins[0].call(apis.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=path))
        target = Target(database, table, info.table_id)
        observer = binding(OperationType.READ, target.resources["table"], OBSERVER)
        rights: list[tuple[OperationType | None, Resource | None]] = [(None, None)]
        for operation in OperationType:
            if operation is not OperationType.ANY:
                rights += [(operation, target.resources[name]) for name in ("cluster", "database", "table")]
        for granted, on in rights:
            own = [binding(granted, on, USER)] if granted is not None and on is not None else []
            await walk.grant([observer, *own])
            for sample in SAMPLES:
                if sample.api in _NOT_WALKED:
                    continue
                told: str | None = expected(RIGHTS[sample.api.key], sample, target, granted, on)
                if not ours and told is not None:
                    told = on_the_real_server(sample, told, server)
                elif RIGHTS[sample.api.key].stricter is not None and told == PERMITTED:
                    told = None  # the table has no lake, so it is unknown to the lake for every user
                found = await walk.ask(sample, target)
                if found is not None and told is not None and found != told:
                    right = f"{granted.name} on {on}" if granted is not None else "no right"
                    wrong.append(f"{sample} with {right}: {found}, expected {told}")
        await walk.grant([])
    return wrong


_FAILED = "Authentication failed: "
REFUSED_TOKENS: tuple[tuple[str, bytes, str], ...] = (
    ("PLAIN", b"alice", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
    ("PLAIN", b"\0alice\0alice-secret\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
    ("PLAIN", b"\0\0alice-secret", _FAILED + "username not specified"),
    ("PLAIN", b"\0alice\0", _FAILED + "password not specified"),
    ("PLAIN", b"\0alice\0wrong", _FAILED + "Invalid username or password"),
    ("PLAIN", b"\0mallory\0alice-secret", _FAILED + "Invalid username or password"),
    ("PLAIN", b"\0\xff\0alice-secret", _FAILED + "Invalid username or password"),
    (
        "PLAIN",
        b"admin\0alice\0alice-secret",
        _FAILED + "Client requested an authorization id that is different from username",
    ),
    ("SCRAM", b"\0alice\0alice-secret", "SASL server enables [PLAIN] while protocol of client is 'SCRAM'"),
)
"""Mechanism, token, and the text with which it is refused."""
_BEFORE_LOGIN = (
    "The connection has not completed authentication yet. This may be caused by a missing or incorrect configuration "
    "of 'client.security.protocol' on the client side."
)
_PLAIN_LISTENER = (
    "Authenticate protocol not match: protocol of server is 'PLAINTEXT' while protocol of client is 'PLAIN'"
)


async def login_texts(plain: str, sasl: str) -> list[str]:
    """Ask for every refusal of a login; returns the texts that differ."""
    wrong = []

    async def ask(address: str, api: apis.Api[Message, Message], request: Message, text: str) -> None:
        host, _, port = address.split(",")[0].rpartition(":")
        connection = await Connection.open(host, int(port), connect_timeout_ms=20_000, request_timeout_ms=20_000)
        try:
            answer = await connection.call(api, request)
            wrong.append(f"{api.name} was answered with {answer}, expected {text}")
        except FlussError as error:
            if error.message != text:
                wrong.append(f"{error.message!r}, expected {text!r}")
        finally:
            await connection.close()

    for mechanism, token, text in REFUSED_TOKENS:
        await ask(sasl, apis.AUTHENTICATE, pb.AuthenticateRequest(protocol=mechanism, token=token), text)
    await ask(sasl, apis.GET_METADATA, pb.MetadataRequest(), _BEFORE_LOGIN)
    login = pb.AuthenticateRequest(protocol="PLAIN", token=b"\0alice\0alice-secret")
    await ask(plain, apis.AUTHENTICATE, login, _PLAIN_LISTENER)
    return wrong
