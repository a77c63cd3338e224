# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments to every public call, against a real server: an error, in time, and nothing lost.

The walk takes each public method of the objects below by its signature, and gives each parameter every wrong value
while the others have right ones. A new method is walked without a change here; a new required parameter needs a line in
`RIGHT`, and a new class a line in one of the walks.
"""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import fluss
import fluss.aio
from fluss.config import Config

CALL_SECONDS_MAX = 5.0

OF_PYTHON = (TypeError, ValueError, AttributeError, OverflowError)
"""What Python says about a wrong argument is a good answer too; to accept it in silence is not."""

WRONG: tuple[Any, ...] = (
    *(None, object(), 1.5, True, -1, 2**70, 10**400, float("nan")),
    *("", "x", b"", [], {}, [None], [[]], {None: None}),
)

BUCKET = fluss.TableBucket(1, 0)
RIGHT: dict[str, Any] = {
    "acl_filter": None,
    "batch": pa.RecordBatch.from_pydict({"id": [1], "name": ["a"]}),
    "bindings": [],
    "bucket": BUCKET,
    "bucket_id": 0,
    "bucket_ids": [0],
    "bucket_offsets": {0: 0},
    "buckets": [BUCKET],
    "callback": lambda writer_id: None,
    "changes": {},
    "column_indices": [0, 1],
    "column_names": ["id"],
    "columns": ["id", "name"],
    "database_name": "absent",
    "df": pa.table({"id": [1], "name": ["a"]}).to_pandas(),
    "duration_ms": 1000,
    "filters": [],
    "fixed_schema": True,
    "indices": [0],
    "key": 1,
    "keys": [1],
    "lease_id": "lease",
    "mode": "default",
    "model": None,
    "n": 1,
    "name": "absent",
    "names": ["id"],
    "offset_spec": "latest",
    "offsets": {BUCKET: 0},
    "offsets_path": "file:///absent",
    "path": "rows",
    "partition_bucket_offsets": {(1, 0): 0},
    "partition_id": 1,
    "partition_name": "p",
    "partition_spec": {"name": "p"},
    "pk": {"id": 1},
    "predicate": fluss.col("id") > 0,
    "prefix": {"id": 1},
    "priority_goals": [],
    "racks": ["r"],
    "producer_id": "producer",
    "properties": {"key": "value"},
    "query": "select 1",
    "row": {"id": 1, "name": "a"},
    "rows": [{"id": 1, "name": "a"}],
    "server_tag": "PERMANENT_OFFLINE",
    "snapshot_id": 1,
    "snapshots": {BUCKET: 1},
    "source": "id bigint, name string",
    "start_offset": 0,
    "start_offsets": {BUCKET: 0},
    "table": pa.table({"id": [1], "name": ["a"]}),
    "table_descriptor": fluss.TableDescriptor(fluss.Schema(pa.schema([("id", pa.int64())]))),
    "table_id": 1,
    "table_path": "fluss.absent",
    "tablet_servers": [0],
    "timeout_ms": 0,
    "values": {"name": "p"},
}
"""A value that each required parameter takes. No table has the names here: a call may drop what it names."""

INTERNAL = frozenset({"decode_values", "drain", "lookup_blocking", "shut"})
"""Methods without an underscore that only other classes of the package call."""


def parameters_of(function: Any) -> dict[str, inspect.Parameter]:
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    found = inspect.signature(function).parameters
    return {name: parameter for name, parameter in found.items() if parameter.kind not in kinds}


def methods_of(target: Any) -> Iterator[str]:
    for name, member in inspect.getmembers(type(target)):
        if not name.startswith("_") and callable(member) and name not in INTERNAL and not inspect.isclass(member):
            yield name


MAPPINGS = ("str, str", "str, Any", "int, int", "tuple[int, int], int", "TableBucket, int")
SIMPLE: dict[str, Callable[[Any], bool]] = {
    "int": lambda value: type(value) is int,
    "str": lambda value: isinstance(value, str),
    "float": lambda value: type(value) in (int, float),
    "bool": lambda value: True,  # whatever Python takes for true or false
    "None": lambda value: value is None,
    "TablePath": lambda value: isinstance(value, str),
    "Sequence[int]": lambda value: isinstance(value, list),
    "Sequence[str]": lambda value: isinstance(value, list),
    "Iterable[int]": lambda value: isinstance(value, (list, dict)) or value in ("", b""),  # these hold no number
    "Iterable[str]": lambda value: isinstance(value, (list, dict)),
    **dict.fromkeys((f"Mapping[{kinds}]" for kinds in MAPPINGS), lambda value: isinstance(value, dict)),
    "dict[TableBucket, int]": lambda value: isinstance(value, dict),
    **dict.fromkeys(("TableBucket", "OnWriterId", "DatabaseDescriptor", "Predicate", "Config"), lambda value: False),
}
"""What an annotation says about a value, for the annotations that say it."""


def is_refused(parameter: inspect.Parameter, value: Any) -> bool:
    """Whether the annotation of a parameter rules a value out."""
    kinds = [kind.strip() for kind in str(parameter.annotation).split("|")]
    return all(kind in SIMPLE and not SIMPLE[kind](value) for kind in kinds)


def classes_of(face: Any, package: str) -> set[type]:
    """The public classes of a package that have a method with a parameter."""
    found = {getattr(face, name) for name in face.__all__}
    classes = {one for one in found if inspect.isclass(one) and one.__module__.startswith(package)}
    return {one for one in classes if not issubclass(one, enum.Enum) and _takes_arguments(one)}


def _takes_arguments(cls: type) -> bool:
    members = [member for name, member in vars(cls).items() if not name.startswith("_") and name not in INTERNAL]
    return any(len(inspect.signature(member).parameters) > 1 for member in members if inspect.isfunction(member))


class Walk:
    """Calls what it is given, in a thread of its own, so that a call that does not return is seen and named."""

    def __init__(self) -> None:
        self.current: tuple[float, str] | None = None
        self.findings: list[str] = []
        self.walked: set[type] = set()

    def run(self, steps: Callable[[], Awaitable[None]]) -> None:
        errors: list[BaseException] = []

        def work() -> None:
            try:
                asyncio.run(steps())  # type: ignore[arg-type]
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
            current = self.current
            if current is not None and time.monotonic() - current[0] > CALL_SECONDS_MAX:
                pytest.fail(f"{current[1]}: no end after {CALL_SECONDS_MAX:g} s; {self.findings}")
        if errors:
            raise errors[0]
        assert self.findings == [], "\n".join(self.findings)

    async def one(self, text: str, call: Callable[..., Awaitable[None]], named: dict[str, Any]) -> None:
        self.current = (time.monotonic(), text)
        try:
            await call(**named)
        except (fluss.FlussError, *OF_PYTHON):
            pass
        except Exception as error:
            self.findings.append(f"{text}: {type(error).__name__}: {error}")
        finally:
            self.current = None

    async def walk(self, label: str, make: Callable[[], Any], right: dict[str, Any], ready: Any = None) -> None:
        target = make()
        self.walked.add(type(target))
        for name in methods_of(target):
            for wrong_name, parameter in parameters_of(getattr(target, name)).items():
                for value in WRONG:
                    if ready is not None:
                        await finish(ready())
                    if name == "close":
                        target = make()
                    await self._call(label, target, name, wrong_name, parameter, value, right)

    async def _call(
        self, label: str, target: Any, name: str, wrong_name: str, parameter: inspect.Parameter, value: Any, right: Any
    ) -> None:
        text = f"{label}.{name}({wrong_name}={value!r})"
        method = getattr(target, name)
        arguments: list[Any] = []
        named: dict[str, Any] = {}
        for other, about in parameters_of(method).items():
            if other != wrong_name and about.default is not inspect.Parameter.empty:
                continue
            given = value if other == wrong_name else right.get(other, RIGHT.get(other, WRONG))
            assert given is not WRONG, f"RIGHT has no value of {label}.{name}({other}=...)"
            if about.kind is inspect.Parameter.POSITIONAL_ONLY:
                arguments.append(given)
            else:
                named[other] = given
        self.current = (time.monotonic(), text)
        try:
            await finish(method(*arguments, **named))
        except fluss.NonPrimaryKeyTableError:
            pass  # the call is none of this table, whatever its arguments are
        except (fluss.FlussError, *OF_PYTHON):
            pass
        except duckdb.Error:  # what is wrong with a statement is DuckDB's to say
            assert name == "sql", text
        except Exception as error:
            self.findings.append(f"{text}: {type(error).__name__}: {error}")
        else:
            if is_refused(parameter, value):
                self.findings.append(f"{text}: accepted")
        finally:
            self.current = None


async def finish(result: Any) -> None:
    """Carry a call to its end: await it, or take the first item of what it gives."""
    if isinstance(result, AsyncGenerator):
        await anext(result, None)
        await result.aclose()
    elif isinstance(result, Generator):
        next(result, None)
        result.close()
    elif isinstance(result, pa.RecordBatchReader):
        result.read_all()
    elif hasattr(result, "wait"):
        await result.wait()
    elif hasattr(result, "__anext__"):
        async with result:
            await anext(result, None)
    elif hasattr(result, "__next__"):
        with result:
            next(result, None)
    elif inspect.isawaitable(result):
        got = await result
        if hasattr(got, "wait"):
            await got.wait()


async def given(result: Any) -> Any:
    """What a call of either face gives."""
    return await result if inspect.isawaitable(result) else result


@pytest.fixture(autouse=True)
def _nothing_fails_in_the_background(caplog: pytest.LogCaptureFixture, no_complaints: None) -> Iterator[None]:
    """Fail a test in which an argument was accepted and met something later."""
    yield
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.fixture(scope="module")
def server() -> Iterator[fluss.LocalServer]:
    with fluss.LocalServer() as running:
        yield running


FIELDS = [("id", pa.int64()), ("name", pa.string())]


async def prepare(conn: Any, prefix: str) -> None:
    admin = conn.get_admin()
    for name, keys, partitions in (("log", None, None), ("keyed", ["id", "name"], None), ("parted", None, ["name"])):
        schema = fluss.Schema(pa.schema(FIELDS), primary_keys=keys)
        keyed = {"bucket_keys": ["id"]} if keys else {}
        descriptor = fluss.TableDescriptor(schema, bucket_count=1, partition_keys=partitions, **keyed)
        await admin.create_table(f"fluss.{prefix}_{name}", descriptor)
    await admin.create_partition(f"fluss.{prefix}_parted", {"name": "p"})


@pytest.mark.parametrize("face", [fluss, fluss.aio], ids=["fluss", "fluss.aio"])
def test_the_full_client_refuses_wrong_arguments(server: fluss.LocalServer, face: Any) -> None:
    prefix = "plain" if face is fluss else "twin"
    walk = Walk()

    async def steps() -> None:
        config = Config({"bootstrap.servers": server.bootstrap_servers})
        conn = await face.FlussConnection.create(config)
        await prepare(conn, prefix)
        log, keyed, parted = [await conn.get_table(f"fluss.{prefix}_{name}") for name in ("log", "keyed", "parted")]
        writer = log.new_append().create_writer()
        await writer.append((1, "a")).wait()
        upserts = keyed.new_upsert().create_writer()
        await upserts.upsert((1, "a")).wait()
        bucket = fluss.TableBucket(log.get_table_info().table_id, 0)
        key_bucket = fluss.TableBucket(keyed.get_table_info().table_id, 0)
        key_row = {"pk": {"id": 1, "name": "a"}, "keys": [(1, "a")]}
        here = {"bucket": bucket, "start_offsets": {bucket: 0}, "config": config}
        records = await log.new_scan().create_log_scanner()
        batches = await log.new_scan().create_record_batch_log_scanner()
        parts = await parted.new_scan().create_log_scanner()
        multi = conn.get_multi_table()
        path = f"fluss.{prefix}_log"
        multi_scanner = multi.new_multi_table_scan().create_log_scanner()
        [partition] = await conn.get_admin().list_partition_infos(f"fluss.{prefix}_parted")
        partition_id = partition.partition_id
        await parted.new_append().create_writer().append((1, "p")).wait()
        await finish(multi_scanner.subscribe(path, 0, 0))
        records.subscribe(0, 0)
        found, found_of_many = await given(records.poll(5000)), await given(multi_scanner.poll(5000))
        again: dict[str, Callable[[], Any]] = {
            "LogScanner of records": lambda: records.subscribe(0, 0),
            "LogScanner of batches": lambda: batches.subscribe(0, 0),
            "LogScanner of partitions": lambda: parts.subscribe_partition(partition_id, 0, 0),
            "MultiTableLogScanner": lambda: multi_scanner.subscribe(path, 0, 0),
        }
        """So that a poll has something to give, however long it may wait."""
        for label, make, right in (
            ("FlussConnection", lambda: conn, here),
            ("FlussAdmin", conn.get_admin, here),
            ("FlussTable", lambda: log, here),
            ("FlussTable of keys", lambda: keyed, here),
            ("TableScan", log.new_scan, here),
            ("TableScan of keys", keyed.new_scan, {"bucket": key_bucket, "start_offsets": {key_bucket: 0}}),
            ("LogScanner of records", lambda: records, here),
            ("LogScanner of batches", lambda: batches, here),
            ("LogScanner of partitions", lambda: parts, {"partition_id": partition_id}),
            ("BatchScanner", lambda: keyed.new_scan().create_bucket_batch_scanner(key_bucket), {}),
            ("TableBatchScanner", lambda: keyed.new_scan().create_table_batch_scanner(), {}),
            ("AppendWriter", lambda: log.new_append().create_writer(), {}),
            ("UpsertWriter", lambda: keyed.new_upsert().create_writer(), key_row),
            ("TableUpsert", keyed.new_upsert, key_row),
            ("TableLookup", keyed.new_lookup, key_row),
            ("Lookuper", lambda: keyed.new_lookup().create_lookuper(), key_row),
            ("PrefixLookuper", lambda: keyed.new_lookup().lookup_by(["id"]).create_lookuper(), {}),
            ("WriteResultHandle", lambda: writer.append((2, "b")), {}),
            ("KvSnapshotLease", lambda: conn.get_admin().create_kv_snapshot_lease(), {}),
            ("ScanRecords", lambda: found, here),
            ("MultiTableRecords", lambda: found_of_many, {"table_path": path}),
            ("MultiTableScan", multi.new_multi_table_scan, {"table_path": path}),
            ("MultiTableLogScanner", lambda: multi_scanner, {"table_path": path}),
            ("MultiTableWriter", lambda: multi.new_multi_table_write().create_writer(), {"table_path": path}),
        ):
            await walk.walk(label, make, right, again.get(label))
            # What was refused has left nothing behind: everything is as usable as before.
            await writer.append((3, "c")).wait()
        await upserts.upsert((3, "c")).wait()
        assert await keyed.new_lookup().create_lookuper().lookup((3, "c")) == {"id": 3, "name": "c"}
        for scanner in (records, batches, parts, multi_scanner):
            await given(scanner.close())
        await given(conn.close())

    walk.run(steps)
    assert classes_of(face, "fluss.client.") - walk.walked == set()


@pytest.mark.parametrize("face", [fluss, fluss.aio], ids=["fluss", "fluss.aio"])
def test_the_front_door_refuses_wrong_arguments(
    server: fluss.LocalServer, face: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some calls write files
    prefix = "door_plain" if face is fluss else "door_twin"
    walk = Walk()

    async def steps() -> None:
        db = await given(face.connect(server.bootstrap_servers, timeout=30))
        tables = {}
        for kind, keys, partitions in (("log", None, None), ("keyed", ["id", "name"], None), ("parted", None, "name")):
            options = {"primary_key": keys, "partition_by": partitions, "bucket_key": "id" if keys else None}
            tables[kind] = await given(db.create_table(f"{prefix}_{kind}", RIGHT["source"], buckets=1, **options))
        log, keyed, parted = tables.values()
        await given(log.append([(1, "a")]))
        await given(keyed.upsert([(1, "a")]))
        key = {"key": (1, "a"), "keys": [(1, "a")]}
        again = {"Database": lambda: given(db.drop_table("absent", missing_ok=True))}
        for label, make, right in (
            ("Database", lambda: db, {}),
            ("Table", lambda: log, {}),
            ("Table of keys", lambda: keyed, key),
            ("Table of partitions", lambda: parted, {}),
            ("TableWriter", log.writer, {}),
            ("TableWriter of keys", keyed.writer, key),
        ):
            await walk.walk(label, make, right, again.get(label))
            await given(log.append([(3, "c")]))
        await given(keyed.upsert([(3, "c")]))
        assert await given(keyed.get((3, "c"))) == {"id": 3, "name": "c"}
        await given(db.close())

    walk.run(steps)
    assert classes_of(face, "fluss.db.") - walk.walked == set()


SCHEMA = fluss.Schema(pa.schema(FIELDS))
ACL = {"resource_type": fluss.ResourceType.TABLE, "resource_name": "fluss.log"}
ACL |= {"principal_name": "ada", "operation": fluss.OperationType.READ}


async def _create_and_drop(admin: Any, descriptor: fluss.TableDescriptor) -> None:
    await admin.create_table("fluss.absent", descriptor)
    await admin.drop_table("fluss.absent")


async def _create_and_drop_database(admin: Any, descriptor: fluss.DatabaseDescriptor) -> None:
    await admin.create_database("absent", descriptor)
    await admin.drop_database("absent")


CONSTRUCTORS: tuple[tuple[Any, dict[str, Any], Callable[[Any, Any], Awaitable[Any]] | None], ...] = (
    (fluss.AclBinding, ACL, lambda admin, binding: admin.create_acls([binding])),
    (fluss.AclFilter, {}, lambda admin, acl_filter: admin.drop_acls([acl_filter])),
    (fluss.AggFunction, {"name": "sum"}, None),
    (fluss.AlterConfig, {"key": "x"}, lambda admin, change: admin.alter_cluster_configs([change])),
    (fluss.Column, {"name": "c", "data_type": fluss.DataTypes.int()}, None),
    (fluss.Config, {}, None),
    (fluss.DataTypes.row, {"fields": []}, None),
    (fluss.DatabaseDescriptor, {}, _create_and_drop_database),
    (fluss.OffsetSpec.timestamp, {"ts": 1}, lambda admin, spec: admin.list_offsets("fluss.log", [0], spec)),
    (fluss.PartitionSpec, {"spec_map": {"name": "p"}}, None),
    (fluss.Schema, {"schema": pa.schema(FIELDS)}, None),
    (
        fluss.TableBucket,
        {"table_id": 1, "bucket": 0},
        lambda admin, bucket: admin.release_kv_snapshot_lease("lease", [bucket]),
    ),
    (fluss.TableDescriptor, {"schema": SCHEMA}, _create_and_drop),
    (fluss.TablePath, {"database": "a", "table": "b"}, lambda admin, path: admin.table_exists(path)),
    (
        fluss.TieringTable,
        {"table_id": 1, "tiering_epoch": 1, "coordinator_epoch": 1},
        lambda admin, table: admin.lake_tiering_heartbeat(tiering=[table]),
    ),
    (fluss.col, {"name": "id"}, None),
)
"""What makes arguments of calls, what it takes, and a call that takes what it made."""


def test_what_is_made_for_a_call_is_refused_there_or_in_the_call(server: fluss.LocalServer) -> None:
    walk = Walk()

    async def steps() -> None:
        conn = await fluss.aio.FlussConnection.create(Config({"bootstrap.servers": server.bootstrap_servers}))
        admin = conn.get_admin()
        await admin.create_table("fluss.log", fluss.TableDescriptor(SCHEMA))
        for call, right, use in CONSTRUCTORS:

            async def make(call: Any = call, use: Any = use, **named: Any) -> None:
                made = call(**named)
                if use is not None:
                    await use(admin, made)

            for name in parameters_of(call):
                for value in WRONG:
                    await walk.one(f"{call.__name__}({name}={value!r})", make, {**right, name: value})
        await given(conn.close())

    walk.run(steps)


@pytest.mark.parametrize("face", [fluss, fluss.aio], ids=["fluss", "fluss.aio"])
def test_connect_refuses_wrong_arguments(server: fluss.LocalServer, face: Any) -> None:
    walk = Walk()

    async def connect(**named: Any) -> None:
        db = await given(face.connect(**named))
        await given(db.close())

    async def steps() -> None:
        right = {"target": server.bootstrap_servers}
        for name in parameters_of(face.connect):
            # A target of None or a text is right: a temporary folder, or the folder of that name.
            for value in [value for value in WRONG if name != "target" or not isinstance(value, (str, type(None)))]:
                await walk.one(f"connect({name}={value!r})", connect, {**right, name: value})

    walk.run(steps)
