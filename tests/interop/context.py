# SPDX-License-Identifier: Apache-2.0
"""What a scenario gets into its hands: a server, the client under test, and a helper for what that client lacks."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.interop.cluster import Server
from tests.interop.peers import Peer, PeerError
from tests.interop.tables import needs, table

_counter = itertools.count(1)


class Mismatch(AssertionError):
    """A client was given something else than the scenario expects."""


def same(actual: Any, expected: Any, what: str) -> None:
    if actual != expected:
        raise Mismatch(f"{what}: got {_short(actual)}, expected {_short(expected)}")


def _short(value: Any, limit: int = 600) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + f"… ({len(text)} characters)"


def refused(code: int | Iterable[int], what: str, call: Callable[[], Any]) -> None:
    """The call must fail with one of these error codes."""
    codes = {code} if isinstance(code, int) else set(code)
    try:
        answer = call()
    except PeerError as error:
        if error.code not in codes:
            raise Mismatch(f"{what}: refused with code {error.code} ({error.message}), expected {codes}") from error
        return
    raise Mismatch(f"{what}: answered {_short(answer)}, expected a refusal with code {codes}")


@dataclass
class Context:
    server: Server
    client: Peer
    helper: Peer  # has every capability on this server; does what the client under test cannot express
    database: str = ""
    bucketing: str | None = None
    _open: list[str] = field(default_factory=list)

    def __enter__(self) -> Context:
        self.database = f"interop_{next(_counter)}_{int(time.time()) % 100000}"
        self.connect(self.client)
        if self.helper is not self.client:
            self.connect(self.helper)
        self.client.call("create_database", db=self.database)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.connect(self.helper)
            self.helper.call("drop_database", db=self.database, ignore=True, cascade=True)
        except Exception as error:  # tidying up must not hide the result of the scenario
            print(f"could not drop {self.database}: {error}")

    def connect(self, peer: Peer) -> None:
        options = {"bucketing": self.bucketing} if self.bucketing and "bucketing" in peer.capabilities else {}
        peer.connect(self.server.plain, **options)

    def call(self, op: str, **arguments: Any) -> Any:
        """A command to the client under test."""
        return self.client.call(op, **arguments)

    def create(self, table: dict[str, Any]) -> dict[str, Any]:
        """Creates the table (by the helper where the client cannot say it) and waits until it can be used."""
        creator = self.client if needs(table) <= self.client.capabilities else self.helper
        creator.call("create_table", table=table)
        try:
            self.wait_ready(table, timeout_s=10)
        except Mismatch:
            if self.server.name == "ours":
                raise
            # The coordinator of Apache Fluss now and then misses the news of a table in a fresh database and
            # never elects leaders for it; nothing a client does brings that table to life.
            creator.call("drop_table", table=table)
            creator.call("create_table", table=table)
            self.wait_ready(table)
        return table

    def table(self, name: str, columns: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
        """Creates a table of the database of the scenario."""
        return self.create(table(self.database, name, columns, **options))

    def wait_ready(self, table: dict[str, Any], partition: str | None = None, timeout_s: float = 30) -> None:
        """Until every bucket has a leader that answers; a real cluster elects them after the call has returned."""
        if table.get("partition_keys") and partition is None:
            return
        buckets = list(range(table.get("buckets") or self.client.call("table_info", table=table)["buckets"]))
        more = {"partition": partition} if partition else {}
        deadline = time.monotonic() + timeout_s
        # The helper first: other clients may wait for a leader that never comes longer than a peer may take to answer.
        for peer in {id(self.helper): self.helper, id(self.client): self.client}.values():
            while True:
                try:
                    peer.call("list_offsets", table=table, buckets=buckets, spec="latest", **more)
                    break
                except PeerError as error:
                    if time.monotonic() > deadline:
                        raise Mismatch(f"{table['name']} did not become ready: {error}") from error
                    time.sleep(0.2)

    def create_partition(self, table: dict[str, Any], spec: dict[str, str]) -> None:
        self.client.call("create_partition", table=table, spec=spec)
        self.wait_ready(table, "$".join(spec[key] for key in table["partition_keys"]))

    def scan(self, table: dict[str, Any], want: int, peer: Peer | None = None, **more: Any) -> list[list[Any]]:
        """All records as [partition, bucket, offset, change, row], in the order of their places in the log."""
        buckets = list(range(table.get("buckets") or 1))
        found = (peer or self.client).call("scan", table=table, buckets=more.pop("buckets", buckets), want=want, **more)
        return sorted(found, key=lambda record: (record[0] or "", record[1] or 0, record[2] or 0))

    def rows(self, table: dict[str, Any], want: int, peer: Peer | None = None, **more: Any) -> list[list[Any]]:
        return [record[4] for record in self.scan(table, want, peer, **more)]

    def create_as_is(self, table: dict[str, Any]) -> dict[str, Any]:
        """Creates the table with the client as it is connected now, and waits until it can be used."""
        self.client.call("create_table", table=table)
        self.wait_ready(table)
        return table

    @property
    def acl_helper(self) -> Peer:
        """Who may change access rules while the client under test is logged in as another user."""
        return self.helper
