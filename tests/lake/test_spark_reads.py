# SPDX-License-Identifier: Apache-2.0
"""Iceberg and Delta tables that we tiered, read by a real Spark with the connectors of those formats: equal values."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.interop import environment
from tests.lake.spark_reader import canonical
from tests.lake.support import PARTITIONED, LakeHarness, row
from tests.lake.test_tables import ALL, FULL

from fluss import DataTypes
from fluss.lake.rounds import RoundSettings
from fluss.metadata import TablePath

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

SPARK = "4.1"
"""The newest Spark that both connectors are made for."""
POM = Path(__file__).parent / "java" / "spark-pom.xml"
READER = Path(__file__).parent / "spark_reader.py"
MAINTAINED = RoundSettings(compact=True, compact_files_min=2, expire=True, expire_keep_min=1, expire_after_s=-60.0)


@pytest.fixture(scope="module")
def spark() -> tuple[str, str]:
    """A Python with Spark in it, and the jars of both connectors."""
    home = environment.CACHE / f"spark-{SPARK}"
    stamp = hashlib.sha256(POM.read_bytes()).hexdigest()[:12]
    folder = environment.CACHE / f"lake-spark-{stamp}"
    try:
        environment.java()
        if not (home / "ready").exists():
            environment._run([sys.executable, "-m", "venv", str(home)], "an environment for Spark", 300)
            command = [str(home / "bin" / "python"), "-m", "pip", "install", "-q", f"pyspark=={SPARK}.*"]
            environment._retry(command, f"Spark {SPARK} from PyPI")
            (home / "ready").touch()
        if not (folder / "ready").exists():
            command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
            command += [f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
            environment._run(command, "the connectors of Iceberg and Delta from Maven Central", 900)
            (folder / "ready").touch()
    except environment.Unavailable as missing:
        pytest.skip(str(missing))
    wanted = ("iceberg-", "delta-", "unitycatalog-")
    jars = [str(jar) for jar in sorted(folder.glob("*.jar")) if jar.name.startswith(wanted)]
    return str(home / "bin" / "python"), ",".join(jars)


def location(lake: LakeHarness, path: TablePath) -> str:
    if lake.lake_format == "delta":
        return str(lake.warehouse / path.database_name / path.table_name)
    return str(lake.table(path).table.metadata_location)  # type: ignore[attr-defined]


def read(
    spark: tuple[str, str], tables: list[tuple[LakeHarness, TablePath]], folder: Path
) -> dict[str, list[dict[str, Any]]]:
    python, jars = spark
    arguments = [text for lake, path in tables for text in (str(path), lake.lake_format, location(lake, path))]
    known = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARK_HOME")}
    done = subprocess.run(
        [python, str(READER), jars, *arguments],
        capture_output=True,
        text=True,
        timeout=900,
        env=known,
        cwd=folder,  # Spark writes beside where it runs
    )
    assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if "Exception" in line)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def ordered(rows: list[dict[str, Any]], names: list[str]) -> list[str]:
    return sorted(json.dumps({name: one[name] for name in names}, sort_keys=True) for one in rows)


VALUES = {name: value for name, value in FULL.items() if name != "clock"}  # Delta has no TIME


def test_spark_reads_the_same(iceberg: LakeHarness, delta: LakeHarness, spark: tuple[str, str], tmp_path: Path) -> None:
    # Spark knows no TIME in either format.
    schema = pa.schema([field for field in ALL if field.name != "clock"])
    tables: list[tuple[LakeHarness, TablePath]] = []
    for lake in (iceberg, delta):
        types = lake.create("types", schema, buckets=1)
        lake.append(types, [VALUES, {name: (2 if name == "id" else None) for name in schema.names}])
        grown = lake.create("grown")
        parts = lake.create("parts", PARTITIONED, partitions={"day": ["mon", "tue"]})
        for step in range(3):
            lake.append(grown, [{**row(i), **({"extra": i} if step else {})} for i in range(step * 9, step * 9 + 9)])
            lake.append(parts, [row(i, day="mon" if i % 2 else "tue") for i in range(step * 9, step * 9 + 9)])
            for path in (types, grown, parts):
                one = lake.round(settings=MAINTAINED)
                one.maintain(one.run(path), sweep=True)
            if step == 0:
                # The column comes after rows are in the lake, and before those that have it.
                admin = lake.session.admin
                lake.session.run(admin.alter_table(grown, add_columns={"extra": DataTypes.int()}))
        tables += [(lake, types), (lake, grown), (lake, parts)]
    keyed = iceberg.create("keyed", primary_keys=["id"])
    for step in range(3):
        iceberg.upsert(keyed, [row(i, step) for i in range(step * 5, step * 5 + 20)], [{"id": step}])
        iceberg.tier(keyed)
    tables.append((iceberg, keyed))
    found = read(spark, tables, tmp_path)
    for lake, path in tables:
        names = list(lake.session.info(path).schema.column_names)
        table = [canonical(dict(one)) for one in lake.union(path, lake_only=True)]
        for one in table:
            if isinstance(one.get("map"), list):
                one["map"] = dict(one["map"])
        assert ordered(found[str(path)], names) == ordered(table, names), f"{path} in {lake.lake_format}"
        assert found[str(path)], path
