# SPDX-License-Identifier: Apache-2.0
"""The catalog of the bridge: databases and tables of a server in SQL."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import StructType
from tests.spark.conftest import BRIDGE
from tests.spark.test_planner import children
from tests.waiting import wait_for

from fluss.client.blocking_client import BlockingClient
from fluss.errors import TableAlreadyExistError
from fluss.spark.catalog import CatalogCalls

if TYPE_CHECKING:
    from tests.spark.conftest import Sql

pytestmark = pytest.mark.skipif(not BRIDGE, reason="the tests run without the jar, which has the catalog")
MISSING = "TABLE_OR_VIEW_NOT_FOUND"


def test_databases(sql: Sql) -> None:
    sql("CREATE DATABASE fluss.more COMMENT 'for tests' WITH DBPROPERTIES ('team' = 'a')")
    assert ("more",) in sql("SHOW DATABASES IN fluss")
    shown = dict(sql("DESCRIBE DATABASE EXTENDED fluss.more"))
    assert (shown["Comment"], "team" in shown["Properties"]) == ("for tests", True)
    with pytest.raises(PySparkException, match="SCHEMA_ALREADY_EXISTS"):
        sql("CREATE DATABASE fluss.more")
    sql("CREATE DATABASE IF NOT EXISTS fluss.more")
    sql("CREATE TABLE fluss.more.t (id INT)")
    with pytest.raises(PySparkException, match="SCHEMA_NOT_EMPTY"):
        sql("DROP DATABASE fluss.more")
    sql("DROP DATABASE fluss.more CASCADE")
    assert ("more",) not in sql("SHOW DATABASES IN fluss")
    for statement in ("SHOW TABLES IN fluss.more", "DROP DATABASE fluss.more", "CREATE TABLE fluss.more.t (id INT)"):
        with pytest.raises(PySparkException, match="SCHEMA_NOT_FOUND"):
            sql(statement)


def test_create_describe_and_drop_tables(sql: Sql) -> None:
    sql(
        """CREATE TABLE fluss.cat.made (id BIGINT, day STRING COMMENT 'of the visit', n INT NOT NULL)
        PARTITIONED BY (day) CLUSTERED BY (id) INTO 3 BUCKETS COMMENT 'visits'
        TBLPROPERTIES ('primary.key' 'id,day', 'table.log.ttl' '3d', 'team' 'a')"""
    )
    info = sql.info("cat.made")
    assert (info.num_buckets, list(info.bucket_keys), info.get_partition_keys()) == (3, ["id"], ["day"])
    assert (info.comment, info.schema.column("day").comment) == ("visits", "of the visit")
    assert info.get_primary_keys() == ["id", "day"]
    assert (info.properties["table.log.ttl"], info.custom_properties) == ("3d", {"team": "a"})
    assert [str(column.data_type) for column in info.schema.columns][2] == "int NOT NULL"
    described = sql("DESCRIBE TABLE EXTENDED fluss.cat.made")
    assert ("day", "string", "of the visit") in described
    assert ("Comment", "visits", "") in described
    shown = dict(sql("SHOW TBLPROPERTIES fluss.cat.made"))
    assert (shown["primary.key"], shown["bucket.num"], shown["team"]) == ("id,day", "3", "a")
    assert ("cat", "made", False) in sql("SHOW TABLES IN fluss.cat")
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        sql("CREATE TABLE fluss.cat.made (id INT)")
    sql("CREATE TABLE IF NOT EXISTS fluss.cat.made (id INT)")
    sql("DROP TABLE fluss.cat.made")
    for statement in ("DROP TABLE fluss.cat.made", "SELECT * FROM fluss.cat.made", "SELECT * FROM fluss.nope.t"):
        with pytest.raises(PySparkException, match=MISSING):
            sql(statement)
    sql("DROP TABLE IF EXISTS fluss.cat.made")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("(at DATE) PARTITIONED BY (days(at))", r"no partitions of the kind days\(at\)"),
        ("(at DATE) LOCATION '/tmp/t'", "leave LOCATION out"),
        ("(at DATE) OPTIONS (`security.sasl.password` 'x')", r"OPTIONS has 'security\.sasl\.password'"),
        ("(at DATE) TBLPROPERTIES ('primary.key' 'id')", "primary key column 'id' is not among at"),
        ("(at DATE) TBLPROPERTIES ('bucket.num' 'x')", "create.buckets"),
        ("(at INTERVAL DAY)", "Fluss has no type for"),
        ("(at DATE) TBLPROPERTIES ('table.nope' 'x')", r"table\.nope"),
    ],
)
def test_tables_that_cannot_be_are_refused(sql: Sql, statement: str, message: str) -> None:
    with pytest.raises(PySparkException, match=message):
        sql(f"CREATE TABLE fluss.cat.refused {statement}")
    assert ("cat", "refused", False) not in sql("SHOW TABLES IN fluss.cat")


def test_insert_and_select(sql: Sql, tmp_path: Path) -> None:
    sql("CREATE TABLE fluss.cat.people (id BIGINT, name STRING) TBLPROPERTIES ('primary.key' 'id')")
    sql("CREATE TABLE fluss.cat.events (id BIGINT, name STRING)")
    sql("INSERT INTO fluss.cat.people VALUES (1, 'a'), (2, 'b')")
    sql("INSERT INTO fluss.cat.people (name, id) VALUES ('c', 2)")
    assert sql.rows("cat.people") == [(1, "a"), (2, "c")]
    sql.spark.table("fluss.cat.people").writeTo("fluss.cat.events").append()
    sql.spark.table("fluss.cat.people").write.insertInto("fluss.cat.events")
    assert sql.rows("cat.events") == [(1, "a"), (1, "a"), (2, "c"), (2, "c")]
    sql("INSERT OVERWRITE fluss.cat.events SELECT * FROM fluss.cat.events WHERE id = 2")
    assert sql.rows("cat.events") == [(2, "c"), (2, "c")]
    stream = sql.spark.readStream.table("fluss.cat.people").selectExpr("id + 10 as id", "name")
    query = stream.writeStream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    assert query.toTable("fluss.cat.events").awaitTermination(120)
    assert sql.rows("cat.events") == [(2, "c"), (2, "c"), (11, "a"), (12, "c")]
    assert sql("SELECT _change_type, id FROM fluss.cat.`people$changelog` WHERE id = 1") == [("insert", 1)]
    assert sql.spark.catalog.tableExists("fluss.cat.people")


def test_create_table_as_select(sql: Sql) -> None:
    sql.spark.range(5).selectExpr("id", "id % 2 as k").writeTo("fluss.cat.source").create()
    query = "SELECT k, sum(id) n FROM fluss.cat.source GROUP BY k"
    sql(f"CREATE TABLE fluss.cat.ctas TBLPROPERTIES ('primary.key' 'k') AS {query}")
    assert sql.rows("cat.ctas") == [(0, 6), (1, 4)]
    assert sql.info("cat.ctas").get_primary_keys() == ["k"]
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        sql("CREATE TABLE fluss.cat.ctas AS SELECT 1 AS id")
    failing = "SELECT id, assert_true(id < 3, 'on purpose') IS NULL AS b FROM fluss.cat.source"
    with pytest.raises(PySparkException, match="on purpose"):
        sql(f"CREATE TABLE fluss.cat.broken AS {failing}")
    assert ("cat", "broken", False) not in sql("SHOW TABLES IN fluss.cat")


def test_a_table_is_replaced_as_a_whole_or_not_at_all(sql: Sql) -> None:
    sql("CREATE TABLE fluss.cat.replaced TBLPROPERTIES ('primary.key' 'id') AS SELECT 1L AS id, 'a' AS name")
    failing = "SELECT id, assert_true(id < 0, 'on purpose') IS NULL AS b FROM fluss.cat.replaced"
    with pytest.raises(PySparkException, match="on purpose"):
        sql(f"CREATE OR REPLACE TABLE fluss.cat.replaced AS {failing}")
    for refused in ("'table.log.ttl' 'soon'", "'table.datalake.freshness' 'soon'"):
        with pytest.raises(PySparkException, match="soon"):
            sql(f"CREATE OR REPLACE TABLE fluss.cat.replaced TBLPROPERTIES ({refused}) AS SELECT 2L AS id")
    assert sql.rows("cat.replaced") == [(1, "a")]
    sql("CREATE OR REPLACE TABLE fluss.cat.replaced AS SELECT id + 1 AS n FROM fluss.cat.replaced")
    assert (sql.rows("cat.replaced"), sql.info("cat.replaced").has_primary_key()) == ([(2,)], False)
    sql("CREATE OR REPLACE TABLE fluss.cat.replaced (a INT, b INT)")
    assert (sql.rows("cat.replaced"), sql.info("cat.replaced").schema.column_names) == ([], ("a", "b"))
    sql("CREATE OR REPLACE TABLE fluss.cat.brandnew AS SELECT 1 AS id")
    assert sql.rows("cat.brandnew") == [(1,)]
    with pytest.raises(PySparkException, match=r"(?i)not.found"):
        sql("REPLACE TABLE fluss.cat.missing AS SELECT 1 AS id")
    assert not [row for row in sql("SHOW TABLES IN fluss.cat") if "__overwrite_" in row[1]]


def test_saving_a_frame_as_a_table(sql: Sql) -> None:
    frame = sql.spark.range(10).selectExpr("id", "cast(id % 2 as string) as day")
    frame.write.option("create.primary-key", "id,day").partitionBy("day").saveAsTable("fluss.cat.saved")
    info = sql.info("cat.saved")
    assert (info.get_primary_keys(), info.get_partition_keys()) == (["id", "day"], ["day"])
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
        frame.write.saveAsTable("fluss.cat.saved")
    frame.write.mode("ignore").saveAsTable("fluss.cat.saved")
    frame.where("id < 2").write.mode("append").saveAsTable("fluss.cat.saved")
    assert len(sql.rows("cat.saved")) == 10
    frame.write.bucketBy(3, "id").mode("overwrite").saveAsTable("fluss.cat.saved")
    assert (len(sql.rows("cat.saved")), sql.info("cat.saved").num_buckets) == (10, 3)
    made = frame.writeTo("fluss.cat.written").tableProperty("primary.key", "id,day").partitionedBy(f.col("day"))
    made.create()
    made.createOrReplace()
    assert sql.info("cat.written").get_partition_keys() == ["day"]
    assert len(sql.rows("cat.written")) == 10


def test_alter_table(sql: Sql) -> None:
    sql("CREATE TABLE fluss.cat.altered TBLPROPERTIES ('primary.key' 'id') AS SELECT 1L AS id")
    sql("ALTER TABLE fluss.cat.altered ADD COLUMNS (name STRING COMMENT 'new', at TIMESTAMP)")
    sql("INSERT INTO fluss.cat.altered (id, name, at) VALUES (2, 'b', null)")
    assert sql.rows("cat.altered") == [(1, None, None), (2, "b", None)]
    assert sql.info("cat.altered").schema.column("name").comment == "new"
    sql("ALTER TABLE fluss.cat.altered SET TBLPROPERTIES ('table.log.ttl' = '9d', 'team' = 'b')")
    shown = dict(sql("SHOW TBLPROPERTIES fluss.cat.altered"))
    assert (shown["table.log.ttl"], shown["team"]) == ("9d", "b")
    sql("ALTER TABLE fluss.cat.altered UNSET TBLPROPERTIES ('team')")
    assert "team" not in dict(sql("SHOW TBLPROPERTIES fluss.cat.altered"))
    sql("ALTER TABLE fluss.cat.altered SET TBLPROPERTIES ('primary.key' = 'id', 'bucket.num' = '1')")  # as they are
    sql("ALTER TABLE fluss.cat.altered ALTER COLUMN id DROP NOT NULL")  # without effect: it is the key
    for change, message in {
        "RENAME COLUMN name TO title": "no RenameColumn",
        "ADD COLUMN first INT FIRST": "no AddColumn",
        "SET TBLPROPERTIES ('primary.key' = 'name')": r"primary\.key cannot be changed",
        "RENAME TO fluss.cat.other": "cannot rename tables",
        "ADD COLUMN flag BOOLEAN DEFAULT false": "no default values",
        "SET TBLPROPERTIES ('comment' = 'other')": "cannot change the comment of a table",
        "SET LOCATION 'elsewhere'": "cannot change the location of a table",
    }.items():
        with pytest.raises(PySparkException, match=message):
            sql(f"ALTER TABLE fluss.cat.altered {change}")
    sql("CREATE TABLE fluss.cat.strict (n INT NOT NULL)")
    with pytest.raises(PySparkException, match="cannot change whether column 'n' takes NULL"):
        sql("ALTER TABLE fluss.cat.strict ALTER COLUMN n DROP NOT NULL")
    assert sql.rows("cat.altered") == [(1, None, None), (2, "b", None)]


def test_partitions(sql: Sql) -> None:
    sql("CREATE TABLE fluss.cat.parts (n INT, day STRING, hour INT) PARTITIONED BY (day, hour)")
    sql("INSERT INTO fluss.cat.parts VALUES (1, 'mon', 1), (2, 'mon', 2), (3, 'tue', 1)")
    assert sql("SHOW PARTITIONS fluss.cat.parts") == [("day=mon/hour=1",), ("day=mon/hour=2",), ("day=tue/hour=1",)]
    assert sql("SHOW PARTITIONS fluss.cat.parts PARTITION (hour = 2)") == [("day=mon/hour=2",)]
    sql("INSERT OVERWRITE fluss.cat.parts PARTITION (day = 'mon', hour = 1) VALUES (8), (9)")
    sql("INSERT OVERWRITE fluss.cat.parts PARTITION (day = 'wed', hour = 3) VALUES (7)")
    assert sql.rows("cat.parts") == [(2, "mon", 2), (3, "tue", 1), (7, "wed", 3), (8, "mon", 1), (9, "mon", 1)]
    with pytest.raises(PySparkException, match=r"each of the partition columns \[day, hour\]"):
        sql("INSERT OVERWRITE fluss.cat.parts PARTITION (day = 'mon', hour) VALUES (8, 1)")
    others = sql.spark.sql("SELECT 9 AS n, 'tue' AS day, 1 AS hour")
    with pytest.raises(PySparkException, match=r"belongs to partition 'tue\$1', which is not replaced"):
        others.writeTo("fluss.cat.parts").overwrite(f.expr("day = 'mon' AND hour = 1"))
    assert len(sql.rows("cat.parts")) == 5
    sql("ALTER TABLE fluss.cat.parts ADD PARTITION (day = 'sun', hour = 0)")
    sql("ALTER TABLE fluss.cat.parts DROP PARTITION (day = 'tue', hour = 1)")
    sql("TRUNCATE TABLE fluss.cat.parts PARTITION (day = 'mon', hour = 1)")
    assert sql.rows("cat.parts") == [(2, "mon", 2), (7, "wed", 3)]
    assert len(sql("SHOW PARTITIONS fluss.cat.parts")) == 4
    sql("TRUNCATE TABLE fluss.cat.parts")
    assert (sql.rows("cat.parts"), sql.info("cat.parts").get_partition_keys()) == ([], ["day", "hour"])
    sql("CREATE TABLE fluss.cat.moments (n INT, at TIMESTAMP_NTZ) PARTITIONED BY (at)")
    with pytest.raises(PySparkException, match="by a column of type TIMESTAMP_NTZ cannot be listed or named"):
        sql("ALTER TABLE fluss.cat.moments ADD PARTITION (at = TIMESTAMP_NTZ'2024-01-01 00:00:00')")
    sql("CREATE TABLE fluss.cat.whole (n INT)")
    with pytest.raises(PySparkException, match="not partitioned"):
        sql("SHOW PARTITIONS fluss.cat.whole")


def test_partitions_by_other_types_than_texts_are_overwritten(sql: Sql) -> None:
    sql("CREATE TABLE fluss.cat.typed (n INT, d DATE, b BOOLEAN, i INT) PARTITIONED BY (d, b, i)")
    sql("INSERT INTO fluss.cat.typed VALUES (1, date'2024-01-01', true, -5), (2, date'2024-01-02', false, 7)")
    sql("INSERT OVERWRITE fluss.cat.typed PARTITION (d = date'2024-01-01', b = true, i = -5) VALUES (3)")
    sql("INSERT OVERWRITE fluss.cat.typed PARTITION (d = date'2024-01-02', b = false, i = 7) SELECT 4")
    assert [row[0] for row in sql.rows("cat.typed")] == [3, 4]
    rows = sql.spark.table("fluss.cat.typed").where("b").selectExpr("n + 2 AS n", "d", "b", "i")
    rows.writeTo("fluss.cat.typed").overwrite(f.expr("d = '2024-01-01' AND b AND i = -5"))
    assert [row[0] for row in sql.rows("cat.typed")] == [4, 5]
    sql("CREATE TABLE fluss.cat.instants (n INT, at TIMESTAMP_NTZ) PARTITIONED BY (at)")
    with pytest.raises(PySparkException, match="by a column of type TIMESTAMP_NTZ cannot be listed or named"):
        sql("INSERT OVERWRITE fluss.cat.instants PARTITION (at = timestamp_ntz'2024-01-01 00:00:00') SELECT 1")
    with pytest.raises(PySparkException, match="each of the partition columns"):
        rows.writeTo("fluss.cat.typed").overwrite(f.expr("b AND i > 5 AND d = '2024-01-01'"))


def test_virtual_tables_cannot_be_changed(sql: Sql) -> None:
    sql("CREATE TABLE fluss.cat.viewed TBLPROPERTIES ('primary.key' 'id') AS SELECT 1 AS id")
    name = "fluss.cat.`viewed$changelog`"
    for statement in (
        f"DROP TABLE {name}",
        f"TRUNCATE TABLE {name}",
        f"DELETE FROM {name}",
        f"ALTER TABLE {name} ADD COLUMN n INT",
    ):
        with pytest.raises(PySparkException, match=r"cat\.viewed\$changelog can only be read"):
            sql(statement)
    assert sql.rows("cat.viewed") == [(1,)]


def test_metadata_columns_of_log_tables(sql: Sql) -> None:
    sql("CREATE TABLE fluss.cat.logged AS SELECT id, id % 3 AS k FROM range(0, 10, 1, 1)")
    found = sql("SELECT id, _log_offset, _bucket FROM fluss.cat.logged WHERE k = 2")
    assert found == [(2, 2, 0), (5, 5, 0), (8, 8, 0)]
    assert sql("SELECT count(*), count(_commit_timestamp) FROM fluss.cat.logged WHERE _log_offset > 4") == [(5, 5)]
    assert len(sql.rows("cat.logged")[0]) == 2


def test_buckets_of_rows_of_primary_key_tables(sql: Sql) -> None:
    sql("""CREATE TABLE fluss.cat.placed TBLPROPERTIES ('primary.key' 'id', 'bucket.num' '3')
        AS SELECT id, id * 2 AS n FROM range(30)""")
    found = dict(sql("SELECT id, _bucket FROM fluss.cat.placed"))
    assert (len(found), set(found.values())) == (30, {0, 1, 2})
    assert sql("SELECT _bucket FROM fluss.cat.placed WHERE id = 7") == [(found[7],)], "not looked up"
    assert dict(sql("SELECT id, _bucket FROM fluss.cat.`placed$changelog`")) == found
    assert len(sql.rows("cat.placed")[0]) == 2
    with pytest.raises(PySparkException, match="UNRESOLVED_COLUMN"):
        sql("SELECT _log_offset FROM fluss.cat.placed")


def test_virtual_tables_of_the_catalog(sql: Sql) -> None:
    sql("CREATE TABLE fluss.cat.seen (id BIGINT, n INT) TBLPROPERTIES ('primary.key' 'id', 'bucket.num' '1')")
    sql("INSERT INTO fluss.cat.seen VALUES (1, 10)")
    sql("INSERT INTO fluss.cat.seen VALUES (1, 11)")
    sql("DELETE FROM fluss.cat.seen WHERE id = 1")
    changes = "SELECT _change_type, _log_offset, n FROM fluss.cat.`seen$changelog`"
    assert [row[0] for row in sql(changes)] == ["delete", "insert", "update_after", "update_before"]
    assert sql(f"{changes} WHERE _change_type <> 'delete' AND n > 10") == [("update_after", 2, 11)]
    binlog = "FROM fluss.cat.`seen$binlog`"
    assert sql(f"SELECT _log_offset, before.n, after.n {binlog} WHERE _change_type = 'update'") == [(2, 10, 11)]
    assert sql(f"SELECT count(*) {binlog}") == [(3,)]
    assert sql(f"SELECT after.id {binlog} WHERE before IS NULL") == [(1,)]


def test_a_table_as_of_a_snapshot_needs_a_lake(sql: Sql) -> None:
    sql("CREATE TABLE fluss.cat.dry (id INT)")
    with pytest.raises(PySparkException, match=r"cat\.dry has no lake"):
        sql("SELECT * FROM fluss.cat.dry VERSION AS OF 3")


def test_a_new_table_does_not_replace_one_that_was_made_meanwhile(sql: Sql) -> None:
    catalog = CatalogCalls(sql.harness.client)
    draft = {"schema": StructType().add("id", "integer").json(), "partitioning": [], "properties": {}, "options": {}}
    sql("CREATE TABLE fluss.cat.meanwhile AS SELECT 1 AS id")
    with pytest.raises(TableAlreadyExistError):
        catalog.stage_table("cat.meanwhile", replace=False, **draft)
    staged = catalog.stage_table("cat.meanwhile", replace=True, **draft)
    assert staged.startswith("cat.meanwhile__overwrite_")
    catalog.abort_table(staged)
    assert sql.rows("cat.meanwhile") == [(1,)]


def test_a_table_that_is_replaced_is_staged_once(sql: Sql) -> None:
    servers = sql.harness.bootstrap

    def staging(_: int) -> str:
        with BlockingClient({"bootstrap.servers": servers}) as client:
            return ",".join(name for name in client.run(client.admin.list_tables("cat")) if "once__" in name)

    sql.spark.udf.register("staging", staging)
    sql("CREATE TABLE fluss.cat.once TBLPROPERTIES ('Primary.Key' 'id') AS SELECT 1 AS id")
    assert sql.info("cat.once").get_primary_keys() == ["id"]
    sql("CREATE OR REPLACE TABLE fluss.cat.once AS SELECT staging(id) AS names FROM range(1)")
    [(names,)] = sql.rows("cat.once")
    assert names.count("__overwrite_") == 1, names


def test_cached_rows_are_used_until_the_table_is_written_to(sql: Sql) -> None:
    sql("CREATE TABLE fluss.cat.cached AS SELECT 1 AS id")
    frame = sql.spark.table("fluss.cat.cached").cache()
    assert frame.count() == 1
    plan = sql.spark.table("fluss.cat.cached")._jdf.queryExecution().executedPlan().toString()
    assert "InMemoryTableScan" in plan
    sql("INSERT INTO fluss.cat.cached VALUES (2)")
    assert frame.count() == 2
    sql("TRUNCATE TABLE fluss.cat.cached")
    assert frame.count() == 0
    frame.unpersist()


def test_spark_knows_the_size_of_tables(sql: Sql) -> None:
    sql("CREATE TABLE fluss.cat.sized AS SELECT id, id % 3 AS k FROM range(1000)")
    sql("CREATE TABLE fluss.cat.keyed TBLPROPERTIES ('primary.key' 'id') AS SELECT id % 10 AS id FROM range(1000)")
    for table, size in {"sized": 1000 * 16, "keyed": 10 * 8}.items():
        plan = sql.spark.table(f"fluss.cat.{table}")._jdf.queryExecution().optimizedPlan()
        assert str(plan.stats().sizeInBytes()) == str(size)
    for name, value in {"read.changelog": "true", "startingOffsets": "earliest", "scan.as-of.timestamp": "0"}.items():
        plan = sql.spark.read.option(name, value).table("fluss.cat.keyed")._jdf.queryExecution().optimizedPlan()
        assert len(str(plan.stats().sizeInBytes())) > 15, "unknown"
    joined = sql.spark.table("fluss.cat.sized").join(sql.spark.table("fluss.cat.keyed"), "id")
    assert "BroadcastHashJoin" in joined._jdf.queryExecution().executedPlan().toString()
    assert joined.count() == 10
    with pytest.raises(PySparkException, match="ANALYZE TABLE is not supported for v2 tables"):
        sql("ANALYZE TABLE fluss.cat.sized COMPUTE STATISTICS")


def test_the_default_database_needs_no_name(sql: Sql) -> None:
    sql("CREATE TABLE fluss.short (id INT)")
    sql("INSERT INTO fluss.fluss.short VALUES (3)")
    assert sql("SELECT * FROM fluss.short") == [(3,)]
    sql("USE fluss")
    try:
        assert sql("SELECT * FROM short") == [(3,)]
    finally:
        sql("USE spark_catalog.default")
        sql("DROP TABLE fluss.short")


def test_options_of_the_catalog_come_before_those_of_the_session(sql: Sql, tmp_path: Path) -> None:
    spark = sql.spark.newSession()
    spark.conf.set("spark.sql.catalog.other", "fluss.spark.FlussCatalog")
    with pytest.raises(PySparkException, match=r"bootstrap\.servers is missing"):
        spark.sql("SHOW DATABASES IN other")
    spark.conf.set("spark.fluss.bootstrap.servers", sql.harness.bootstrap)
    spark.sql("CREATE TABLE other.cat.optioned AS SELECT 1 AS id")
    spark.conf.set("spark.fluss.bootstrap.servers", "127.0.0.1:1")
    spark.conf.set("spark.sql.catalog.here", "fluss.spark.FlussCatalog")
    spark.conf.set("spark.sql.catalog.here.bootstrap.servers", sql.harness.bootstrap)
    spark.sql("INSERT INTO here.cat.optioned VALUES (2)")
    file = tmp_path / "login.json"
    file.write_text(json.dumps({"bootstrap.servers": sql.harness.bootstrap}))
    spark.conf.set("spark.sql.catalog.filed", "fluss.spark.FlussCatalog")
    spark.conf.set("spark.sql.catalog.filed.client.options.file", str(file))
    spark.sql("INSERT INTO filed.cat.optioned VALUES (3)")
    assert spark.table("here.cat.optioned").count() == 3


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs the files of a Linux kernel")
def test_a_catalog_process_that_died_is_started_again(sql: Sql) -> None:
    def running() -> list[int]:
        found = []
        for one in children(sql.spark._jvm.java.lang.ProcessHandle.current().pid()):
            with contextlib.suppress(OSError):  # it ended meanwhile
                if b"catalog_process" in Path(f"/proc/{one}/cmdline").read_bytes():
                    found.append(one)
        return found

    sql("SHOW DATABASES IN fluss")
    processes = running()  # another one finds the sizes of reads
    assert processes
    for process in processes:
        os.kill(process, signal.SIGKILL)
    # Until then Java counts them as running.
    wait_for(lambda: not any(Path(f"/proc/{process}").exists() for process in processes))
    assert ("cat",) in sql("SHOW DATABASES IN fluss")
    assert len(running()) == 1
