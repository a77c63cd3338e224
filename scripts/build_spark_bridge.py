# SPDX-License-Identifier: Apache-2.0
"""Compile src/spark-bridge into src/fluss/spark/fluss-spark-bridge.jar, against the jars of the installed PySpark.

    python scripts/build_spark_bridge.py

The classes are the same for all supported versions of PySpark. The jar is committed, so that only who changes the
sources needs `javac`; equal classes give an equal jar.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "spark-bridge"
JAR = ROOT / "src" / "fluss" / "spark" / "fluss-spark-bridge.jar"
SERVICES = {"META-INF/services/org.apache.spark.sql.sources.DataSourceRegister": b"fluss.spark.FlussSource\n"}
RELEASE = "17"


def spark_jars() -> Path:
    """The folder of the jars of PySpark."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SystemExit("PySpark is not installed; run: make setup")
    return Path(spec.origin).parent / "jars"


def compiled() -> dict[str, bytes]:
    """The files of the jar, by name."""
    with tempfile.TemporaryDirectory() as folder:
        sources = [str(path) for path in sorted(SOURCES.rglob("*.java"))]
        command = ["javac", "-Werror", "-Xlint:all,-classfile,-path,-processing", "--release", RELEASE]
        subprocess.run([*command, "-cp", f"{spark_jars()}/*", "-d", folder, *sources], check=True)
        classes = {str(path.relative_to(folder)): path.read_bytes() for path in Path(folder).rglob("*.class")}
    return {**SERVICES, **classes}


def write_jar(files: dict[str, bytes], jar: Path) -> None:
    """Write a jar whose bytes depend on the files alone."""
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), files[name], zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    if shutil.which("javac") is None:
        raise SystemExit("javac is missing: install a JDK, version 17 or later")
    write_jar(compiled(), JAR)
