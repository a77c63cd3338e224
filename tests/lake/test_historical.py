# SPDX-License-Identifier: Apache-2.0
"""Lookups of partitions that have expired: the server answers them from the Paimon lake."""

from __future__ import annotations

import datetime
from collections.abc import Awaitable
from decimal import Decimal
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from tests.lake.support import PARTITIONED, LakeHarness, row

import fluss
from fluss.errors import FlussError, InvalidArgumentError, InvalidConfigError, PartitionNotExistsError
from fluss.metadata import HISTORICAL_PARTITION
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb

T = TypeVar("T")

OLD, OLDER = "20240102", "20240101"
ENABLED = "table.datalake.historical-partition.enabled"
ON = {
    "table.auto-partition.enabled": "true",
    "table.auto-partition.time-unit": "day",
    # Wide enough for the old partitions to be created and written first.
    "table.auto-partition.num-retention": "100000",
    "table.auto-partition.num-precreate": "0",
    ENABLED: "true",
}
SUB = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("sub", pa.string(), nullable=False),
        pa.field("day", pa.string(), nullable=False),
        ("name", pa.string()),
    ]
)


class Expiring:
    """A table whose partitions expire when they are told to."""

    def __init__(self, lake: LakeHarness, name: str, schema: pa.Schema = PARTITIONED, **properties: str) -> None:
        self.lake = lake
        self.keys = [field.name for field in schema if not field.nullable]
        self.path = lake.create(
            name,
            schema,
            primary_keys=self.keys,
            partitions={"day": [OLD, OLDER]},
            bucket_keys=self.keys[:1],
            **{**ON, **properties},
        )
        self.lookup = self.builder().create_lookuper().lookup

    def run(self, work: Awaitable[T]) -> T:
        return self.lake.session.run(work)

    def builder(self) -> Any:
        return self.run(self.lake.session.connection.get_table(self.path)).new_lookup()

    def tiered(self, *rows: dict[str, Any], deletes: list[dict[str, Any]] | None = None) -> None:
        self.lake.upsert(self.path, rows, deletes or [])
        self.lake.tier(self.path)

    def alter(self, **properties: str) -> None:
        named = {f"table.{name.replace('__', '-').replace('_', '.')}": value for name, value in properties.items()}
        self.run(self.lake.session.admin.alter_table(self.path, set_properties=named))

    def expire(self) -> None:
        self.alter(auto__partition_num__retention="1")
        assert self.partitions() == []

    def partitions(self, **options: bool) -> list[str]:
        path = pb.PbTablePath(database_name=self.path.database_name, table_name=self.path.table_name)
        request = pb.ListPartitionInfosRequest(table_path=path, **options)
        runner = self.builder()._runner  # the client has no such option
        answer = self.run(runner.ask(lambda cluster: cluster.call_coordinator(apis.LIST_PARTITION_INFOS, request)))
        assert answer.system_partitions_included == bool(options)
        return [info.partition_spec.partition_key_values[0].value for info in answer.partitions_info]


@pytest.mark.parametrize("sub", [False, True], ids=["default_bucket_key", "bucket_key_is_a_prefix"])
def test_keys_of_expired_partitions_are_found(paimon: LakeHarness, sub: bool) -> None:
    table = Expiring(paimon, f"expired_{sub}", SUB if sub else PARTITIONED)

    def record(i: int, day: str, version: int = 0) -> dict[str, Any]:
        if sub:
            return {"id": i, "sub": f"s{i}", "day": day, "name": f"n{i}-{version}"}
        return row(i, version, day=day)

    def key(i: int, day: str) -> dict[str, Any]:
        return {"id": i, "day": day, **({"sub": f"s{i}"} if sub else {})}

    table.tiered(*(record(i, day) for day in (OLD, OLDER) for i in range(50)))
    table.tiered(*(record(i, OLD, 1) for i in range(10, 20)), deletes=[record(3, OLD)])
    assert table.run(table.lookup(key(7, OLD))) == record(7, OLD)  # the client knows the partition from here on
    table.expire()
    assert table.run(table.lookup(key(7, OLD))) == record(7, OLD)
    assert table.run(table.lookup(key(7, OLDER))) == record(7, OLDER)
    assert table.run(table.lookup(key(12, OLD))) == record(12, OLD, 1)
    assert table.run(table.lookup(key(3, OLD))) is None  # deleted
    assert table.run(table.lookup(key(50, OLD))) is None
    for absent in ("20231231", "21000101", "yesterday", HISTORICAL_PARTITION):
        assert table.run(table.lookup(key(7, absent))) is None
    wanted = [key(i, day) for day in (OLDER, OLD, "20231231") for i in range(51)]
    found = table.run(table.builder().create_lookuper().lookup_many(wanted, missing="null"))
    expected = [record(i, OLDER) if i < 50 else None for i in range(51)]
    expected += [None if i in (3, 50) else record(i, OLD, int(10 <= i < 20)) for i in range(51)]
    assert [None if one["id"] is None else one for one in found.to_pylist()] == expected + [None] * 51
    with fluss.connect(paimon.server.bootstrap_servers) as db:
        front = db.table(str(table.path))
        assert front.get(tuple(key(12, OLD)[name] for name in table.keys)) == record(12, OLD, 1)
        assert front.get(tuple(key(50, OLD)[name] for name in table.keys)) is None


def test_rows_get_the_columns_that_were_added_since(paimon: LakeHarness) -> None:
    table = Expiring(paimon, "evolved")
    table.tiered(row(1, day=OLD))
    table.run(paimon.session.admin.alter_table(table.path, add_columns={"extra": pa.string()}))
    table.tiered({**row(2, day=OLD), "extra": "x"})
    table.expire()
    lookup = table.builder().create_lookuper().lookup
    assert table.run(lookup((1, OLD))) == {**row(1, day=OLD), "extra": None}
    assert table.run(lookup((2, OLD))) == {**row(2, day=OLD), "extra": "x"}


def test_what_is_not_looked_up_in_the_lake(paimon: LakeHarness) -> None:
    table = Expiring(paimon, "others", SUB)
    stored = {"id": 1, "sub": "a", "day": OLD, "name": "n"}
    table.tiered(stored)
    table.expire()
    prefix = table.builder().lookup_by(["day", "id"]).create_lookuper()
    assert table.run(prefix.lookup((OLD, 1))) == []
    inserting = table.builder().enable_insert_if_not_exists().create_lookuper()
    with pytest.raises(InvalidArgumentError, match=f"cannot insert into partition '{OLD}': it has expired"):
        table.run(inserting.lookup((1, "a", OLD)))
    with pytest.raises(FlussError, match="out-of-date"):
        paimon.upsert(table.path, [stored])


def test_the_partition_of_the_server_is_hidden_and_kept(paimon: LakeHarness) -> None:
    table = Expiring(paimon, "hidden")
    assert table.partitions() == [OLD, OLDER]
    assert set(table.partitions(include_system_partitions=True)) == {OLD, OLDER, HISTORICAL_PARTITION}
    for refused in (
        lambda: paimon.session.admin.drop_partition(table.path, {"day": HISTORICAL_PARTITION}),
        lambda: paimon.session.admin.create_partition(table.path, {"day": HISTORICAL_PARTITION}),
    ):
        with pytest.raises(FlussError, match=HISTORICAL_PARTITION):
            table.run(refused())
    with pytest.raises(FlussError, match="can neither be written to nor dropped"):
        paimon.upsert(table.path, [row(1, day=HISTORICAL_PARTITION)])
    table.tiered(row(1, day=OLD))
    table.expire()
    assert table.partitions(include_system_partitions=True) == [HISTORICAL_PARTITION]


def test_the_property_can_be_changed(paimon: LakeHarness) -> None:
    table = Expiring(paimon, "changed", **{ENABLED: "false"})
    assert HISTORICAL_PARTITION not in table.partitions(include_system_partitions=True)
    table.tiered(row(1, day=OLD))
    table.expire()
    assert table.run(table.lookup((1, OLD))) is None
    table.alter(datalake_historical__partition_enabled="true")
    lookup = table.builder().create_lookuper().lookup
    assert table.run(lookup((1, OLD))) == row(1, day=OLD)
    table.alter(datalake_historical__partition_enabled="false")
    assert table.partitions(include_system_partitions=True) == []
    with pytest.raises(PartitionNotExistsError, match="Open the table again"):
        table.run(lookup((1, OLD)))
    assert table.run(table.builder().create_lookuper().lookup((1, OLD))) is None


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"table.auto-partition.enabled": "false"}, "'table.auto-partition.enabled' true"),
        ({"table.datalake.enabled": "false"}, "'table.datalake.enabled' true"),
    ],
)
def test_tables_that_cannot_have_it_are_refused(paimon: LakeHarness, change: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidConfigError, match=problem):
        Expiring(paimon, "refused", **change)
    table = Expiring(paimon, "plain", **{ENABLED: "false", **change})
    with pytest.raises(InvalidConfigError, match=problem):
        table.alter(datalake_historical__partition_enabled="true")


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [False, True]),
    "tiny": (pa.int8(), [-128, 0, 127]),
    "big": (pa.int64(), [-(2**63), -1, 2**63 - 1]),
    "text": (pa.string(), ["", "a", "ä' OR 1", "x" * 100]),
    "bytes": (pa.binary(), [b"", b"\x00\xff", b"abcdefgh1"]),
    "decimal": (pa.decimal128(10, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("12345678.90")]),
    "wide": (pa.decimal128(30, 3), [Decimal("-1.500"), Decimal("123456789012345678901234.125")]),
    "date": (pa.date32(), [datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)]),
    "time": (pa.time32("ms"), [datetime.time(0, 0), datetime.time(23, 59, 59, 999000)]),
    "timestamp": (pa.timestamp("us"), [datetime.datetime(1969, 12, 31, 23, 59, 59, 1), datetime.datetime(2024, 1, 1)]),
    "instant": (
        pa.timestamp("ms", "UTC"),
        [datetime.datetime(2024, 1, 1, 0, 0, 0, 1000, tzinfo=datetime.timezone.utc)],
    ),
    "float": (pa.float32(), [-1.5, 0.0, 3.4028234663852886e38]),
    "double": (pa.float64(), [float("nan"), -1.5, 0.1, 1e300]),
}


@pytest.mark.parametrize("kind", list(KEYS))
def test_keys_of_every_type(paimon: LakeHarness, kind: str) -> None:
    dtype, values = KEYS[kind]
    fields = [pa.field("k", dtype, nullable=False), pa.field("day", pa.string(), nullable=False), ("n", pa.int32())]
    table = Expiring(paimon, f"key_{kind}", pa.schema(fields))
    rows = [{"k": value, "day": OLD, "n": number} for number, value in enumerate(values)]
    table.tiered(*rows)
    table.expire()
    found = table.run(table.builder().create_lookuper().lookup_many([(value, OLD) for value in values]))
    alone = [table.run(table.lookup((value, OLD))) for value in values]
    for one in (found.to_pylist(), alone):
        assert [(str(found["k"]), found["n"]) for found in one] == [(str(row["k"]), row["n"]) for row in rows]
