# SPDX-License-Identifier: Apache-2.0
"""Tables of the session catalog, and options from the session and the environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from tests.spark.conftest import BRIDGE

import fluss.spark
from fluss.spark.options import read_options, write_options
from fluss.spark.source import FlussDataSource
from fluss.spark.versions import VERSION

if TYPE_CHECKING:
    from tests.spark.conftest import SparkHarness

ROWS = pa.schema([("id", pa.int64()), ("name", pa.string())])


def test_tables_of_the_session_catalog_are_read_and_written_with_their_options(harness: SparkHarness) -> None:
    spark = harness.spark
    people = harness.create(ROWS, primary_key=["id"], buckets=1)
    harness.put(people, [{"id": 5, "name": "five"}])
    servers = f"`bootstrap.servers` '{harness.bootstrap}'"
    spark.sql(f"CREATE TABLE mine USING fluss OPTIONS (table '{people}', {servers})")
    assert [row.name for row in spark.table("mine").where("id = 5").collect()] == ["five"]
    if BRIDGE:
        spark.sql("INSERT INTO mine SELECT 7L, 'seven'")
        assert harness.lookup(people, {"id": 7}) == {"id": 7, "name": "seven"}
    else:
        with pytest.raises(PySparkException, match=r"no table is named.*fluss\.spark\.configure\(spark\)"):
            spark.sql("INSERT INTO mine SELECT * FROM mine")
        with pytest.raises(PySparkException, match=r"no table is named.*fluss\.spark\.configure\(spark\)"):
            spark.sql("CREATE TABLE late USING fluss OPTIONS (table 'a.x') AS SELECT * FROM mine")
    named = f"`table` = '{people}', `bootstrap.servers` = '{harness.bootstrap}'"
    spark.sql(f"INSERT INTO mine WITH ({named}) SELECT 6L, 'six'")
    assert harness.lookup(people, {"id": 6}) == {"id": 6, "name": "six"}


@pytest.mark.skipif(
    not BRIDGE and VERSION < (4, 1), reason="PySpark 4.0 has options of the session with the bridge only"
)
def test_the_session_gives_servers_and_logins(harness: SparkHarness) -> None:
    path = harness.create(ROWS, buckets=1)
    harness.put(path, [{"id": 1, "name": "a"}])
    spark = harness.spark.newSession()
    spark.conf.set("spark.fluss.bootstrap.servers", harness.bootstrap)
    spark.conf.set("spark.fluss.columns", "id")
    fluss.spark.configure(spark, bridge=BRIDGE)
    assert spark.read.format("fluss").load(path).columns == ["id"]
    spark.range(3).selectExpr("id", "'x' as name").write.format("fluss").mode("append").save(path)
    assert fluss.spark.read(spark, path, where="id < 2").count() == 3


def test_a_file_of_the_query_comes_before_the_session(tmp_path: Path) -> None:
    file = tmp_path / "client.json"
    file.write_text(json.dumps({"bootstrap.servers": "file:1"}))
    source = FlussDataSource({"path": "a.b", "client.options.file": str(file)})
    source.options |= {"session.bootstrap.servers": "session:1", "session.client.id": "me"}
    client = read_options(source._given("reads")).client
    assert (client["bootstrap.servers"], client["client.id"]) == ("file:1", "me")
    options = {"path": "a.b", "session.client.bootstrap.servers": "session:1", "catalog.client.options.file": str(file)}
    assert read_options(FlussDataSource(options)._given("reads")).client == {"bootstrap.servers": "file:1"}


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
