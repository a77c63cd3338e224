# SPDX-License-Identifier: Apache-2.0
"""The data source `fluss`, as Spark finds it.

Spark starts a Python process for each step of a query, and each loads this module: to find the source, to ask for its
schema, to plan a read, to read. So the methods import what their step needs. All of it takes 0.3 s of processor time,
and the search for sources needs none of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from pyspark.sql import datasource as d
from pyspark.sql.types import StructField, StructType

from fluss.spark.failures import driver_side

if TYPE_CHECKING:
    from fluss.spark.options import SourceOptions

_OPTIONS = "fluss.options"
_LAYERS = ("session.", "catalog.")
"""The bridge hands over options of the session and of the catalog with these prefixes, each over the ones before."""


class FlussDataSource(d.DataSource):  # type: ignore[misc]
    """Reads, writes and streams Fluss tables: `spark.read.format("fluss")`."""

    PRESET: ClassVar[dict[str, str]] = {}
    """Options of the session, for tables that do not give them themselves."""

    @classmethod
    def name(cls) -> str:
        return "fluss"

    @driver_side
    def schema(self) -> StructType:
        from fluss.spark.batches import source_schema
        from fluss.spark.connect import client_of
        from fluss.spark.options import of_catalog, read_options

        options = read_options(self.readable_options())
        info = client_of(options.client).info(options.table_path)
        schema = source_schema(
            info,
            options["columns"],
            metadata=options["includeMetadata"],
            changelog=options["read.changelog"],
            view=options.view,
        )
        return with_options(schema, of_catalog(self.options))

    def _given(self, side: str, schema: StructType | None = None) -> dict[str, str]:
        """The options of the query; of the catalog table that is read, if it is one; of the catalog; of the session."""
        from fluss.spark.options import is_option_of, names_table, override

        given = {name: value for name, value in self.options.items() if not name.lower().startswith(_LAYERS)}
        if schema is not None and not names_table(given):
            given = {**options_in(schema), **given}
        preset = self.PRESET
        for prefix in _LAYERS:
            layer = {name[len(prefix) :]: v for name, v in self.options.items() if name.lower().startswith(prefix)}
            preset = override(preset, layer)
        return override({name: value for name, value in preset.items() if is_option_of(name, side)}, given)

    def readable_options(self) -> dict[str, str]:
        """The options without those of streams, which this method cannot tell from batches; checked later."""
        streaming = ("maxrowspertrigger", "maxbytespertrigger", "maxoffsetspertrigger")
        given = self._given("reads")
        options = {name: given[name] for name in given if name.lower().removeprefix("option.") not in streaming}
        for name in ("scan.startup.mode", "startingoffsets"):
            if str(options.get(name, "")).strip().lower() == "latest":
                del options[name]
        return options

    @driver_side
    def reader(self, schema: StructType) -> d.DataSourceReader:
        from fluss.spark.options import read_options
        from fluss.spark.reader import FlussReader

        return FlussReader(read_options(self._given("reads", schema)), schema)

    def streamReader(self, schema: StructType) -> d.DataSourceStreamReader:  # noqa: N802
        from fluss.spark.stream_reader import FlussStreamReader

        return FlussStreamReader(self._given("reads", schema), schema)

    @driver_side
    def writer(self, schema: StructType, overwrite: bool) -> d.DataSourceWriter:
        from fluss.spark.options import write_options
        from fluss.spark.writer import FlussWriter

        options = write_options(self._given("writes"))
        create_if_asked(options, schema)
        return FlussWriter(options, schema, overwrite)

    @driver_side
    def streamWriter(self, schema: StructType, overwrite: bool) -> d.DataSourceStreamWriter:  # noqa: N802
        from fluss.spark.options import write_options
        from fluss.spark.writer import FlussStreamWriter

        options = write_options(self._given("writes"))
        create_if_asked(options, schema)
        return FlussStreamWriter(options, schema, overwrite)


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """A schema that carries options in its first column.

    Spark keeps the options of a catalog table but hands a Python source nothing of them when the table is read; what it
    hands over is the schema. Not so for writes: the schema is then that of the query, which may have come from another
    table, with the options of that one.
    """
    if not options or not schema.fields:
        return schema
    first, *others = schema.fields
    metadata = {**(first.metadata or {}), _OPTIONS: json.dumps(dict(options))}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def options_in(schema: StructType) -> dict[str, str]:
    """The options that the schema of a catalog table carries."""
    for field in schema.fields:
        found = (field.metadata or {}).get(_OPTIONS)
        if found is not None:
            options: dict[str, str] = json.loads(found)
            return options
    return {}


def create_if_asked(options: SourceOptions, schema: StructType) -> None:
    """Create the table of a write where that was asked for and it does not exist."""
    given = {name: options[f"create.{name}"] for name in ("primary-key", "partitioned-by", "bucket-key", "buckets")}
    if options["create.table"] is False or not (options["create.table"] or any(given.values())):
        return
    from fluss.spark.creation import create_table
    from fluss.spark.types import all_nullable

    kind = options["rowkind.column"]
    columns = [field for field in schema.fields if kind is None or field.name.lower() != kind.lower()]
    create_table(
        all_nullable(StructType(columns)),
        str(options.table_path),
        primary_key=given["primary-key"] or (),
        partitioned_by=given["partitioned-by"] or (),
        bucket_key=given["bucket-key"],
        buckets=given["buckets"],
        if_not_exists=True,
        options=options.client,
    )
