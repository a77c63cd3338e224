# SPDX-License-Identifier: Apache-2.0
"""DELETE, UPDATE and MERGE on primary-key tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from tests.spark.conftest import BRIDGE

if TYPE_CHECKING:
    from tests.spark.conftest import Sql

pytestmark = pytest.mark.skipif(not BRIDGE, reason="the tests run without the jar, which has the catalog")


def table(sql: Sql, name: str, rows: int = 100) -> str:
    """A table of rows (id, id % 2, a text, a number) in three buckets; the number must not be null."""
    path = f"fluss.cat.{name}"
    properties = "TBLPROPERTIES ('primary.key' 'id,k', 'bucket.num' '3')"
    sql(f"CREATE TABLE {path} (id BIGINT, k INT, s STRING, n BIGINT NOT NULL) PARTITIONED BY (k) {properties}")
    sql(f"INSERT INTO {path} SELECT id, cast(id % 2 AS INT), concat('s', id), id * 10 FROM range({rows})")
    return path


def plain(rows: int = 100) -> dict[int, tuple[Any, ...]]:
    return {i: (i, i % 2, f"s{i}", i * 10) for i in range(rows)}


def test_delete(sql: Sql) -> None:
    path = table(sql, "deleted")
    sql(f"DELETE FROM {path} WHERE id < 10 AND s <> 's3'")
    sql(f"DELETE FROM {path} WHERE k = 1 AND id IN (SELECT id + 40 FROM {path} WHERE id > 50)")
    gone = {i for i in range(10) if i != 3} | {i for i in range(91, 100) if i % 2}
    assert sql(f"SELECT * FROM {path}") == [row for i, row in plain().items() if i not in gone]
    sql(f"DELETE FROM {path} WHERE id = 1000")
    assert len(sql(f"SELECT * FROM {path}")) == 100 - len(gone)


def test_update(sql: Sql) -> None:
    path = table(sql, "updated")
    sql(f"UPDATE {path} SET n = n + 1, s = NULL WHERE id % 5 = 0")
    wanted = [(i, k, None, n + 1) if i % 5 == 0 else (i, k, s, n) for i, k, s, n in plain().values()]
    assert sql(f"SELECT * FROM {path}") == wanted
    kinds = sql("SELECT _change_type, count(*) FROM fluss.cat.`updated$changelog` GROUP BY 1")
    assert kinds == [("insert", 100), ("update_after", 20), ("update_before", 20)]
    with pytest.raises(Exception, match="column id is part of the primary key"):
        sql(f"UPDATE {path} SET id = id + 1000")
    assert sql(f"SELECT * FROM {path}") == wanted


def test_merge(sql: Sql) -> None:
    path = table(sql, "merged")
    source = "SELECT id, cast(id % 2 AS INT) AS k, 'new' AS s, id AS n FROM range(80, 120)"
    sql(
        f"""MERGE INTO {path} t USING ({source}) f ON t.id = f.id AND t.k = f.k
        WHEN MATCHED AND f.id < 90 THEN DELETE
        WHEN MATCHED THEN UPDATE SET n = t.n + f.n
        WHEN NOT MATCHED THEN INSERT *
        WHEN NOT MATCHED BY SOURCE AND t.id < 5 THEN DELETE"""
    )
    wanted = {i: row for i, row in plain().items() if not 80 <= i < 90 and i >= 5}
    wanted |= {i: (i, i % 2, f"s{i}", i * 11) for i in range(90, 100)}
    wanted |= {i: (i, i % 2, "new", i) for i in range(100, 120)}
    assert sql(f"SELECT * FROM {path}") == [wanted[i] for i in sorted(wanted)]


def test_merge_is_refused_with_speculation(sql: Sql, speculation: None) -> None:
    path = table(sql, "speculated", 10)
    with pytest.raises(Exception, match=r"spark\.speculation is on: MERGE INTO"):
        sql(f"MERGE INTO {path} t USING (SELECT id FROM range(5)) f ON t.id = f.id WHEN MATCHED THEN DELETE")
    sql(f"UPDATE {path} SET n = 0 WHERE id = 3")
    assert [row for row in sql(f"SELECT * FROM {path}") if row[3] == 0] == [(0, 0, "s0", 0), (3, 1, "s3", 0)]


def test_merge_inserts_a_key_that_it_deletes(sql: Sql) -> None:
    """By another condition than equal keys: Spark finds delete and insert in tasks that need not run at once."""
    path, rows = "fluss.cat.versions", 1000
    settings = {"spark.sql.shuffle.partitions": "4", "spark.sql.adaptive.coalescePartitions.enabled": "false"}
    sql(f"CREATE TABLE {path} (id BIGINT, v BIGINT) TBLPROPERTIES ('primary.key' 'id', 'bucket.num' '2')")
    sql(f"INSERT INTO {path} SELECT id, 1 FROM range({rows})")
    for name, value in settings.items():
        sql.spark.conf.set(name, value)
    try:
        sql(
            f"""MERGE INTO {path} t USING (SELECT id, id % 1 + 2 AS v FROM range({rows})) f ON t.id = f.id AND t.v = f.v
            WHEN NOT MATCHED THEN INSERT *
            WHEN NOT MATCHED BY SOURCE THEN DELETE"""
        )
    finally:
        for name in settings:
            sql.spark.conf.unset(name)
    assert sql(f"SELECT v, count(*) FROM {path} GROUP BY v") == [(2, rows)]


def test_rows_found_by_their_keys_are_those_of_planning(sql: Sql) -> None:
    """A task of UPDATE that runs again must not add to what its first run wrote."""
    path = table(sql, "planned", 10)
    planned = sql.spark.table(path).where("id = 7 AND k = 1")
    before = planned.collect()
    sql(f"UPDATE {path} SET n = n + 1 WHERE id = 7 AND k = 1")
    assert planned.collect() == before
    assert sql(f"SELECT n FROM {path} WHERE id = 7 AND k = 1") == [(71,)]


def test_changes_of_more_rows_than_a_batch(sql: Sql) -> None:
    rows = 150_000
    path = table(sql, "many", rows)
    sql(f"UPDATE {path} SET n = n + 1 WHERE k = 1")
    sql(f"DELETE FROM {path} WHERE k = 0 AND id >= 10")
    expected = (rows // 2 + 5, sum(i * 10 + 1 for i in range(1, rows, 2)) + sum(i * 10 for i in range(0, 10, 2)))
    assert sql(f"SELECT count(*), sum(n) FROM {path}") == [expected]


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ("'team' 'a'", "needs a table with a primary key"),
        ("'primary.key' 'id', 'table.merge-engine' 'first_row'", "merge engine first_row combines rows"),
        ("'primary.key' 'id', 'table.delete.behavior' 'ignore'", "ignores deletes"),
    ],
)
def test_tables_that_cannot_be_changed_by_key_are_refused(sql: Sql, properties: str, message: str) -> None:
    sql(f"CREATE OR REPLACE TABLE fluss.cat.fixed (id INT, n INT) TBLPROPERTIES ({properties})")
    sql("INSERT INTO fluss.cat.fixed VALUES (1, 1)")
    with pytest.raises(PySparkException, match=message):
        sql("DELETE FROM fluss.cat.fixed WHERE n = 1")
    assert sql.rows("cat.fixed") == [(1, 1)]


def test_merge_by_a_field_within_a_column(sql: Sql) -> None:
    """As Auto CDC flows of type 2 do: a version of a row is known by its key and the sequence of its change."""
    path, version = "fluss.cat.history", "`__spark_autocdc_metadata`"
    columns = f"id BIGINT, name STRING, {version} STRUCT<`__RECORD_START_AT`: BIGINT>"
    sql(f"CREATE TABLE {path} ({columns}) TBLPROPERTIES ('primary.key' 'id,_record_start_at')")
    sql(f"INSERT INTO {path} SELECT id % 2, concat('n', id), named_struct('__RECORD_START_AT', id) FROM range(6)")
    source = "SELECT id % 2 AS id, 'new' AS name, named_struct('__RECORD_START_AT', id) AS v FROM range(2, 8)"
    sql(
        f"""MERGE INTO {path} t USING ({source}) f
        ON t.id = f.id AND t.{version}.`__RECORD_START_AT` = f.v.`__RECORD_START_AT`
        WHEN MATCHED AND f.id = 0 THEN DELETE
        WHEN MATCHED THEN UPDATE SET name = f.name
        WHEN NOT MATCHED THEN INSERT (id, name, {version}) VALUES (f.id, f.name, f.v)"""
    )
    found = sql(f"SELECT id, name, {version}.`__RECORD_START_AT` FROM {path}")
    assert found == [(0, "n0", 0), (0, "new", 6), (1, "n1", 1), (1, "new", 3), (1, "new", 5), (1, "new", 7)]
    assert sql.spark.table(path).columns == ["id", "name", version.strip("`")]


def test_names_with_dots_and_backquotes(sql: Sql) -> None:
    """Spark takes a dot outside of backquotes for the way to a field within a column."""
    path = "fluss.cat.dotted"
    sql(
        f"""CREATE TABLE {path} (`a.b` INT, `p.x` STRING, `q``t` INT) PARTITIONED BY (`p.x`)
        TBLPROPERTIES ('primary.key' 'a.b,p.x')"""
    )
    sql(f"INSERT INTO {path} VALUES (1, 'x', 1), (2, 'x', 2), (3, 'y', 3)")
    sql(f"UPDATE {path} SET `q``t` = 9 WHERE `p.x` = 'x' AND `q``t` = 1")
    sql(f"DELETE FROM {path} WHERE `q``t` = 2")
    matched = "WHEN MATCHED THEN UPDATE SET `q``t` = t.`a.b` + 6"
    sql(f"MERGE INTO {path} t USING (SELECT 1 AS k) f ON t.`a.b` = f.k {matched}")
    assert sql.rows("cat.dotted") == [(1, "x", 7), (3, "y", 3)]
    sql(f"INSERT OVERWRITE {path} PARTITION (`p.x` = 'y') VALUES (4, 4)")
    assert sql(f"SELECT `a.b` FROM {path} WHERE `p.x` = 'y'") == [(4,)]


@pytest.mark.parametrize(("key", "refused"), [("at", ("DELETE", "UPDATE", "MERGE")), ("id", ("UPDATE", "MERGE"))])
def test_times_that_spark_cuts_are_not_written_back(sql: Sql, key: str, refused: tuple[str, ...]) -> None:
    fields = [("id", pa.int64()), ("at", pa.timestamp("ns")), ("n", pa.int64())]
    columns = [pa.field(name, of_type, nullable=name != key) for name, of_type in fields]
    sql.harness.create(pa.schema(columns), primary_key=[key], buckets=1, name=f"cat.nanos_{key}")
    path = f"fluss.cat.nanos_{key}"
    row = {"id": 1, "at": np.datetime64("2024-01-01T00:00:00.000000001"), "n": 5}
    sql.harness.put(f"cat.nanos_{key}", [row])
    statements = {
        "UPDATE": f"UPDATE {path} SET n = 2 WHERE n = 5",
        "MERGE": f"MERGE INTO {path} t USING (SELECT 5 AS n) f ON t.n = f.n WHEN MATCHED THEN UPDATE SET n = 2",
        "DELETE": f"DELETE FROM {path} WHERE n = 5",
    }
    for command in refused:
        with pytest.raises(PySparkException, match=f"{command} cannot change .* column at has nanoseconds"):
            sql(statements[command])
        assert sql(f"SELECT n FROM {path}") == [(5,)]
    if "DELETE" not in refused:
        sql(statements["DELETE"])
        assert sql.rows(f"cat.nanos_{key}") == []
