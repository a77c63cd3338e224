# SPDX-License-Identifier: Apache-2.0
"""Which handler answers which API."""

from __future__ import annotations

from collections.abc import Sequence

from fluss.errors import AuthorizationError
from fluss.protocol.apis import api_name
from fluss.server.handlers import acl, admin, cluster, kv, lake, log, metadata, session, snapshots
from fluss.server.handlers.request import Buffer, Handler, RequestContext
from fluss.server.handlers.rights import RIGHTS


async def _refuse(context: RequestContext, body: memoryview) -> Sequence[Buffer]:
    raise AuthorizationError(f"{api_name(context.api_key)} is refused: no access rule is defined for it.")


def register_all(registry: dict[int, Handler]) -> None:
    """Fill the registry; a module of handlers offers ``register(registry)``. An API without a right is refused."""
    for module in (session, log, kv, metadata, admin, acl, lake, cluster, snapshots):
        module.register(registry)
    for key in registry.keys() - RIGHTS.keys():
        registry[key] = _refuse
