# SPDX-License-Identifier: Apache-2.0
"""The options of the data source: one table of names, defaults and meanings, and their checked values.

Spark hands options over in lower case, so names are compared without regard to case; errors show the spelling of the
table. Every option of the client (`bootstrap.servers`, `security.*`, `writer.*`, ...) is an option here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluss.config import CONFIG_OPTIONS, Config
from fluss.errors import ConfigError
from fluss.metadata import TablePath
from fluss.metadata.path import split_virtual
from fluss.options import LONG_MAX, Boolean, Choice, Names, OptionTable, Text, Whole
from fluss.spark.client_options import (
    CATALOG_PREFIX,
    CLIENT_OPTIONS,
    checked_client,
    is_lake_option,
    options_in_file,
    options_of_file,
)
from fluss.spark.option_types import BucketOffsets, JsonTexts, Moment, SparkOption, StartingPoint

_COUNT = Whole(1, LONG_MAX)

OPTIONS: OptionTable[SparkOption[Any]] = OptionTable(
    "option",
    (
        SparkOption(
            "table",
            Text(),
            None,
            "The table, `database.table`; the argument of `load`, `save`, `start` means the same.",
            aliases=("path",),
            reads=True,
            writes=True,
        ),
        SparkOption(
            "columns",
            Names(distinct=True),
            None,
            "Columns to read, separated by commas; the server sends only these.",
            reads=True,
        ),
        SparkOption(
            "scan.startup.mode",
            StartingPoint(),
            "full",
            "Where a stream starts: `full` (existing rows, then new ones), `earliest`, `latest`, `timestamp`, "
            "`offsets`. Batch reads support all but `latest`.",
            aliases=("startingOffsets",),
            reads=True,
        ),
        SparkOption(
            "scan.startup.timestamp",
            Moment(),
            None,
            "With `timestamp`: start with rows committed then or later; epoch milliseconds or `yyyy-MM-dd HH:mm:ss`.",
            aliases=("startingTimestamp",),
            reads=True,
        ),
        SparkOption(
            "scan.startup.offsets",
            BucketOffsets(),
            None,
            "With `offsets`: the first offset of each bucket, as JSON: "
            '`{"0": 5}` or `{"partition": {"0": 5}}`; -2 is earliest, -1 latest. Buckets not named: earliest.',
            reads=True,
        ),
        SparkOption(
            "endingOffsets",
            BucketOffsets(),
            None,
            "Batch reads: the offsets to stop before, as JSON. Buckets not named: latest.",
            reads=True,
        ),
        SparkOption(
            "scan.incremental.start.timestamp",
            Moment(),
            None,
            "Batch reads: only rows committed then or later.",
            reads=True,
        ),
        SparkOption(
            "scan.incremental.end.timestamp",
            Moment(),
            None,
            "Batch reads: only rows committed before then.",
            reads=True,
        ),
        SparkOption(
            "scan.as-of.timestamp",
            Moment(),
            None,
            "Batch reads: the rows as they were at that time, by commit time. Where the server no longer has the log, "
            "the newest snapshot that the lake had then. The columns are those of now.",
            reads=True,
        ),
        SparkOption(
            "scan.partitions",
            Names(distinct=True),
            None,
            "Partitions to read, by name, separated by commas. Default: all.",
            reads=True,
        ),
        SparkOption(
            "scan.filter",
            Text(),
            None,
            "Only rows that match a condition, evaluated before rows reach Spark; batches and streams. The syntax is "
            "that of WHERE in SQL: `id >= 5 and (day in ('a', 'b') or name like 'x%') and note is not null`.",
            reads=True,
        ),
        SparkOption(
            "scan.pushed-filters",
            JsonTexts(),
            None,
            "Conditions of a query, handed over by the bridge as a JSON array. Spark tests them again, so those that a "
            "scan cannot apply are ignored. Use `scan.filter` for conditions of your own.",
            reads=True,
        ),
        SparkOption(
            "scan.partition-filters",
            JsonTexts(),
            None,
            "Conditions of a query on partition columns alone, handed over by the bridge as a JSON array. Spark does "
            "not test them again.",
            reads=True,
        ),
        SparkOption(
            "scan.limit",
            _COUNT,
            None,
            "Batch reads: the maximum number of rows of each task, handed over by the bridge for a query with LIMIT.",
            reads=True,
        ),
        SparkOption(
            "scan.packed-schema",
            Text(),
            None,
            "Batch reads: the schema of the rows, as JSON. Handed over by the bridge, which takes whole Arrow batches.",
            reads=True,
        ),
        SparkOption(
            "client.options.file",
            Text(),
            None,
            "A JSON file on the driver with more options of the client, such as passwords.",
            reads=True,
            writes=True,
        ),
        SparkOption(
            "scan.maxRecordsPerPartition",
            _COUNT,
            None,
            "Split buckets so that no Spark partition reads more rows. Default for batch reads of log tables: "
            "1 000 000; streams and changelogs have one partition per bucket.",
            reads=True,
        ),
        SparkOption(
            "minPartitions",
            _COUNT,
            None,
            "Split buckets so that there are at least this many Spark partitions.",
            reads=True,
        ),
        SparkOption(
            "maxRowsPerTrigger",
            _COUNT,
            None,
            "Streams: the maximum number of rows of a micro-batch. Default, without `maxBytesPerTrigger`: 1 000 000 "
            "per bucket, at least 10 000 000.",
            aliases=("maxOffsetsPerTrigger",),
            reads=True,
        ),
        SparkOption(
            "maxBytesPerTrigger",
            _COUNT,
            None,
            "Streams: the approximate maximum size of a micro-batch in bytes, estimated from rows read before.",
            reads=True,
        ),
        SparkOption(
            "failOnDataLoss",
            Boolean(),
            True,
            "Streams: fail if rows were lost before they were read; `false` continues with the rows that are left.",
            reads=True,
        ),
        SparkOption(
            "includeMetadata",
            Boolean(),
            False,
            "Add the columns `_change_type`, `_log_offset`, `_commit_timestamp`, `_bucket`.",
            reads=True,
        ),
        SparkOption(
            "read.changelog",
            Boolean(),
            False,
            "Primary-key tables: every change (in batches instead of current rows), with the column `_change_type`. "
            "Without that column a stream gives inserted and updated rows only.",
            reads=True,
        ),
        SparkOption(
            "read.optimized",
            Boolean(),
            False,
            "Tables with a lake: the newest snapshot of the lake alone, without the log after it. Other primary-key "
            "tables: current rows at the time each task reads them, not of all buckets as of one moment.",
            reads=True,
        ),
        SparkOption(
            "scan.snapshot-id",
            Whole(0, LONG_MAX),
            None,
            "Batch reads: the table as of this snapshot of its lake, without the log.",
            aliases=("snapshot-id", "snapshot_id"),
            reads=True,
        ),
        SparkOption("ignoreDeletes", Boolean(), False, "Leave out deletes and the rows before updates.", reads=True),
        SparkOption(
            "write.mode",
            Choice("auto", "append", "upsert", "delete"),
            "auto",
            "`append` (log tables), `upsert` or `delete` (primary-key tables); `auto` is "
            "append or upsert, depending on the table.",
            writes=True,
        ),
        SparkOption(
            "write.columns",
            Names(distinct=True),
            None,
            "Partial update: write only these columns, which include the primary key.",
            writes=True,
        ),
        SparkOption(
            "rowkind.column",
            Text(),
            None,
            "A column with the kind of each row: `+I`, `+U`, `insert`, `update` upsert it, `-D`, `delete` delete it, "
            "`-U` ignores it. The column itself is not written.",
            aliases=("rowkindColumn",),
            writes=True,
        ),
        SparkOption(
            "write.delivery",
            Choice("exactly-once", "at-least-once"),
            None,
            "Log tables: `exactly-once` (the default of streams, and with `txnAppId`) or `at-least-once`.",
            writes=True,
        ),
        SparkOption(
            "write.ledger",
            Text(),
            None,
            "The table that records exactly-once deliveries. Default: "
            "`spark_write_ledger` in the database of the table.",
            writes=True,
        ),
        SparkOption(
            "write.speculation",
            Boolean(),
            False,
            "Handed over by the bridge where `spark.speculation` is on. Exactly-once is then refused.",
            writes=True,
        ),
        SparkOption(
            "write.parts",
            Boolean(),
            False,
            "Handed over by the bridge where a task may write its rows in several parts. Exactly-once is then refused.",
            writes=True,
        ),
        SparkOption(
            "txnAppId",
            Text(),
            None,
            "Batch writes: with `txnVersion`, a write that is complete is not repeated.",
            writes=True,
        ),
        SparkOption(
            "txnVersion",
            Whole(0, LONG_MAX),
            None,
            "Batch writes: the number of this write; increase it with each one.",
            writes=True,
        ),
        SparkOption(
            "create.table",
            Boolean(),
            None,
            "Create the table with the columns of the DataFrame if it does not exist. Each of the `create.` options "
            "implies this. Key columns become NOT NULL, the others nullable.",
            writes=True,
        ),
        SparkOption(
            "create.primary-key",
            Names(distinct=True),
            None,
            "Primary key of a table that is created; without it, a log table is created.",
            writes=True,
        ),
        SparkOption(
            "create.partitioned-by",
            Names(distinct=True),
            None,
            "Partition columns of a table that is created.",
            writes=True,
        ),
        SparkOption(
            "create.bucket-key",
            Names(distinct=True),
            None,
            "Bucket key of a table that is created.",
            writes=True,
        ),
        SparkOption(
            "create.buckets",
            Whole(1, 2**31 - 1),
            None,
            "Number of buckets of a table that is created. Default: that of the server.",
            writes=True,
        ),
        SparkOption(
            "overwrite.partitions",
            Names(distinct=True),
            None,
            "With mode `overwrite`: replace only these partitions; `*` means those that have new rows.",
            writes=True,
        ),
    ),
    ignore_case=True,
)
"""Every option of the data source, by key."""

_IGNORED = frozenset(
    {"checkpointlocation", "queryname", "provider", "owner", "location", "external", "is_managed_location", "comment"}
)
"""What Spark's own stream writer and catalog leave among the options."""


@dataclass(frozen=True)
class SourceOptions:
    """The checked options of one read or write. Travels to executors; the password in it is not shown."""

    table_path: TablePath
    client: dict[str, Any] = field(repr=False)
    values: dict[str, Any]
    lake: dict[str, str] = field(default_factory=dict, repr=False)
    view: str | None = None
    """The virtual table that is read: `changelog`, `binlog`, `lake`, or None for the table itself."""

    def __getitem__(self, name: str) -> Any:
        option = OPTIONS.require(name)
        return self.values.get(option.key, option.default)

    def config(self) -> Config:
        return Config({"client.id": "spark", **self.client})


def read_options(options: Mapping[str, str], *, streaming: bool = False) -> SourceOptions:
    """The options of a read, checked; a ConfigError names what is wrong."""
    parsed = _parse(options, "reads")
    values = parsed.values
    _apply_view(parsed, streaming)
    _infer_startup_mode(values)
    _check_startup(values)
    _check_side(values, streaming)
    return parsed


def _apply_view(options: SourceOptions, streaming: bool) -> None:
    """Set the options that the name of a virtual table stands for."""
    if options.view is None:
        return
    name = f"{options.table_path}${options.view}"
    if streaming and options.view != "changelog":
        raise ConfigError(f"{name} is for batch reads; stream {options.table_path}, or its $changelog")
    if options.view == "binlog":
        for cutting in ("scan.filter", "scan.maxRecordsPerPartition", "minPartitions", "includeMetadata"):
            if options.values.get(cutting):
                raise ConfigError(f"{name} cannot be combined with {cutting}: choose from the rows it gives")
    options.values["read.optimized" if options.view == "lake" else "read.changelog"] = True


def _infer_startup_mode(values: dict[str, Any]) -> None:
    """Name the mode that offsets or a timestamp given without one stand for."""
    mode = values.get("scan.startup.mode")
    if isinstance(mode, dict):
        values["scan.startup.offsets"] = mode
        values["scan.startup.mode"] = "offsets"
    elif mode is None:
        for implied in ("timestamp", "offsets"):
            if f"scan.startup.{implied}" in values:
                values["scan.startup.mode"] = implied
                break


def _check_startup(values: Mapping[str, Any]) -> None:
    """Check the options that say where a read starts against each other."""
    mode = values.get("scan.startup.mode", "full")
    for needed in ("timestamp", "offsets"):
        if mode == needed and f"scan.startup.{needed}" not in values:
            raise ConfigError(f"scan.startup.mode is {needed!r}, which needs the option 'scan.startup.{needed}'")
        if mode != needed and f"scan.startup.{needed}" in values:
            raise ConfigError(f"scan.startup.{needed} is given, but scan.startup.mode is {mode!r}; use {needed!r}")
    start, end = (values.get(f"scan.incremental.{side}.timestamp") for side in ("start", "end"))
    if end is not None and (start is None or end <= start):
        raise ConfigError("scan.incremental.end.timestamp needs an earlier scan.incremental.start.timestamp")
    if start is not None and mode != "full":
        raise ConfigError(f"scan.incremental.start.timestamp cannot be combined with scan.startup.mode {mode!r}")
    if "scan.snapshot-id" in values:
        for name in ("read.changelog", "endingOffsets", "scan.incremental.start.timestamp", "scan.as-of.timestamp"):
            if values.get(name):
                raise ConfigError(f"scan.snapshot-id reads the lake, where there is no {name}; leave one of them out")
        if mode != "full":
            raise ConfigError(f"scan.snapshot-id reads the lake alone, not the log from scan.startup.mode {mode!r} on")


def _check_side(values: Mapping[str, Any], streaming: bool) -> None:
    """Refuse options of streams in batch reads, and the other way round."""
    if streaming:
        batch_only = (
            "endingOffsets",
            "scan.incremental.start.timestamp",
            "scan.incremental.end.timestamp",
            "read.optimized",
            "scan.as-of.timestamp",
            "scan.snapshot-id",
            "scan.limit",
            "scan.packed-schema",
        )
        for name in batch_only:
            if name in values:
                raise ConfigError(f"{name} is for batch reads; a stream takes scan.startup.mode and has no end")
    else:
        if values.get("scan.startup.mode") == "latest":
            raise ConfigError("scan.startup.mode 'latest' would read nothing in a batch; use it with readStream")
        for name in ("maxRowsPerTrigger", "maxBytesPerTrigger"):
            if name in values:
                raise ConfigError(f"{name} is for streams; a batch read takes scan.maxRecordsPerPartition")


def write_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of a write, checked; a ConfigError names what is wrong."""
    parsed = _parse(options, "writes")
    if parsed.view is not None:
        raise ConfigError(f"{parsed.table_path}${parsed.view} can only be read; write to {parsed.table_path}")
    values = parsed.values
    if ("txnAppId" in values) != ("txnVersion" in values):
        raise ConfigError("txnAppId and txnVersion belong together; give both or neither")
    if "txnAppId" in values and values.get("write.delivery") == "at-least-once":
        raise ConfigError("txnAppId makes a write exactly-once; leave out write.delivery 'at-least-once'")
    if "rowkind.column" in values and values.get("write.mode", "auto") not in ("auto", "upsert"):
        raise ConfigError(f"rowkind.column cannot be combined with write.mode {values['write.mode']!r}")
    if "write.columns" in values and values.get("write.mode", "auto") not in ("auto", "upsert"):
        raise ConfigError(f"write.columns is for upserts, not for write.mode {values['write.mode']!r}")
    return parsed


def _parse(options: Mapping[str, str], side: str) -> SourceOptions:
    values: dict[str, Any] = {}
    client: dict[str, Any] = {}
    lake: dict[str, str] = {}
    known = {name.lower() for name in options}
    for spelled, text in options.items():
        given = spelled
        if given.lower().startswith(CATALOG_PREFIX):
            given = given[len(CATALOG_PREFIX) :]
            if given.lower() in known:
                continue
        name = given.lower()
        if name in _IGNORED:
            continue
        option = OPTIONS.find(name)
        client_option = CLIENT_OPTIONS.find(name)
        if option is not None:
            if not getattr(option, side):
                kind = "writing" if option.writes else "reading"
                raise ConfigError(f"option {option.key} is for {kind}, not for this; leave it out")
            if option.key in values:
                raise ConfigError(f"option {option.key} is given twice, also as {', '.join(option.aliases)}")
            values[option.key] = option.parse(str(text).strip())
        elif client_option is not None:
            client[client_option.key] = text
        elif is_lake_option(name) and side == "reads":
            lake[name] = str(text)
        else:
            raise ConfigError(_unknown(given, side))
    if "client.options.file" in values:
        filed = options_in_file(values.pop("client.options.file"))
        lake = {**{name.lower(): str(value) for name, value in filed.items() if is_lake_option(name)}, **lake}
        client = {**{name: value for name, value in filed.items() if not is_lake_option(name)}, **client}
    path, view = split_virtual(_named_table(values.get("table")))
    return SourceOptions(path, checked_client(client), values, lake, view)


def override(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Merge options: those of `upper`, and of the file that it names, come before those of `lower`.

    A file of `upper` replaces one of `lower`, so that the login of one server is not sent to another.
    """
    given = {_key(name) for name in (*upper, *options_of_file(upper))}
    return {**{name: value for name, value in lower.items() if _key(name) not in given}, **upper}


def _key(name: str) -> str:
    """The name of an option, whichever way it is spelled."""
    name = name.lower().removeprefix(CATALOG_PREFIX)
    option = OPTIONS.find(name) or CLIENT_OPTIONS.find(name)
    return name if option is None else option.key


def is_option_of(name: str, side: str) -> bool:
    """Whether an option is one of `reads` or of `writes`; unknown ones count, so that they are refused by name."""
    option = OPTIONS.find(name)
    if option is None:
        return side == "reads" or not is_lake_option(name)
    return bool(getattr(option, side))


def names_table(options: Mapping[str, str]) -> bool:
    """Whether options say which table is meant."""
    names = {name.lower().removeprefix(CATALOG_PREFIX) for name in options}
    return not names.isdisjoint({"table", "path"})


def of_catalog(options: Mapping[str, str]) -> dict[str, str]:
    """The options that a CREATE TABLE statement gave; none where they do not come from such a statement."""
    return {
        name[len(CATALOG_PREFIX) :]: value for name, value in options.items() if name.lower().startswith(CATALOG_PREFIX)
    }


def _unknown(given: str, side: str) -> str:
    if given.removeprefix("client.") in CONFIG_OPTIONS.refused:
        return CONFIG_OPTIONS.unknown(given).message
    names = [option.key for option in OPTIONS.values() if getattr(option, side)]
    near = OPTIONS.suggest(given) or CLIENT_OPTIONS.suggest(given)
    hint = f"did you mean {near}?" if near else f"the options are {', '.join(names)}"
    return f"unknown option {given!r:.100} for format 'fluss'; {hint}"


def _named_table(text: str | None) -> TablePath:
    if not text:
        raise ConfigError(
            "no table is named: write load('database.table'), save('database.table'), or the option table. Without the "
            "bridge of fluss.spark.configure(spark), Spark keeps the options of a CREATE TABLE statement to itself: "
            "make tables for SQL with fluss.spark.tables(), or name the table in the statement: INSERT INTO t WITH "
            "(table = 'database.table') ..."
        )
    return table_path(text)


def table_path(text: str) -> TablePath:
    """The path of a table that is named `database.table`."""
    parts = text.split(".")
    if len(parts) != 2 or not all(parts):
        raise ConfigError(f"{text!r:.200} is not the name of a table; write 'database.table'")
    return TablePath(*parts)
