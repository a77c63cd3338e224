# SPDX-License-Identifier: Apache-2.0
"""The audit log: who logged in, who changed what, who was refused what.

One line per event in the logger ``fluss.audit``. Names come from clients, so they are cut and their control characters
escaped: a line of the log is always one event. Values of options and properties may be secrets, so only their names are
written.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from fluss.metadata.acl import OperationType, Resource, ResourceType
from fluss.metadata.info import AlterConfigOp
from fluss.protocol import apis
from fluss.server.catalog.acl import Caller

logger = logging.getLogger("fluss.audit")

REPEAT_SECONDS = 60.0
"""The same refusal or login is written once in this time; the next line says how many there were meanwhile."""
LINES_MAX = 200
"""Lines about refusals in that time, of all callers together; and as many about logins."""
_REMEMBERED_MAX = 1_000
_NAME_CHARS_MAX = 200


def printable(text: str, chars_max: int = _NAME_CHARS_MAX) -> str:
    """Return text from a client as it may stand in a log line."""
    cut = text if len(text) <= chars_max else text[:chars_max] + "..."
    return cut if cut.isprintable() else cut.encode("unicode_escape").decode("ascii")


class _Repeats:
    """Lets the first of equal events through, then one in `REPEAT_SECONDS`, and no more than `LINES_MAX` in that time.

    The second bound is for clients that never repeat themselves, such as one that tries user names. What is remembered
    is bounded as well.
    """

    def __init__(self, kind: str, now: Callable[[], float]) -> None:
        self._kind = kind
        self._now = now
        self._events: OrderedDict[Hashable, list[float]] = OrderedDict()
        self._window_start = now()
        self._lines = 0

    def suppressed(self, event: Hashable) -> int | None:
        """Return how many equal events were left out since the last line, or None if this one is left out too."""
        now = self._now()
        known = self._events.get(event)
        if known is not None and now - known[0] < REPEAT_SECONDS:
            known[1] += 1
            return None
        if now - self._window_start >= REPEAT_SECONDS:
            self._window_start, self._lines = now, 0
        self._lines += 1
        if self._lines > LINES_MAX:
            if self._lines == LINES_MAX + 1:
                logger.warning(
                    "more than %d %s in %.0f s; further ones are left out", LINES_MAX, self._kind, REPEAT_SECONDS
                )
            return None
        self._events[event] = [now, 0]
        self._events.move_to_end(event)
        if len(self._events) > _REMEMBERED_MAX:
            self._events.popitem(last=False)
        return 0 if known is None else int(known[1])


class AuditLog:
    """Writes the events of one server."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._refusals = _Repeats("refusals", now)
        self._logins = _Repeats("logins", now)

    def changed(self, caller: Caller, action: str, what: str) -> None:
        """Record a change that was made: of databases, tables, partitions, rules, options."""
        logger.info("%s from %s: %s %s", _who(caller), caller.host, action, printable(what, 1000))

    def denied(self, caller: Caller, operation: OperationType, resource: Resource) -> None:
        """Record a refusal by the access rules."""
        self._refused(
            (str(caller.principal), caller.host, operation, resource),
            "denied: %s from %s has no right to %s on %s",
            _who(caller),
            caller.host,
            operation.name,
            printable(str(resource)),
        )

    def logged_in(self, caller: Caller, mechanism: str) -> None:
        """Record a login. Clients open many connections, so equal ones are written once a minute."""
        event = (str(caller.principal), caller.host, caller.listener, mechanism)
        text, arguments = "login: %s from %s on listener %s by %s", (_who(caller), *event[1:])
        self._write(logging.INFO, self._logins, event, text, *arguments)

    def login_failed(self, peer: str, listener: str, user: str | None, reason: str) -> None:
        """Record a login that was refused. `peer` is an address with or without a port."""
        shown = "without a user name" if user is None else f"as user '{printable(user, 64)}'"
        # Without the port, which differs for every attempt.
        host = peer.rpartition(":")[0] or peer
        self._refused(
            ("login", host, listener, user),
            "login failed: %s from %s on listener %s: %s",
            shown,
            peer,
            listener,
            printable(reason),
        )

    def _refused(self, event: Hashable, text: str, *arguments: object) -> None:
        self._write(logging.WARNING, self._refusals, event, text, *arguments)

    @staticmethod
    def _write(level: int, repeats: _Repeats, event: Hashable, text: str, *arguments: object) -> None:
        left_out = repeats.suppressed(event)
        if left_out is None:
            return
        if left_out:
            text, arguments = text + " (%d more in the meantime)", (*arguments, left_out)
        logger.log(level, text, *arguments)


def _who(caller: Caller) -> str:
    return printable(str(caller.principal))


Describe = Callable[[Any, Any], str]
"""Takes request and response; an empty text means that nothing was changed."""


def _table(request: Any, _: Any = None) -> str:
    return f"{request.table_path.database_name}.{request.table_path.table_name}"


def _partition(request: Any, _: Any) -> str:
    values = ",".join(f"{pair.key}={pair.value}" for pair in request.partition_spec.partition_key_values)
    return f"{_table(request)} ({values})"


def _enum_name(kind: type[AlterConfigOp | OperationType | ResourceType], value: int) -> str:
    try:
        return kind(value).name
    except ValueError:
        return str(value)


def _keys(changes: Iterable[Any]) -> str:
    return ", ".join(f"{_enum_name(AlterConfigOp, item.op_type)} {item.config_key}" for item in changes)


def _altered_table(request: Any, _: Any) -> str:
    parts = [_keys(request.config_changes)] if request.config_changes else []
    parts += [f"ADD COLUMN {item.column_name}" for item in request.add_columns]
    if request.HasField("modify_bucket_count"):
        parts.append(f"BUCKETS {request.modify_bucket_count.new_bucket_count}")
    return f"{_table(request)}: {', '.join(parts)}"


def _altered_database(request: Any, _: Any) -> str:
    parts = [_keys(request.config_changes)] if request.config_changes else []
    if request.HasField("comment"):
        parts.append("COMMENT")
    return f"{request.database_name}: {', '.join(parts)}"


def _rule(acl: Any) -> str:
    resource = f"{_enum_name(ResourceType, acl.resource_type)} {acl.resource_name}"
    who = f"{acl.principal_type}:{acl.principal_name} from {acl.host}"
    return f"{_enum_name(OperationType, acl.operation_type)} on {resource} for {who}"


def _created_rules(_: Any, response: Any) -> str:
    return "; ".join(_rule(item.acl) for item in response.aclRes if not item.HasField("error_code"))


def _dropped_rules(_: Any, response: Any) -> str:
    return "; ".join(_rule(match.acl) for result in response.filter_results for match in result.matching_acls)


def _tag(request: Any, _: Any) -> str:
    return f"tag {request.server_tag} of servers {list(request.server_ids)}"


def _tag_of_racks(request: Any, _: Any) -> str:
    return f"tag {request.server_tag} of racks {list(request.racks)}"


AUDITED: Final[Mapping[int, Describe]] = MappingProxyType(
    {
        apis.CREATE_DATABASE.key: lambda request, _: str(request.database_name),
        apis.DROP_DATABASE.key: lambda request, _: f"{request.database_name}{' CASCADE' if request.cascade else ''}",
        apis.ALTER_DATABASE.key: _altered_database,
        apis.CREATE_TABLE.key: _table,
        apis.DROP_TABLE.key: _table,
        apis.ALTER_TABLE.key: _altered_table,
        apis.CREATE_PARTITION.key: _partition,
        apis.DROP_PARTITION.key: _partition,
        apis.CREATE_ACLS.key: _created_rules,
        apis.DROP_ACLS.key: _dropped_rules,
        apis.ALTER_CLUSTER_CONFIGS.key: lambda request, _: _keys(request.alter_configs),
        apis.ADD_SERVER_TAG.key: _tag,
        apis.REMOVE_SERVER_TAG.key: _tag,
        apis.ADD_SERVER_TAG_BY_RACK.key: _tag_of_racks,
        apis.REMOVE_SERVER_TAG_BY_RACK.key: _tag_of_racks,
        apis.REBALANCE.key: lambda request, _: f"goals {list(request.goals)}",
    }
)
