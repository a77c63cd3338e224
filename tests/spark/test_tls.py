# SPDX-License-Identifier: Apache-2.0
"""Spark over TLS as a user: the data source, its streams, and a catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.conftest import BRIDGE
from tests.tls_support import Authority

import fluss

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Options = dict[str, str]


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Options]:
    """Options of the client for a server that asks for TLS and a password."""
    authority = Authority(tmp_path_factory.mktemp("authority"))
    options = {
        "security.protocol.map": "FLUSS:sasl_ssl",
        "security.ssl.keystore.location": authority.issue("server", host="127.0.0.1"),
        "security.sasl.plain.credentials": "spark:spark-secret",
    }
    with fluss.LocalServer(options=options) as server:
        yield {
            "bootstrap.servers": server.bootstrap_servers,
            "client.security.protocol": "sasl",
            "client.security.sasl.username": "spark",
            "client.security.sasl.password": "spark-secret",
            "client.security.ssl.enabled": "true",
            "client.security.ssl.truststore.location": authority.ca,
        }


@pytest.fixture
def db(login: Options) -> Iterator[fluss.Database]:
    with fluss.connect(options=login) as database:
        yield database


def test_the_data_source(spark: SparkSession, login: Options, db: fluss.Database, tmp_path: Path) -> None:
    db.create_table("sourced", {"id": "bigint", "name": "string"}, primary_key="id")
    frame = spark.range(20).selectExpr("id", "concat('n', id) AS name")
    frame.write.format("fluss").options(**login).mode("append").save("fluss.sourced")
    read = spark.read.format("fluss").options(**login).load("fluss.sourced")
    assert sorted(tuple(row) for row in read.where("id > 17").collect()) == [(18, "n18"), (19, "n19")]
    changes = spark.readStream.format("fluss").options(**login).load("fluss.sourced")
    stream = changes.selectExpr("id + 100 AS id", "name").writeStream.format("fluss").options(**login)
    stream = stream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    assert stream.start("fluss.sourced").awaitTermination(120)
    assert db.table("sourced").to_arrow().num_rows == 40
    unknown = {name: value for name, value in login.items() if "truststore" not in name}
    with pytest.raises(Exception, match="not trusted"):
        spark.read.format("fluss").options(**unknown).load("fluss.sourced").count()


@pytest.mark.skipif(not BRIDGE, reason="the tests run without the jar, which has the catalog")
def test_a_catalog(spark: SparkSession, login: Options, db: fluss.Database) -> None:
    own = spark.newSession()
    own.conf.set("spark.sql.catalog.safe", "fluss.spark.FlussCatalog")
    for name, value in login.items():
        own.conf.set(f"spark.sql.catalog.safe.{name}", value)
    own.sql("CREATE TABLE safe.fluss.kept AS SELECT id, id * 2 AS twice FROM range(5)")
    own.sql("INSERT INTO safe.fluss.kept VALUES (5, 10)")
    assert own.sql("SELECT sum(twice) FROM safe.fluss.kept").collect() == [(30,)]
    assert db.table("kept").to_arrow().num_rows == 6
