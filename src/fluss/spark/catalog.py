# SPDX-License-Identifier: Apache-2.0
"""The calls of the Spark catalog `fluss.spark.FlussCatalog`: databases, tables and their changes.

The Java class asks, and this module does the work: see `catalog_process`.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import StructType

from fluss.client.blocking_client import BlockingClient
from fluss.errors import InvalidArgumentError, PartitionNotExistsError, TableNotExistError
from fluss.metadata import Column, DatabaseDescriptor, TableDescriptor, TableInfo, TablePath
from fluss.metadata.path import split_virtual
from fluss.spark.batches import BUCKET, METADATA_FIELDS, source_schema
from fluss.spark.creation import table_descriptor
from fluss.spark.filters import is_cut_by_spark
from fluss.spark.history import SEQUENCE, has_sequence, with_sequence
from fluss.spark.options import OPTIONS
from fluss.spark.overwrite import Overwrite, discard
from fluss.spark.types import to_fluss_type, to_spark_schema
from fluss.tools.drafts import descriptor_of
from fluss.tools.flows import Flow, note_flows

if TYPE_CHECKING:
    from fluss.lake.rounds import RoundReport

_LAYOUT = {"primary.key": "primary-key", "bucket.key": "bucket-key", "bucket.num": "buckets"}
"""Table properties of CREATE TABLE that are part of the layout; options `create.*` mean the same."""

_OPTION = "option."
"""Spark's prefix for what a statement has behind OPTIONS; each is there without the prefix as well."""

_OF_SPARK = frozenset({"provider", "owner", "external", "is_managed_location", "comment", "collation", "table_type"})

_TABLE = re.compile(r"fluss[ .]([\w-]+\.[\w-]+)")
"""How the bridge describes a table, and how flows of a pipeline are named after tables of the catalog `fluss`."""

_OBJECT = re.compile(r"[\w.$]*\.(\w+)@[0-9a-f]+")
"""Sources without a description of their own, such as ours before Spark 4.2: a class, and a number that changes."""


class CatalogCalls:
    """What the catalog of a server can do. Arguments and results are JSON documents."""

    def __init__(self, client: BlockingClient, lake_options: Mapping[str, str] | None = None) -> None:
        self._client = client
        self._lake_options = lake_options
        self._admin = client.admin

    # -- databases ------------------------------------------------------------------------------------------------

    def list_databases(self) -> list[str]:
        return sorted(self._client.run(self._admin.list_databases()))

    def load_database(self, database: str) -> dict[str, str]:
        descriptor = self._client.run(self._admin.get_database_info(database)).database_descriptor
        shown = descriptor.custom_properties
        return {**shown, "comment": descriptor.comment} if descriptor.comment else shown

    def create_database(self, database: str, properties: dict[str, str]) -> None:
        custom = {name: value for name, value in properties.items() if name not in _OF_SPARK}
        if "location" in custom:
            raise InvalidArgumentError(f"database {database}: Fluss keeps databases on its server; leave LOCATION out")
        self._client.run(self._admin.create_database(database, DatabaseDescriptor(properties.get("comment"), custom)))

    def alter_database(self, database: str, set: dict[str, str], remove: list[str]) -> None:
        comment = set.pop("comment", None)
        change = self._admin.alter_database(database, set_properties=set, reset_properties=remove, comment=comment)
        self._client.run(change)

    def drop_database(self, database: str, cascade: bool) -> None:
        self._client.run(self._admin.drop_database(database, False, cascade))

    # -- tables ---------------------------------------------------------------------------------------------------

    def list_tables(self, database: str) -> list[str]:
        return sorted(self._client.run(self._admin.list_tables(database)))

    def load_table(self, table: str) -> dict[str, Any]:
        path, view = split_virtual(_path(table))
        info = self._client.info(path)
        columns = None
        if view is None and has_sequence(info):
            columns = tuple(name for name in info.schema.column_names if name != SEQUENCE)
        schema = source_schema(info, columns, metadata=False, changelog=False, view=view)
        shown = {} if view is not None else _layout(info)
        comment = {"comment": info.comment} if info.comment else {}
        return {
            "schema": schema.json(),
            "partitioned_by": [] if view is not None else list(info.partition_keys),
            "primary_key": [] if view is not None else list(info.primary_keys),
            "cut": [column.name for column in info.schema.columns if is_cut_by_spark(column.data_type)],
            "metadata": _metadata(info, view).json(),
            "properties": {"provider": "fluss", **shown, **info.properties, **info.custom_properties, **comment},
        }

    def create_table(self, table: str, schema: str, partitioning: list[dict[str, Any]], **rest: Any) -> None:
        descriptor = self._described(table, schema, partitioning, **rest)
        self._client.run(self._admin.create_table(_path(table), descriptor))

    def drop_table(self, table: str) -> bool:
        try:
            self._client.run(self._admin.drop_table(_changed(table)))
        except TableNotExistError:
            return False
        return True

    def alter_table(
        self,
        table: str,
        set: dict[str, str],
        remove: list[str],
        add: list[dict[str, Any]],
        nullable: dict[str, bool],
    ) -> None:
        path = _changed(table)
        info = self._client.info(path)
        now = {**_layout(info), "comment": info.comment or ""}
        # Pipelines of Spark set all properties of a table again in each run.
        set = {name: value for name, value in set.items() if name != "provider" and value != now.get(name)}
        fixed = sorted(_LAYOUT.keys() & {*set, *remove})
        if fixed:
            raise InvalidArgumentError(f"table {path}: {fixed[0]} cannot be changed; create another table")
        unknown = sorted({"comment", "location", "collation"} & {*set, *remove})
        if unknown:
            raise InvalidArgumentError(f"table {path}: Fluss cannot change the {unknown[0]} of a table")
        for name, wanted in nullable.items():
            # Pipelines of Spark make all columns nullable again in each run. Those of a key stay as they are.
            same = info.schema.column(name).data_type.nullable == wanted
            if not same and not (wanted and name in info.primary_keys):
                raise InvalidArgumentError(f"table {path}: Fluss cannot change whether column '{name}' takes NULL")
        columns = [Column(one["name"], _column_type(one), one.get("comment")) for one in add]
        if set or remove:
            self._client.run(self._admin.alter_table(path, set_properties=set, reset_properties=remove))
        if columns:
            self._client.run(self._admin.alter_table(path, add_columns=columns))

    def truncate(self, table: str, partitions: list[str]) -> None:
        """Remove all rows of a table, or of some partitions: it is dropped and created again."""
        info = self._client.info(_changed(table))
        Overwrite(info.table_path, descriptor_of(info), partitions or None).truncate(self._client)

    def list_partitions(self, table: str) -> list[list[str]]:
        """The values of the partition columns of each partition."""
        found = self._client.run(self._admin.list_partition_infos(_path(table)))
        return sorted(one.partition_name.split("$") for one in found)

    def create_partition(self, table: str, partition: dict[str, str]) -> None:
        self._client.run(self._admin.create_partition(_path(table), partition))

    def drop_partition(self, table: str, partition: dict[str, str]) -> bool:
        try:
            self._client.run(self._admin.drop_partition(_path(table), partition))
        except PartitionNotExistsError:
            return False
        return True

    # -- the lake -------------------------------------------------------------------------------------------------

    def tier(self, table: str, compact: bool | None, expire: bool | None) -> dict[str, int | None]:
        """Move what is new in a table to its lake."""
        from fluss.lake.rounds import RoundSettings
        from fluss.lake.service import ServiceSettings, TieringService

        path = self._with_lake(table).table_path
        settings = ServiceSettings(round=RoundSettings(compact=compact, expire=expire))
        options = self._client.connection.config.to_dict()
        service = TieringService(options, tables=[path], lake_options=self._lake_options, settings=settings)
        reports = service.run_once()
        snapshots = [one.snapshot_id for one in reports if one.snapshot_id is not None]
        return {
            "rows": sum(one.rows for one in reports),
            "files": sum(one.files for one in reports),
            "bytes": sum(one.size_bytes for one in reports),
            "snapshot_id": max(snapshots, default=None),
            "compacted": sum(one.compacted for one in reports),
            "expired": sum(one.expired for one in reports),
        }

    def compact(self, table: str, min_files: int | None) -> dict[str, int | None]:
        """Rewrite small files of a table in its lake into few."""
        done = self._maintain(table, expire=False, compact=True, compact_files_min=min_files)
        return {"compacted": done.compacted, "snapshot_id": done.snapshot_id}

    def expire(self, table: str, older_than: int | None, keep: int | None) -> dict[str, int]:
        """Expire snapshots of a table in its lake that are older than a time (epoch, in microseconds)."""
        age_s = None if older_than is None else time.time() - older_than / 1_000_000
        done = self._maintain(table, compact=False, expire=True, expire_after_s=age_s, expire_keep_min=keep)
        return {"expired": done.expired}

    def _maintain(self, table: str, **settings: Any) -> RoundReport:
        from fluss.lake.rounds import Round, RoundReport, RoundSettings
        from fluss.lake.tasks import LakeSession, LocalRunner

        info = self._with_lake(table)
        chosen = RoundSettings(**{name: value for name, value in settings.items() if value is not None})
        if min(chosen.compact_files_min, chosen.expire_keep_min) < 1:
            raise InvalidArgumentError(f"table {info.table_path}: min_files and keep are at least 1")
        options = self._client.connection.config.to_dict()
        report = RoundReport(info.table_path, info.table_id)
        with LakeSession(options) as session:
            work = Round(session, options, LocalRunner(1), lake_options=self._lake_options, settings=chosen)
            work.maintain(report, sweep=False)
            newest = session.lake_snapshot(info.table_path)
        report.snapshot_id = None if newest is None else newest.snapshot_id
        return report

    def _with_lake(self, table: str) -> TableInfo:
        info = self._client.info(_path(table))
        if not info.config.lake_enabled:
            raise InvalidArgumentError(
                f"table {info.table_path} has no lake; set its property table.datalake.enabled to true"
            )
        return info

    # -- flows ----------------------------------------------------------------------------------------------------

    def note_stream(self, progress: str) -> None:
        """Keep what a micro-batch moved, for the graph of the console."""
        self._note(_flows_of_stream(progress))

    def note_batch(self, target: str, sources: list[str], rows: int, seconds: float) -> None:
        """Keep what a batch write moved."""
        self._note(_flows_of_batch(target, sources, rows, seconds))

    def _note(self, flows: list[Flow]) -> None:
        if flows:
            note_flows(self._client, flows)

    # -- CREATE and REPLACE TABLE AS SELECT -----------------------------------------------------------------------

    def stage_table(
        self, table: str, schema: str, partitioning: list[dict[str, Any]], replace: bool, **rest: Any
    ) -> str:
        """Create the table that the rows of a statement are written to; returns its name.

        It is the table itself where there is none yet, or may be none; else one beside it, which `commit_table` puts in
        its place.
        """
        path = _path(table)
        descriptor = self._described(table, schema, partitioning, **rest)
        if not replace or not self._client.run(self._admin.table_exists(path)):
            self._client.run(self._admin.create_table(path, descriptor))
            return table
        overwrite = Overwrite(path, descriptor)
        overwrite.prepare(self._client)
        return str(overwrite.staging)

    def commit_table(
        self, table: str, staged: str, schema: str, partitioning: list[dict[str, Any]], replace: bool, **rest: Any
    ) -> None:
        if staged != table:
            descriptor = self._described(table, schema, partitioning, **rest)
            Overwrite(_path(table), descriptor, staging=_path(staged)).finish(self._client)

    def abort_table(self, staged: str) -> None:
        discard(self._client, _path(staged))

    def _described(
        self,
        table: str,
        schema: str,
        partitioning: list[dict[str, Any]],
        properties: dict[str, str],
        options: dict[str, str],
    ) -> TableDescriptor:
        if "location" in properties:
            raise InvalidArgumentError(f"table {table}: a Fluss table lies on its server; leave LOCATION out")
        own, layout = _split(table, properties, options)
        layout = {**_clauses(table, partitioning), **layout}
        primary_key = layout.get("primary-key") or _state_key(properties)
        return table_descriptor(
            with_sequence(StructType.fromJson(json.loads(schema)), primary_key),
            primary_key=primary_key,
            partitioned_by=layout.get("partitioned-by") or (),
            bucket_key=layout.get("bucket-key"),
            buckets=layout.get("buckets"),
            properties={name: value for name, value in own.items() if name.startswith("table.")},
            custom_properties={name: value for name, value in own.items() if not name.startswith("table.")},
            comment=properties.get("comment"),
        )


def _state_key(properties: Mapping[str, str]) -> list[str]:
    """The primary key of a table in which an Auto CDC flow of Spark keeps its state: MERGE changes it by key."""
    keys: list[str] = json.loads(properties.get("pipelines.autocdc.keyColumnNames", "[]"))
    return [*keys, SEQUENCE] if properties.get("pipelines.autocdc.scdType") == "SCD2" else keys


def _path(table: str) -> TablePath:
    database, _, name = table.partition(".")
    return TablePath(database, name)


def _changed(table: str) -> TablePath:
    """The path of a table that is changed, which a virtual table cannot be."""
    path, view = split_virtual(_path(table))
    if view is not None:
        raise InvalidArgumentError(f"{table} can only be read; change {path}")
    return path


def _layout(info: TableInfo) -> dict[str, str]:
    """The layout of a table as properties of CREATE TABLE."""
    names = {"primary.key": info.primary_keys, "bucket.key": info.bucket_keys}
    shown = {name: ",".join(columns) for name, columns in names.items() if columns}
    return {**shown, "bucket.num": str(info.num_buckets)}


def _metadata(info: TableInfo, view: str | None) -> StructType:
    """The metadata columns that a query may name: of its place, a current row of a primary-key table has the bucket."""
    if view is None and has_sequence(info):
        return to_spark_schema(info.schema, [SEQUENCE])
    names = {"changelog": [BUCKET], None: [BUCKET] if info.has_primary_key() else list(METADATA_FIELDS)}.get(view, [])
    return StructType([METADATA_FIELDS[name] for name in names if name not in info.schema.column_names])


def _split(
    table: str, properties: Mapping[str, str], options: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Properties of the table itself, and the layout that properties and options of the write give."""
    layout: dict[str, Any] = {}
    own: dict[str, str] = {}
    behind_options = {name[len(_OPTION) :] for name in properties if name.startswith(_OPTION)}
    for name, value in {**properties, **options}.items():
        key = _LAYOUT.get(name.lower())
        option = OPTIONS.find(name if key is None else f"create.{key}")
        if option is not None and option.key.startswith("create."):
            layout[option.key.removeprefix("create.")] = option.parse(value.strip())
        elif name in behind_options:
            raise InvalidArgumentError(
                f"table {table}: OPTIONS has {name!r:.100}, which no table of this catalog keeps; set options of the "
                "client for the catalog, and properties of the table with TBLPROPERTIES"
            )
        elif name in properties and name not in _OF_SPARK and not name.startswith(_OPTION):
            own[name] = value
    return own, layout


def _clauses(table: str, partitioning: list[dict[str, Any]]) -> dict[str, Any]:
    """What PARTITIONED BY and CLUSTERED BY say."""
    found: dict[str, Any] = {}
    for transform in partitioning:
        if transform["name"] == "identity":
            found.setdefault("partitioned-by", []).extend(transform["columns"])
        elif transform["name"] == "bucket":
            found["bucket-key"], found["buckets"] = transform["columns"], transform["buckets"]
        else:
            raise InvalidArgumentError(
                f"table {table}: Fluss has no partitions of the kind {transform['text']}; use PARTITIONED BY (columns) "
                "and CLUSTERED BY (columns) INTO n BUCKETS"
            )
    return found


def _column_type(column: Mapping[str, Any]) -> Any:
    field = StructType.fromJson(json.loads(column["schema"])).fields[0]
    if not field.nullable:
        raise InvalidArgumentError(
            f"column '{field.name}' is new and NOT NULL, but rows that exist have no value for it"
        )
    return to_fluss_type(field.dataType, True, field.name)


def _flows_of_stream(text: str) -> list[Flow]:
    """The flows of a query, from the JSON of its progress; none if it fills no table of Fluss.

    Auto CDC flows merge their rows in a function that Spark does not describe; their names are those of their tables.
    """
    progress: dict[str, Any] = json.loads(text)
    name = progress.get("name") or progress["id"]
    target = _table_in(progress["sink"]["description"]) or _table_in(name)
    name = _table_in(name) or name
    if target is None:
        return []
    found = []
    for source in progress["sources"]:
        latest = source.get("latestOffset")
        ends = latest if isinstance(latest, dict) else {}
        read = ends.get("table") or _OBJECT.sub(r"\1", source["description"])
        rate = source.get("processedRowsPerSecond", 0.0)
        found.append(Flow(name, read, target, rate, ends.get("rows_behind"), ends.get("ms_behind"), _now()))
    return found


def _flows_of_batch(target: str, sources: Sequence[str], rows: int, seconds: float) -> list[Flow]:
    """The flows of a batch write into a table of Fluss; one without a source if it reads no table of Fluss."""
    table = _table_in(target)
    if table is None:
        return []
    rate = rows / max(seconds, 0.001)
    read = sorted({found for source in sources if (found := _table_in(source)) not in (None, table)}) or [""]
    return [Flow(table, source, table, rate, None, None, _now()) for source in read]


def _table_in(text: str) -> str | None:
    """The table of Fluss that a description of Spark means."""
    found = _TABLE.fullmatch(text)
    return None if found is None else found[1]


def _now() -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc)
