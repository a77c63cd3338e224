# SPDX-License-Identifier: Apache-2.0
"""Tables in SQL: registered ones, those of CREATE TABLE, and options from the session and the environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import fluss.spark
from fluss.errors import InvalidArgumentError
from fluss.spark.options import read_options, write_options

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
    harness.spark.sql("DROP DATABASE sqlshop CASCADE")


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


def test_a_table_of_create_table_is_read_and_refuses_inserts_without_a_name(sql: SparkHarness) -> None:
    spark = sql.spark
    sql.put("sqlshop.people", [{"id": 5, "name": "five"}])
    spark.sql(
        f"CREATE TABLE sqlshop.mine USING fluss OPTIONS (table 'sqlshop.people', `bootstrap.servers` '{sql.bootstrap}')"
    )
    assert [row.name for row in spark.table("sqlshop.mine").where("id = 5").collect()] == ["five"]
    with pytest.raises(PySparkException, match="no table is named"):
        spark.sql("INSERT INTO sqlshop.mine SELECT * FROM sqlshop.people")
    with pytest.raises(PySparkException, match="no table is named"):
        spark.sql("CREATE TABLE sqlshop.ctas USING fluss OPTIONS (table 'sqlshop.x') AS SELECT * FROM sqlshop.people")
    servers = f"`bootstrap.servers` = '{sql.bootstrap}'"
    spark.sql(f"INSERT INTO sqlshop.mine WITH (`table` = 'sqlshop.people', {servers}) SELECT 6L, 'six'")
    assert sql.lookup("sqlshop.people", {"id": 6}) == {"id": 6, "name": "six"}


def test_other_tables_of_the_catalog_are_left_alone(sql: SparkHarness) -> None:
    sql.spark.sql("DROP TABLE sqlshop.events")
    sql.spark.sql("CREATE TABLE sqlshop.events (id BIGINT) USING parquet")
    with pytest.raises(InvalidArgumentError, match=r"has a table sqlshop\.events of parquet, not of Fluss"):
        fluss.spark.tables(sql.spark, sql.bootstrap, databases=["sqlshop"])
    sql.spark.sql("DROP TABLE sqlshop.events")
    assert "sqlshop.events" in fluss.spark.tables(sql.spark, sql.bootstrap, databases=["sqlshop"])


def test_the_session_gives_servers_and_logins(sql: SparkHarness) -> None:
    path = sql.create(ROWS, buckets=1)
    sql.put(path, [{"id": 1, "name": "a"}])
    spark = sql.spark.newSession()
    spark.conf.set("spark.fluss.bootstrap.servers", sql.bootstrap)
    spark.conf.set("spark.fluss.columns", "id")
    fluss.spark.configure(spark)
    assert spark.read.format("fluss").load(path).columns == ["id"]
    spark.range(3).selectExpr("id", "'x' as name").write.format("fluss").mode("append").save(path)
    assert fluss.spark.read(spark, path, where="id < 2").count() == 3


def test_the_environment_gives_servers_and_logins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUSS_BOOTSTRAP_SERVERS", "host:9123")
    monkeypatch.setenv("FLUSS_USER", "me")
    monkeypatch.setenv("FLUSS_PASSWORD", "secret")
    client = read_options({"path": "a.b"}).client
    assert client["bootstrap.servers"] == "host:9123"
    assert (client["security.sasl.username"], client["security.sasl.password"]) == ("me", "secret")
    given = write_options({"path": "a.b", "bootstrap.servers": "other:1", "security.sasl.username": "you"})
    assert given.client["bootstrap.servers"] == "other:1"
    assert given.client["security.sasl.username"] == "you"
