# SPDX-License-Identifier: Apache-2.0
"""`CREATE TABLE … USING fluss` in `spark.sql`, with columns, with AS SELECT, or for a table that exists.

Spark keeps the options of such a statement from every Python source that is written to, so that an INSERT could not
know its table. In a session that this package configured, the statement is taken apart with Spark's own parser: the
Fluss table is created where that is asked for, and the table of the catalog gets a source of its own, which knows its
options, as those of `fluss.spark.tables()` do.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from fluss.client.blocking_client import BlockingClient
from fluss.errors import InvalidArgumentError, TableAlreadyExistError
from fluss.metadata import TablePath
from fluss.spark.catalog import preset_options, provider_of, register, session_options
from fluss.spark.creation import create_table
from fluss.spark.options import OPTIONS, write_options
from fluss.spark.types import all_nullable, to_spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MARK = "_fluss_wrapped"
_WORTH_PARSING = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*create\s+table\b.*?\busing\s+(`?)fluss\1(?![\w`])", re.IGNORECASE | re.DOTALL
)
_CREATE = "create."


def wrap_sql() -> None:
    """Have `spark.sql` create tables with `USING fluss`; every other statement goes to Spark as it is."""
    from pyspark.sql import SparkSession

    original = SparkSession.sql
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def sql(self: SparkSession, sqlQuery: str, args: Any = None, **kwargs: Any) -> DataFrame:  # noqa: N803
        if not args and not kwargs and isinstance(sqlQuery, str) and _WORTH_PARSING.match(sqlQuery):
            statement = _Statement.parsed(self, sqlQuery)
            if statement is not None:
                return statement.run()
        return original(self, sqlQuery, args, **kwargs)

    setattr(sql, _MARK, True)
    SparkSession.sql = sql


class _Statement:
    """A CREATE TABLE statement for a table that is not in the catalog yet."""

    def __init__(self, spark: SparkSession, plan: Any, path: TablePath) -> None:
        if plan.tableSpec().location().isDefined():
            raise InvalidArgumentError(f"CREATE TABLE {path}: a Fluss table lies on its server; leave LOCATION out")
        self._spark = spark
        self._plan = plan
        self._path = path
        self._of_query = plan.nodeName() == "CreateTableAsSelect"
        given = {**session_options(spark), **self._options()}
        given.setdefault("table", str(path))
        self._client, preset = preset_options(given)
        self._given = given
        self._preset = {name: text for name, text in preset.items() if not name.lower().startswith(_CREATE)}
        self._target = write_options(_of_writes(preset)).table_path

    @classmethod
    def parsed(cls, spark: SparkSession, text: str) -> _Statement | None:
        """The statement; None if Spark is to run it: other kinds, other catalogs, tables that the catalog has."""
        session = spark._jsparkSession
        if spark.conf.get("spark.sql.catalogImplementation") != "in-memory":
            return None  # such a catalog outlives the session, and the sources of single tables do not
        plan = session.sessionState().sqlParser().parsePlan(text)
        if plan.nodeName() not in ("CreateTable", "CreateTableAsSelect"):
            return None
        provider = plan.tableSpec().provider()
        if provider.isEmpty() or provider.get().lower() != "fluss":
            return None
        if plan.name().nodeName() != "UnresolvedIdentifier":
            return None
        parts = _listed(spark, plan.name().nameParts())
        if len(parts) == 3 and parts[0] == "spark_catalog":
            parts = parts[1:]
        if len(parts) == 1:
            parts = [spark.catalog.currentDatabase(), *parts]
        if len(parts) != 2 or spark.catalog.currentCatalog() != "spark_catalog":
            return None
        path = TablePath(*parts)
        return cls(spark, plan, path) if provider_of(spark, path) is None else None

    def run(self) -> DataFrame:
        if self._of_query:
            self._create_of_query()
        else:
            self._create_of_columns()
        return register(self._spark, self._path, {**self._preset, "table": str(self._target)})

    def _create_of_columns(self) -> None:
        columns = StructType.fromJson(_json(self._plan.tableSchema()))
        if not columns.fields:
            if any(name.lower().startswith(_CREATE) for name in self._given):
                raise InvalidArgumentError(
                    f"CREATE TABLE {self._path} has options create.*, but no columns; name columns, or use AS SELECT"
                )
            return
        if not self._exists():
            self._create(columns)
            return
        with BlockingClient(self._client) as client:
            found = to_spark_schema(client.info(self._target).schema)
        if _types(found) != _types(columns):
            raise TableAlreadyExistError(
                f"table {self._target} exists with other columns: {found.simpleString()}. Leave the columns out to use "
                "it as it is, or name another one with OPTIONS (table 'database.table')"
            )

    def _create_of_query(self) -> None:
        if self._exists():
            if self._plan.ignoreIfExists():
                return
            raise TableAlreadyExistError(
                f"table {self._target} exists, and CREATE TABLE AS SELECT makes a new one; register it with CREATE "
                "TABLE without AS SELECT and use INSERT INTO, or name another one with OPTIONS (table 'database.table')"
            )
        frame = self._frame()
        self._create(all_nullable(frame.schema))
        try:
            frame.write.format("fluss").options(**_of_writes(self._preset)).mode("append").save()
        except BaseException:
            with BlockingClient(self._client) as client:  # as Spark does it with tables of its own
                client.run(client.admin.drop_table(self._target, True))
            raise

    def _frame(self) -> DataFrame:
        from pyspark.sql import DataFrame

        dataset = self._spark._jvm.org.apache.spark.sql.classic.Dataset
        return DataFrame(dataset.ofRows(self._spark._jsparkSession, self._plan.query()), self._spark)

    def _exists(self) -> bool:
        with BlockingClient(self._client) as client:
            return bool(client.run(client.admin.table_exists(self._target)))

    def _create(self, columns: Any) -> None:
        spec = self._plan.tableSpec()
        layout = {**self._clauses(), **_of_creation(self._given)}
        create_table(
            columns,
            str(self._target),
            primary_key=layout.get("primary-key") or (),
            partitioned_by=layout.get("partitioned-by") or (),
            bucket_key=layout.get("bucket-key"),
            buckets=layout.get("buckets"),
            properties=dict(self._spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(spec.properties())),
            comment=spec.comment().get() if spec.comment().isDefined() else None,
            options=self._client,
        )

    def _options(self) -> dict[str, str]:
        """What the statement has behind OPTIONS."""
        found = {}
        for pair in _listed(self._spark, self._plan.tableSpec().optionExpression().options()):
            found[pair._1()] = str(pair._2().eval(None))
        return found

    def _clauses(self) -> dict[str, Any]:
        """What PARTITIONED BY and CLUSTERED BY say."""
        found: dict[str, Any] = {}
        for transform in _listed(self._spark, self._plan.partitioning()):
            names = [".".join(one.fieldNames()) for one in transform.references()]
            if transform.name() == "identity":
                found.setdefault("partitioned-by", []).extend(names)
            elif transform.name() == "bucket":
                found["bucket-key"], found["buckets"] = names, int(transform.arguments()[0].value())
            else:
                raise InvalidArgumentError(
                    f"CREATE TABLE {self._path}: Fluss has no partitions of the kind {transform.toString()}; use "
                    "PARTITIONED BY (columns) and CLUSTERED BY (columns) INTO n BUCKETS"
                )
        return found


def _of_writes(options: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in options.items():
        option = OPTIONS.find(name)
        if option is None or option.writes:
            found[name] = value
    return found


def _of_creation(options: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in options.items():
        option = OPTIONS.find(name)
        if option is not None and option.key.startswith(_CREATE):
            found[option.key.removeprefix(_CREATE)] = option.parse(str(value).strip())
    return found


def _types(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


def _json(schema: Any) -> Any:
    return json.loads(schema.json())


def _listed(spark: SparkSession, scala: Any) -> list[Any]:
    return list(spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(scala))
