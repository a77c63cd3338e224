# SPDX-License-Identifier: Apache-2.0
"""Tables of a server that are registered in the session catalog of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.faults.proxy import FaultProxy, ProxiedServer, Refusal

import fluss
import fluss.spark
from fluss.errors import ConfigError, ErrorCode, FlussError, InvalidArgumentError
from fluss.protocol import apis

if TYPE_CHECKING:
    from tests.spark.conftest import SparkHarness

ROWS = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture(scope="module")
def sql(harness: SparkHarness) -> Iterator[SparkHarness]:
    """Two tables of a database of their own, in the catalog."""
    harness.client.run(harness.client.admin.create_database("sqlshop", None, True))
    harness.create(ROWS, name="sqlshop.events", buckets=1)
    harness.create(ROWS, name="sqlshop.people", primary_key=["id"], buckets=1)
    names = fluss.spark.tables(harness.spark, harness.bootstrap, databases=["sqlshop"])
    assert names == ["sqlshop.events", "sqlshop.people"]
    yield harness
    harness.spark.sql("DROP DATABASE spark_catalog.sqlshop CASCADE")


def test_registered_tables_take_inserts_and_streams(sql: SparkHarness, tmp_path: Path) -> None:
    spark = sql.spark
    spark.sql("INSERT INTO sqlshop.people VALUES (1, 'a'), (2, 'b')")
    spark.sql("INSERT INTO sqlshop.people (name, id) VALUES ('c', 2)")
    spark.sql("INSERT INTO sqlshop.events SELECT * FROM sqlshop.people")
    assert sorted(map(tuple, spark.table("sqlshop.events").collect())) == [(1, "a"), (2, "c")]
    spark.sql("INSERT OVERWRITE sqlshop.events SELECT * FROM sqlshop.people WHERE id = 2")
    assert list(map(tuple, spark.table("sqlshop.events").collect())) == [(2, "c")]
    assert spark.table("sqlshop.people").count() == 2, "the table that was read is not the one that is replaced"
    stream = spark.readStream.table("sqlshop.people").selectExpr("id + 10 as id", "name")
    query = stream.writeStream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    assert query.toTable("sqlshop.events").awaitTermination(60)
    assert sorted(map(tuple, spark.table("sqlshop.events").collect())) == [(2, "c"), (11, "a"), (12, "c")]


def test_other_tables_of_the_catalog_are_left_alone(sql: SparkHarness) -> None:
    sql.spark.sql("DROP TABLE sqlshop.events")
    sql.spark.sql("CREATE TABLE sqlshop.events (id BIGINT) USING parquet")
    with pytest.raises(InvalidArgumentError, match=r"has a table sqlshop\.events of parquet, not of Fluss"):
        fluss.spark.tables(sql.spark, sql.bootstrap, databases=["sqlshop"])
    sql.spark.sql("DROP TABLE sqlshop.events")
    assert "sqlshop.events" in fluss.spark.tables(sql.spark, sql.bootstrap, databases=["sqlshop"])


def test_all_tables_of_a_server_in_sql(harness: SparkHarness) -> None:
    harness.client.run(harness.client.admin.create_database("registered", None, True))
    path = harness.create(pa.schema([("id", pa.int64()), ("s", pa.string())]), name="registered.events")
    harness.put(path, [{"id": i, "s": "x"} for i in range(10)])
    names = fluss.spark.tables(harness.spark, harness.bootstrap)
    assert path in names
    assert harness.spark.sql("select sum(id) from registered.events").collect()[0][0] == 45
    harness.put(path, [{"id": 10, "s": "y"}])
    assert harness.spark.sql("select count(*), max(s) from registered.events where id > 8").collect() == [(2, "y")]
    assert harness.spark.sql("select count(*) from registered.events").collect() == [(11,)]
    assert fluss.spark.tables(harness.spark, harness.bootstrap) == names
    with pytest.raises(ConfigError, match="bootstrap_servers is missing"):
        fluss.spark.tables(harness.spark)


def test_a_table_that_cannot_be_read_is_not_left_out_in_silence(harness: SparkHarness) -> None:
    with FaultProxy() as proxy, ProxiedServer(proxy):
        with fluss.connect(proxy.address) as db:
            db.create_table("refused", "id bigint")
        refusal = Refusal(ErrorCode.STORAGE_EXCEPTION, "the disk does not answer")
        proxy.on_request = lambda api_key, body: refusal if api_key == apis.GET_TABLE_INFO.key else None
        with pytest.raises(FlussError, match="the disk does not answer"):
            fluss.spark.tables(harness.spark, proxy.address, options={"request-timeout": "200 ms"})


def test_each_table_has_a_source_of_its_own(harness: SparkHarness) -> None:
    names = {"a": "b__c", "a__b": "c"}
    for number, (database, table) in enumerate(names.items()):
        harness.client.run(harness.client.admin.create_database(database, None, True))
        harness.put(harness.create(ROWS, name=f"{database}.{table}"), [{"id": number, "name": table}])
    fluss.spark.tables(harness.spark, harness.bootstrap, databases=list(names))
    found = [harness.spark.table(f"spark_catalog.{database}.{table}").collect() for database, table in names.items()]
    assert found == [[(0, "b__c")], [(1, "c")]]
    harness.create(ROWS, name="a.B__C")
    with pytest.raises(InvalidArgumentError, match=r"a\.B__C and a\.b__c differ in case only"):
        fluss.spark.tables(harness.spark, harness.bootstrap, databases=["a"])
    for database in names:
        harness.client.run(harness.client.admin.drop_database(database, True, True))
        harness.spark.sql(f"DROP DATABASE spark_catalog.{database} CASCADE")
