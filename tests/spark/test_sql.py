# SPDX-License-Identifier: Apache-2.0
"""Tables in SQL: registered ones, those of CREATE TABLE, and options from the session and the environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from tests.spark.conftest import BRIDGE

import fluss.spark
from fluss.errors import InvalidArgumentError, TableAlreadyExistError
from fluss.metadata import TablePath
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


def test_create_table_makes_and_finds_tables(sql: SparkHarness, tmp_path: Path) -> None:
    spark = sql.spark
    servers = f"`bootstrap.servers` '{sql.bootstrap}'"
    spark.sql(
        f"""-- with everything that Fluss has
        CREATE TABLE sqlshop.made (id BIGINT, day STRING COMMENT 'of the visit', n INT NOT NULL) USING fluss
        OPTIONS ({servers}, `create.primary-key` 'id,day') PARTITIONED BY (day) CLUSTERED BY (id) INTO 3 BUCKETS
        COMMENT 'visits' TBLPROPERTIES ('table.log.ttl' '3d')"""
    )
    info = sql.client.info(TablePath("sqlshop", "made"))
    assert (info.num_buckets, list(info.bucket_keys), info.get_partition_keys()) == (3, ["id"], ["day"])
    assert (info.comment, info.schema.column("day").comment) == ("visits", "of the visit")
    assert info.get_primary_keys() == ["id", "day"]
    assert info.properties["table.log.ttl"] == "3d"
    assert [str(column.data_type) for column in info.schema.columns][2] == "int NOT NULL"
    spark.sql("INSERT INTO sqlshop.made VALUES (1, 'mon', 10), (2, 'tue', 20)")
    spark.sql(f"CREATE TABLE sqlshop.again USING fluss OPTIONS (table 'sqlshop.made', {servers})")
    spark.sql("INSERT INTO sqlshop.again SELECT id, day, n + 1 FROM sqlshop.made WHERE id = 2")
    spark.range(1).selectExpr("3L as id", "'wed' as day", "30 as n").writeTo("sqlshop.again").append()
    assert sorted(map(tuple, spark.table("sqlshop.made").collect())) == [(1, "mon", 10), (2, "tue", 21), (3, "wed", 30)]
    stream = spark.readStream.table("sqlshop.again").selectExpr("id + 10 as id", "day", "n")
    query = stream.writeStream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    assert query.toTable("sqlshop.made").awaitTermination(60)
    assert spark.table("sqlshop.again").count() == 6
    columns = "id BIGINT, day STRING, n INT"
    spark.sql(f"CREATE TABLE sqlshop.third ({columns}) USING fluss OPTIONS (table 'sqlshop.made', {servers})")
    with pytest.raises(TableAlreadyExistError, match="exists with other columns: struct<id:bigint,day"):
        spark.sql(f"CREATE TABLE sqlshop.fourth (id INT) USING fluss OPTIONS (table 'sqlshop.made', {servers})")
    with pytest.raises(InvalidArgumentError, match=r"no partitions of the kind days\(at\)"):
        spark.sql(f"CREATE TABLE sqlshop.fourth (at DATE) USING fluss OPTIONS ({servers}) PARTITIONED BY (days(at))")
    with pytest.raises(InvalidArgumentError, match="leave LOCATION out"):
        spark.sql(f"CREATE TABLE sqlshop.fourth (at DATE) USING fluss OPTIONS ({servers}) LOCATION '/tmp/t'")
    with pytest.raises(PySparkException, match=r"sqlshop\.fourth' does not exist"):
        spark.sql(f"CREATE TABLE sqlshop.fourth USING fluss OPTIONS ({servers})")


def test_create_table_as_select(sql: SparkHarness) -> None:
    spark = sql.spark
    servers = f"`bootstrap.servers` '{sql.bootstrap}'"
    sql.put("sqlshop.people", [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    query = "WITH few AS (SELECT * FROM sqlshop.people WHERE id = 2) SELECT id, upper(name) AS name FROM few"
    spark.sql(f"CREATE TABLE sqlshop.ctas USING fluss OPTIONS ({servers}, `create.primary-key` 'id') AS {query}")
    assert sql.lookup("sqlshop.ctas", {"id": 2}) == {"id": 2, "name": "B"}
    spark.sql("INSERT INTO sqlshop.ctas SELECT * FROM sqlshop.people WHERE id = 1")
    assert sorted(map(tuple, spark.table("sqlshop.ctas").collect())) == [(1, "a"), (2, "B")]
    spark.sql(f"CREATE TABLE IF NOT EXISTS sqlshop.ctas USING fluss OPTIONS ({servers}) AS SELECT 1 AS id")
    assert spark.table("sqlshop.ctas").count() == 2
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        spark.sql(f"CREATE TABLE sqlshop.ctas USING fluss OPTIONS ({servers}) AS SELECT 1 AS id")
    with pytest.raises(TableAlreadyExistError, match=r"sqlshop\.people exists, and CREATE TABLE AS SELECT makes a new"):
        spark.sql(f"CREATE TABLE sqlshop.x USING fluss OPTIONS (table 'sqlshop.people', {servers}) AS SELECT 1 AS id")
    failing = "SELECT id, assert_true(id < 0, 'on purpose') IS NULL AS b FROM sqlshop.people"
    with pytest.raises(PySparkException, match="on purpose"):
        spark.sql(f"CREATE TABLE sqlshop.broken USING fluss OPTIONS ({servers}) AS {failing}")
    assert not sql.client.run(sql.client.admin.table_exists(TablePath("sqlshop", "broken")))
    assert not spark.catalog.tableExists("sqlshop.broken")


def test_a_session_that_was_not_configured_reads_tables_and_inserts_or_is_told_how(sql: SparkHarness) -> None:
    spark = sql.spark

    def plain(statement: str) -> None:
        type(spark).sql.__wrapped__(spark, statement)

    sql.put("sqlshop.people", [{"id": 5, "name": "five"}])
    servers = f"`bootstrap.servers` '{sql.bootstrap}'"
    plain(f"CREATE TABLE sqlshop.mine USING fluss OPTIONS (table 'sqlshop.people', {servers})")
    assert [row.name for row in spark.table("sqlshop.mine").where("id = 5").collect()] == ["five"]
    if BRIDGE:
        plain("INSERT INTO sqlshop.mine SELECT 7L, 'seven'")
        assert sql.lookup("sqlshop.people", {"id": 7}) == {"id": 7, "name": "seven"}
    else:
        with pytest.raises(PySparkException, match=r"no table is named.*fluss\.spark\.configure\(spark\)"):
            plain("INSERT INTO sqlshop.mine SELECT * FROM sqlshop.people")
        with pytest.raises(PySparkException, match=r"no table is named.*fluss\.spark\.configure\(spark\)"):
            plain("CREATE TABLE sqlshop.late USING fluss OPTIONS (table 'sqlshop.x') AS SELECT * FROM sqlshop.people")
    named = f"`table` = 'sqlshop.people', `bootstrap.servers` = '{sql.bootstrap}'"
    plain(f"INSERT INTO sqlshop.mine WITH ({named}) SELECT 6L, 'six'")
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
