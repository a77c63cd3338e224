# SPDX-License-Identifier: Apache-2.0
"""The authorization matrix: every API with every single right, over the wire."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from tests.server.catalog.support import path, spec
from tests.server.log_support import Client, connected, run, running_server
from tests.server.rights_support import (
    HIDDEN,
    OBSERVER,
    PROBES,
    SAMPLES,
    Sample,
    Target,
    binding,
    descriptor,
    elsewhere,
    errors,
    expected,
    outcome,
    without_names,
)

from fluss.errors import DatabaseNotExistError, ErrorCode, FlussError
from fluss.metadata import DataTypes, Schema, TableBucket, TableDescriptor, TablePath
from fluss.metadata.acl import OperationType, Resource, ResourceType
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials
from fluss.server.catalog.acl import by_resource
from fluss.server.catalog.producers import ProducerEntry
from fluss.server.handlers.registry import register_all
from fluss.server.handlers.request import RequestContext
from fluss.server.handlers.rights import RIGHTS, Scope, operation_of
from fluss.server.server import Server

OPTIONS = {
    "bind_listeners": "FLUSS://127.0.0.1:0,CLIENT://127.0.0.1:0",
    "security_protocol_map": "CLIENT:sasl",
    "security_sasl_plain_jaas_config": 'M required user_bob="bob-secret" user_root="root-secret";',
    "authorizer_enabled": "true",
    "super_users": "User:root",
    "datalake_format": "paimon",
}
GRANTED = [op for op in OperationType if op is not OperationType.ANY]
BOB = "bob"
ATTEMPTS = 4
"""A machine that is busy with other things slows down every instruction: what takes long takes long each time."""


class Matrix:
    """A server with a table that bob may be given one right on."""

    def __init__(self, server: Server, bob: Client, target: Target) -> None:
        self.server = server
        self.bob = bob
        self.target = target

    def grant(self, *rules: tuple[OperationType, Resource]) -> None:
        observer = binding(OperationType.READ, self.target.resources["table"], OBSERVER)
        self.server.authorizer.store.apply(by_resource([observer, *(binding(op, on, BOB) for op, on in rules)]))
        # What requests of the walk use up.
        self.server.catalog.producers.apply(
            ProducerEntry("known", 1 << 60, {self.target.table_id: {(None, 0): 5}}, "User:bob")
        )

    async def ask(self, sample: Sample, target: Target | None = None) -> Message | FlussError:
        try:
            answer: Message = await self.bob.call(sample.api, sample.request(target or self.target))
            return answer
        except FlussError as error:
            return error


@asynccontextmanager
async def matrix(tmp_path: Path) -> AsyncIterator[Matrix]:
    async with (
        running_server(tmp_path, **OPTIONS) as server,
        connected(server) as admin,
        connected(server, "CLIENT", credentials=Credentials("bob", "bob-secret")) as bob,
    ):
        for database in ("hidden", "elsewhere"):
            await admin.send(pb.CreateDatabaseRequest(database_name=database, ignore_if_exists=False))
        for name, table in (("other", descriptor()), ("letters", descriptor(lake=True)), ("parts", partitioned())):
            await admin.create(table, name, "hidden")
        table_id = server.catalog.table(TablePath("hidden", "letters")).table_id
        parts = path("parts", "hidden")
        await admin.send(
            pb.CreatePartitionRequest(table_path=parts, partition_spec=spec(dt="x"), ignore_if_not_exists=False)
        )
        epoch = server.catalog.coordinator_epoch
        yield Matrix(server, bob, Target("hidden", "letters", table_id, coordinator_epoch=epoch))


def partitioned() -> TableDescriptor:
    schema = Schema.builder().column("id", DataTypes.int()).column("dt", DataTypes.string())
    return TableDescriptor(schema.primary_key(["id", "dt"]).build(), partition_keys=["dt"], bucket_count=1)


def test_every_api_has_a_row_and_a_sample() -> None:
    assert set(RIGHTS) == set(apis.APIS)
    assert {sample.api.key for sample in SAMPLES} == set(apis.APIS)


async def test_an_api_without_a_row_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = {key: need for key, need in RIGHTS.items() if key != apis.GET_CLUSTER_HEALTH.key}
    monkeypatch.setattr("fluss.server.handlers.registry.RIGHTS", left)
    async with running_server(tmp_path) as server, connected(server) as client:
        with pytest.raises(FlussError, match="GET_CLUSTER_HEALTH is refused"):
            await client.call(apis.GET_CLUSTER_HEALTH, pb.GetClusterHealthRequest())


def test_each_single_right_permits_what_its_row_says(tmp_path: Path) -> None:
    """All APIs, all operations, on all resources that could matter. One server, about 2,000 requests."""
    wrong: list[str] = []

    async def work() -> None:
        async with matrix(tmp_path) as m:
            rights: list[tuple[OperationType | None, str]] = [(None, "nothing")]
            rights += [(op, on) for op in GRANTED for on in m.target.resources]
            for granted, name in rights:
                on = m.target.resources.get(name)
                for sample in SAMPLES:
                    if sample.api is apis.DROP_TABLE:
                        continue  # walked below, on a table of its own
                    m.grant(*([(granted, on)] if granted is not None and on is not None else []))
                    found = outcome(sample, m.target, await m.ask(sample))
                    wanted = expected(RIGHTS[sample.api.key], sample, m.target, granted, on)
                    if found != wanted:
                        right = f"{granted.name} on {name}" if granted is not None else "no right"
                        wrong.append(f"{sample} with {right}: {found}, expected {wanted}")

    run(work(), 120)
    assert not wrong, "\n".join(wrong[:40])


async def test_drop_table_needs_its_right(tmp_path: Path) -> None:
    sample = next(sample for sample in SAMPLES if sample.api is apis.DROP_TABLE)
    async with matrix(tmp_path) as m:
        gone = replace(m.target, table="gone")
        for granted in GRANTED:
            for on in gone.resources.values():
                m.grant((granted, on))
                found = outcome(sample, gone, await m.ask(sample, gone))
                assert found == expected(RIGHTS[sample.api.key], sample, gone, granted, on), (granted, on)


def _about_nothing(sample: Sample) -> bool:
    """Requests that name neither a table nor a database."""
    of_producers = (apis.GET_PRODUCER_OFFSETS, apis.DELETE_PRODUCER_OFFSETS)
    return RIGHTS[sample.api.key].scope in (Scope.NONE, Scope.CLUSTER) or sample.api in of_producers


def told(answer: Message | FlussError, target: Target) -> Any:
    """All that an answer says, without what the question said."""
    if isinstance(answer, FlussError):
        return answer.error_code, without_names(answer.message, target)
    texts = [(code, without_names(text, target)) for code, text in errors(answer)]
    return texts, without_names(str(answer), target)


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param((), id="no right"),
        pytest.param(((OperationType.ALL, Resource(ResourceType.TABLE, "elsewhere.x")),), id="right on another table"),
    ],
)
@pytest.mark.parametrize(
    "place",
    [
        pytest.param(lambda m: m.target, id="table"),
        pytest.param(lambda m: replace(m.target, bucket=77), id="no such bucket"),
        pytest.param(lambda m: replace(m.target, partition_id=4711), id="no such partition"),
        pytest.param(lambda m: _partition(m), id="partition"),
        pytest.param(lambda m: replace(_partition(m), bucket=77), id="no such bucket of a partition"),
    ],
)
async def test_what_may_not_be_seen_is_answered_like_what_does_not_exist(
    tmp_path: Path, rules: tuple[tuple[OperationType, Resource], ...], place: Callable[[Matrix], Target]
) -> None:
    async with matrix(tmp_path) as m:
        m.grant(*rules)
        hidden = place(m)
        missing = elsewhere(hidden)
        for sample in (*SAMPLES, *PROBES):
            if _about_nothing(sample):
                continue
            first = told(await m.ask(sample, hidden), hidden)
            second = told(await m.ask(sample, missing), missing)
            assert first == second, str(sample)


def _partition(m: Matrix) -> Target:
    entry = m.server.catalog.table(TablePath("hidden", "parts"))
    [partition] = entry.partitions.values()
    return replace(m.target, table="parts", table_id=entry.table_id, partition_id=partition.partition_id)


async def test_a_worker_is_given_the_tables_that_it_may_tier(tmp_path: Path) -> None:
    async with matrix(tmp_path) as m:
        tiering = m.server.catalog.lake.tiering
        tiering.tables[m.target.table_id].freshness_ms = 0
        request = pb.LakeTieringHeartbeatRequest(request_table=True)
        m.grant((OperationType.READ, m.target.resources["table"]))
        assert not (await m.bob.call(apis.LAKE_TIERING_HEARTBEAT, request)).HasField("tiering_table")
        m.grant((OperationType.WRITE, m.target.resources["table"]))
        answer = await m.bob.call(apis.LAKE_TIERING_HEARTBEAT, request)
        assert answer.tiering_table.table_id == m.target.table_id


@pytest.mark.parametrize("form", ["prepared", "inline"])
async def test_lake_offsets_do_not_lie_behind_the_log(tmp_path: Path, form: str) -> None:
    """Also users who may tier a table cannot hide rows from union reads by a large number."""
    async with matrix(tmp_path) as m:
        m.grant((OperationType.WRITE, m.target.resources["table"]))
        api = apis.PREPARE_LAKE_TABLE_SNAPSHOT if form == "prepared" else apis.COMMIT_LAKE_TABLE_SNAPSHOT
        sample = [sample for sample in SAMPLES if sample.api is api][-1]
        request: Any = sample.request(m.target)
        assert not list(errors(await m.bob.call(api, request)))
        part = request.bucket_offsets[0].bucket_offsets if form == "prepared" else request.tables_req[0].buckets_req
        part[0].log_end_offset = 10**15
        [(code, text)] = errors(await m.bob.call(api, request))
        assert code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert "behind the end of its log" in text
        assert m.server.catalog.lake_end_offset(TableBucket(m.target.table_id, 0)) in (None, 0)


async def test_a_right_that_is_taken_away_ends_a_scan(tmp_path: Path) -> None:
    sample = next(sample for sample in SAMPLES if sample.api is apis.SCAN_KV)
    async with matrix(tmp_path) as m:
        m.grant((OperationType.ALL, m.target.resources["table"]))
        insert = next(sample for sample in SAMPLES if sample.writing)
        for key in (bytes(8) + number.to_bytes(8, "little") for number in range(3)):  # as the lake encodes keys
            request: Any = insert.request(m.target)
            request.buckets_req[0].keys[:] = [key]
            assert not list(errors(await m.bob.call(apis.LOOKUP, request)))
        first: Any = sample.request(m.target)
        first.batch_size_bytes = 1
        opened = await m.bob.call(apis.SCAN_KV, first)
        assert opened.has_more_results
        more = pb.ScanKvRequest(scanner_id=opened.scanner_id, call_seq_id=1, batch_size_bytes=1)
        m.grant()
        answer = await m.bob.call(apis.SCAN_KV, more)
        assert outcome(sample, m.target, answer) == HIDDEN
        assert not answer.records


async def test_lists_are_checked_against_many_rules_in_slices(tmp_path: Path) -> None:
    async with matrix(tmp_path) as one:
        database = one.server.catalog.databases["hidden"]
        database.tables.update({f"t{number}": database.tables["other"] for number in range(2_000)})
        one.server.catalog.databases.update({f"d{number}": database for number in range(2_000)})
        rules = [
            binding(OperationType.READ, on, f"user{number}")
            for number in range(300)
            for on in (one.target.resources["database"], Resource.cluster())
        ]
        one.server.authorizer.store.apply(by_resource(rules))
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                began = time.thread_time()
                await asyncio.sleep(0)
                longest = max(longest, time.thread_time() - began)

        watching = asyncio.ensure_future(watch())
        for _ in range(ATTEMPTS):
            longest = 0.0
            assert (await one.bob.call(apis.LIST_DATABASES, pb.ListDatabasesRequest())).database_name == []
            with pytest.raises(DatabaseNotExistError):
                await one.bob.call(apis.LIST_TABLES, pb.ListTablesRequest(database_name="hidden"))
            if longest < 0.05:
                break
        watching.cancel()
        assert longest < 0.05
        for name in [name for name in one.server.catalog.databases if name.startswith("d")]:
            del one.server.catalog.databases[name]


def test_handlers_are_registered_with_their_rows() -> None:
    registry: dict[int, Any] = {}
    register_all(registry)
    assert set(registry) <= set(RIGHTS)
    context = RequestContext(None, None, apis.API_VERSIONS.key, 0, 0)  # type: ignore[arg-type]
    with pytest.raises(LookupError, match="API_VERSIONS names no operation"):
        operation_of(context)


def test_what_changes_data_needs_more_than_reading() -> None:
    """Written down a second time: the other tests here take what is needed from the table itself."""
    wanted: dict[apis.Api[Any, Any], str] = {
        apis.PRODUCE_LOG: "WRITE",
        apis.PUT_KV: "WRITE",
        apis.FETCH_LOG: "READ",
        apis.LOOKUP: "READ",
        apis.SCAN_KV: "READ",
        apis.LIMIT_SCAN: "READ",
        apis.CREATE_TABLE: "CREATE",
        apis.ALTER_TABLE: "ALTER",
        apis.DROP_TABLE: "DROP",
        apis.DROP_DATABASE: "DROP",
        apis.DROP_PARTITION: "WRITE",
        apis.COMMIT_LAKE_TABLE_SNAPSHOT: "WRITE",
        apis.ALTER_CLUSTER_CONFIGS: "ALTER",
        apis.CREATE_ACLS: "ALL",
        apis.DROP_ACLS: "ALL",
    }
    needs = {api: RIGHTS[api.key] for api in wanted}
    assert {api.name: need.operation.name for api, need in needs.items()} == {api.name: n for api, n in wanted.items()}
    assert RIGHTS[apis.LOOKUP.key].writing.name == "WRITE"
