# SPDX-License-Identifier: Apache-2.0
"""The data source `fluss`, as Spark finds it."""

from __future__ import annotations

import sys

from pyspark.sql import datasource as d
from pyspark.sql.types import StructType

from fluss.spark.batches import source_schema
from fluss.spark.connect import client_of
from fluss.spark.failures import driver_side
from fluss.spark.options import read_options, write_options
from fluss.spark.reader import FlussReader, PushingReader
from fluss.spark.stream_reader import FlussStreamReader
from fluss.spark.writer import FlussStreamWriter, FlussWriter

_PUSHING_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class FlussDataSource(d.DataSource):  # type: ignore[misc]
    """Reads, writes and streams Fluss tables: `spark.read.format("fluss")`."""

    @classmethod
    def name(cls) -> str:
        return "fluss"

    @driver_side
    def schema(self) -> StructType:
        options = read_options(self._only_readable())
        info = client_of(options.client).info(options.table_path)
        return source_schema(
            info, options["columns"], metadata=options["includeMetadata"], changelog=options["read.changelog"]
        )

    def _only_readable(self) -> dict[str, str]:
        """The options without those of streams, which this method cannot tell from batches; checked later."""
        streaming = ("maxrowspertrigger", "maxbytespertrigger", "maxoffsetspertrigger")
        options = {name: value for name, value in self.options.items() if name.lower() not in streaming}
        for name in ("scan.startup.mode", "startingoffsets"):
            if str(options.get(name, "")).strip().lower() == "latest":
                del options[name]
        return options

    @driver_side
    def reader(self, schema: StructType) -> d.DataSourceReader:
        # Spark refuses a reader that takes filters while push-down is off, and asks for filters in a worker of its own
        # while it is on: that worker is the only one that needs such a reader. And only who asks for it gets it: Spark
        # (4.3) keeps the reader of a DataFrame's first query for later ones, with the filters of the first.
        options = read_options(self.options)
        kind = PushingReader if options["scan.pushFilters"] and _pushing() else FlussReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> d.DataSourceStreamReader:  # noqa: N802
        return FlussStreamReader(self.options, schema)

    @driver_side
    def writer(self, schema: StructType, overwrite: bool) -> d.DataSourceWriter:
        return FlussWriter(write_options(self.options), schema, overwrite)

    @driver_side
    def streamWriter(self, schema: StructType, overwrite: bool) -> d.DataSourceStreamWriter:  # noqa: N802
        return FlussStreamWriter(write_options(self.options), schema, overwrite)


def _pushing() -> bool:
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return _PUSHING_WORKER in sys.modules or getattr(spec, "name", None) == _PUSHING_WORKER
