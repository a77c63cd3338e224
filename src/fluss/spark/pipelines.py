# SPDX-License-Identifier: Apache-2.0
"""Declarative pipelines of Spark on Fluss tables: a project to start from, and a Spark that runs it.

Spark runs such pipelines through Spark Connect (`pyspark.pipelines`). Its streaming tables and materialized views are
tables of the catalog `fluss`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from fluss.config import Login
from fluss.errors import InvalidArgumentError, MissingDependencyError
from fluss.spark.bridge import bridge_jar
from fluss.spark.launch import LOOPBACK, environment, session
from fluss.spark.presets import CATALOG, FLOWS

SPEC = "spark-pipeline.yml"
_CLIENT_PACKAGES = ("pyspark.pipelines", "grpc", "grpc_status", "google.rpc", "zstandard", "yaml")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")

_FILES = {
    SPEC: """\
name: {name}
storage: {storage}
catalog: fluss
database: {database}
libraries:
  - glob:
      include: transformations/**
""",
    "transformations/orders.py": '''\
"""The orders: each row of each CSV file in the folder data, once."""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

DATA = Path(__file__).resolve().parents[1] / "data"
COLUMNS = "id bigint, customer bigint, country string, amount double"


@dp.table
def orders() -> DataFrame:
    spark = SparkSession.active()
    return spark.readStream.schema(COLUMNS).option("header", True).csv(str(DATA))
''',
    "transformations/sales.sql": """\
-- Computed anew in each run; rows can be looked up by country.
CREATE MATERIALIZED VIEW sales
TBLPROPERTIES ('primary.key' = 'country')
AS SELECT country, count(*) AS orders, round(sum(amount), 2) AS revenue
FROM orders
GROUP BY country;
""",
    "data/orders-1.csv": "id,customer,country,amount\n1,1,FR,10.5\n2,2,JP,20.0\n3,1,FR,4.5\n",
    "test_pipeline.py": '''\
"""Run the pipeline on the data of the project: pytest"""

import subprocess
import sys
from pathlib import Path

import fluss

PROJECT = Path(__file__).parent


def test_all_orders_are_in_the_sales() -> None:
    subprocess.run([sys.executable, "-m", "fluss", "pipeline", "run", str(PROJECT)], check=True)
    with fluss.connect(str(PROJECT / ".fluss"), database="{database}") as db:
        [(orders, counted)] = db.sql("select (select count(*) from orders), (select sum(orders) from sales)").fetchall()
        assert orders == counted > 0
''',
    ".gitignore": ".fluss/\n.pipeline/\n",
}


def write_project(folder: Path) -> list[Path]:
    """Write a small pipeline that can be run: a spec, flows in Python and SQL, data and a test."""
    folder = folder.resolve()
    if not _NAME.fullmatch(folder.name):
        raise InvalidArgumentError(
            f"pipeline {folder.name!r:.100}: the name becomes that of a database; use letters, digits, _ and -"
        )
    if folder.exists():
        raise InvalidArgumentError(f"'{folder}' exists; choose another name, or remove it")
    database = folder.name.replace("-", "_")
    values = {"{name}": folder.name, "{database}": database, "{storage}": (folder / ".pipeline").as_uri()}
    written = []
    for name, text in _FILES.items():
        for mark, value in values.items():
            text = text.replace(mark, value)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def database_of(spec: Path) -> str | None:
    """The database of a pipeline whose catalog is Fluss; None for others."""
    import yaml

    document = yaml.safe_load(spec.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or document.get("catalog") != "fluss":
        return None
    return document.get("database", document.get("schema"))


def check_installed() -> None:
    """Raise MissingDependencyError where the client of Spark's pipelines cannot run."""
    missing = [name for name in _CLIENT_PACKAGES if not _is_installed(name)]
    if missing:
        raise MissingDependencyError(
            f"pipelines need PySpark 4.1 or later with its extra 'pipelines'; missing: {', '.join(missing)}. "
            "Run: pip install 'pyspark[pipelines]'"
        )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


@contextlib.contextmanager
def connect_server(master: str, servers: str, login: Login) -> Iterator[str]:
    """Run a Spark with the catalog `fluss` that clients of Spark Connect can use; yields its address.

    It ends with this process. Clients need the token in its address: other users of the machine do not get in.

    Args:
        master: Where it runs its tasks, such as `local[2]`.
        servers: The server of its tables.
        login: As whom it connects. It is in its environment, not among its settings, which many can see.
    """
    port, token = _free_port(), secrets.token_urlsafe(32)
    settings = {
        **CATALOG,
        **FLOWS,
        "spark.jars": bridge_jar(),
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
        "spark.log.level": "FATAL",  # the client prints what fails; the server logs each end of a session as an error
    }
    with environment({**_variables(servers, login), "SPARK_CONNECT_AUTHENTICATE_TOKEN": token}):
        spark = session("fluss-pipeline", master=master, config=settings)
    try:
        yield f"sc://localhost:{port}/;token={token}"  # for other names a token needs TLS
    finally:
        spark.stop()


def _variables(servers: str, login: Login) -> dict[str, str]:
    """What `environment_options` reads."""
    known = {"USER": login.user, "PASSWORD": login.password, "CA": login.ca, "FINGERPRINT": login.fingerprint}
    known |= {"BOOTSTRAP_SERVERS": servers, "TLS": "1" if login.tls else None}
    return {f"FLUSS_{name}": value for name, value in known.items() if value is not None}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((LOOPBACK, 0))
        return int(one.getsockname()[1])


def run_pipeline(spec: Path, remote: str) -> bool:
    """Bring all tables of a pipeline up to date; returns whether that succeeded. Spark prints what happens."""
    command = [sys.executable, "-m", "pyspark.pipelines.cli", "run", "--spec", str(spec)]
    return subprocess.run(command, env={**os.environ, "SPARK_REMOTE": remote}, check=False).returncode == 0
