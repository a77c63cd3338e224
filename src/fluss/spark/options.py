# SPDX-License-Identifier: Apache-2.0
"""The options of the data source: one table of names, defaults and meanings, and their checked values.

Spark hands options over in lower case, so names are compared without regard to case; errors show the spelling of the
table. Every option of the client (`bootstrap.servers`, `security.*`, `writer.*`, ...) is an option here too.
"""

from __future__ import annotations

import datetime
import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fluss.config import CONFIG_OPTIONS, Config
from fluss.errors import ConfigError
from fluss.metadata import TablePath

EARLIEST = -2
"""In offsets given as JSON: the first offset of the bucket."""
LATEST = -1
"""In offsets given as JSON: the end of the bucket."""

STARTUP_MODES = ("full", "earliest", "latest", "timestamp", "offsets")
WRITE_MODES = ("auto", "append", "upsert", "delete")
DELIVERIES = ("exactly-once", "at-least-once")

Offsets = dict[str, dict[int, int]]
"""Partition name (empty for tables without partitions) to bucket to offset."""


@dataclass(frozen=True)
class SparkOption:
    """One option of the data source."""

    name: str
    default: object
    doc: str
    parse: Callable[[str, str], Any]
    aliases: tuple[str, ...] = ()
    reads: bool = False
    writes: bool = False


def _text(name: str, value: str) -> str:
    return value.strip()


def _names(name: str, value: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in value.split(",") if part.strip())
    if not names:
        raise ConfigError(f"{name}: got {value!r:.100}, but it takes names separated by commas")
    if len(set(names)) != len(names):
        raise ConfigError(f"{name}: got {value!r:.100}, which names something twice")
    return names


def _boolean(name: str, value: str) -> bool:
    known = {"true": True, "false": False}.get(value.strip().lower())
    if known is None:
        raise ConfigError(f"{name}: got {value!r:.100}, but it takes true or false")
    return known


def _number(minimum: int) -> Callable[[str, str], int]:
    def parse(name: str, value: str) -> int:
        text = value.strip()
        if not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > 19 or int(text) < minimum:
            raise ConfigError(f"{name}: got {value!r:.100}, but it takes a whole number from {minimum} on")
        return int(text)

    return parse


def _choice(*choices: str) -> Callable[[str, str], str]:
    def parse(name: str, value: str) -> str:
        found = value.strip().lower()
        if found not in choices:
            raise ConfigError(f"{name}: got {value!r:.100}, but it takes one of {', '.join(choices)}")
        return found

    return parse


def parse_timestamp_ms(name: str, value: str) -> int:
    """Epoch milliseconds, or `yyyy-MM-dd HH:mm:ss` in the zone of the driver (or with a zone of its own)."""
    text = value.strip()
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            f"{name}: got {value!r:.100}, but it takes milliseconds since 1970 or 'yyyy-MM-dd HH:mm:ss'"
        ) from None


def parse_offsets(name: str, value: str) -> Offsets:
    """`{"0": 5, "1": -2}` by bucket, or `{"partition": {"0": 5}}`; -2 is earliest, -1 is latest."""
    shape = '{"<bucket>": <offset>} or {"<partition>": {"<bucket>": <offset>}} as JSON'
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or not document:
        raise ConfigError(f"{name}: got {value!r:.100}, but it takes {shape}")
    nested = all(isinstance(part, dict) for part in document.values())
    parts = document if nested else {"": document}
    offsets: Offsets = {}
    for partition, buckets in parts.items():
        offsets[partition] = {}
        for bucket, offset in buckets.items():
            whole = isinstance(offset, int) and not isinstance(offset, bool) and LATEST - 1 <= offset < 2**63
            if not bucket.isascii() or not bucket.isdigit() or not whole:
                raise ConfigError(f"{name}: {bucket!r:.40}: {offset!r:.40} is no bucket and offset; take {shape}")
            offsets[partition][int(bucket)] = offset
    return offsets


def _starting(name: str, value: str) -> str:
    """`startingOffsets`: a mode, or offsets as JSON; checked when the mode is known."""
    return value.strip()


OPTIONS: tuple[SparkOption, ...] = (
    SparkOption(
        "table",
        None,
        "The table, `database.table`; the argument of `load`, `save`, `start` means the same.",
        _text,
        ("path",),
        reads=True,
        writes=True,
    ),
    SparkOption(
        "columns", None, "Columns to read, separated by commas; the server sends no others.", _names, reads=True
    ),
    SparkOption(
        "scan.startup.mode",
        "full",
        "Where a stream starts: `full` (the rows there are, then what comes), "
        "`earliest`, `latest`, `timestamp`, `offsets`. Batch reads know all but `latest`.",
        _starting,
        ("startingOffsets",),
        reads=True,
    ),
    SparkOption(
        "scan.startup.timestamp",
        None,
        "With `timestamp`: start with rows committed then or later; epoch milliseconds or `yyyy-MM-dd HH:mm:ss`.",
        parse_timestamp_ms,
        ("startingTimestamp",),
        reads=True,
    ),
    SparkOption(
        "scan.startup.offsets",
        None,
        "With `offsets`: the first offset of each bucket, as JSON: "
        '`{"0": 5}` or `{"partition": {"0": 5}}`; -2 is earliest, -1 latest. Buckets not named: earliest.',
        parse_offsets,
        reads=True,
    ),
    SparkOption(
        "endingOffsets",
        None,
        "Batch reads: the offsets to stop before, as JSON. Buckets not named: latest.",
        parse_offsets,
        reads=True,
    ),
    SparkOption(
        "scan.incremental.start.timestamp",
        None,
        "Batch reads: only rows committed then or later.",
        parse_timestamp_ms,
        reads=True,
    ),
    SparkOption(
        "scan.incremental.end.timestamp",
        None,
        "Batch reads: only rows committed before then.",
        parse_timestamp_ms,
        reads=True,
    ),
    SparkOption(
        "scan.partitions", None, "Partitions to read, by name, separated by commas. Default: all.", _names, reads=True
    ),
    SparkOption(
        "scan.filter",
        None,
        "Only rows that match, judged where the rows lie; batches and streams. A condition as after WHERE in SQL: "
        "`id >= 5 and (day in ('a', 'b') or name like 'x%') and note is not null`.",
        _text,
        reads=True,
    ),
    SparkOption(
        "scan.pushFilters",
        False,
        "Take filters of the query from Spark, where `spark.sql.python.filterPushdown.enabled` is on. Only for "
        "DataFrames that are used once: Spark keeps the filters of the first query for later ones without any.",
        _boolean,
        reads=True,
    ),
    SparkOption(
        "client.options.file",
        None,
        "A JSON file on the driver with more options of the client, such as passwords.",
        _text,
        reads=True,
        writes=True,
    ),
    SparkOption(
        "scan.maxRecordsPerPartition",
        None,
        "Split buckets so that no Spark partition reads more rows.",
        _number(1),
        reads=True,
    ),
    SparkOption(
        "minPartitions",
        None,
        "Split buckets so that there are at least so many Spark partitions.",
        _number(1),
        reads=True,
    ),
    SparkOption(
        "maxRowsPerTrigger",
        None,
        "Streams: the most rows of one micro-batch.",
        _number(1),
        ("maxOffsetsPerTrigger",),
        reads=True,
    ),
    SparkOption(
        "maxBytesPerTrigger",
        None,
        "Streams: about the most bytes of one micro-batch (from the size of rows seen).",
        _number(1),
        reads=True,
    ),
    SparkOption(
        "failOnDataLoss",
        True,
        "Streams: fail when rows vanished before they were read; false goes on with those that are left.",
        _boolean,
        reads=True,
    ),
    SparkOption(
        "includeMetadata",
        False,
        "Add the columns `_change_type`, `_log_offset`, `_commit_timestamp`, `_bucket`.",
        _boolean,
        reads=True,
    ),
    SparkOption(
        "read.changelog",
        False,
        "Primary-key tables: every change (in batches instead of current rows), with the column `_change_type`. "
        "Without that column a stream gives new rows only: no deletes, no rows before updates.",
        _boolean,
        reads=True,
    ),
    SparkOption(
        "read.optimized",
        False,
        "Tables with a lake: the newest snapshot of the lake alone, without the log after it. Other primary-key "
        "tables: current rows as each task finds them, without bringing all buckets to the one moment of planning.",
        _boolean,
        reads=True,
    ),
    SparkOption(
        "scan.snapshot-id",
        None,
        "Batch reads: the table as this snapshot of its lake has it, without the log.",
        _number(0),
        ("snapshot-id", "snapshot_id"),
        reads=True,
    ),
    SparkOption("ignoreDeletes", False, "Leave out deletes and the rows before updates.", _boolean, reads=True),
    SparkOption(
        "write.mode",
        "auto",
        "`append` (log tables), `upsert` or `delete` (primary-key tables); `auto` is "
        "append or upsert, whichever the table takes.",
        _choice(*WRITE_MODES),
        writes=True,
    ),
    SparkOption(
        "write.columns",
        None,
        "Partial update: write only these columns (the primary key among them).",
        _names,
        writes=True,
    ),
    SparkOption(
        "rowkind.column",
        None,
        "A column that says of each row what it is: `+I`, `+U`, `insert`, `update` are "
        "written, `-D`, `delete` delete, `-U` is passed over. It is not written itself.",
        _text,
        ("rowkindColumn",),
        writes=True,
    ),
    SparkOption(
        "write.delivery",
        None,
        "Log tables: `exactly-once` (the default of streams, and with `txnAppId`) or `at-least-once`.",
        _choice(*DELIVERIES),
        writes=True,
    ),
    SparkOption(
        "write.ledger",
        None,
        "The table that exactly-once deliveries are noted in. Default: "
        "`spark_write_ledger` in the database of the table.",
        _text,
        writes=True,
    ),
    SparkOption(
        "txnAppId",
        None,
        "Batch writes: with `txnVersion`, a write that was done before is not done again.",
        _text,
        writes=True,
    ),
    SparkOption(
        "txnVersion", None, "Batch writes: the number of this write; it grows with each one.", _number(0), writes=True
    ),
    SparkOption(
        "overwrite.partitions", None, "With mode `overwrite`: replace only these partitions.", _names, writes=True
    ),
)

_IGNORED = frozenset(
    {"checkpointlocation", "queryname", "provider", "owner", "location", "external", "is_managed_location", "comment"}
)
"""What Spark's own stream writer and catalog leave among the options."""

_CATALOG_PREFIX = "option."
"""Tables of a Spark catalog hand their options over with this prefix, and at times without it as well."""

_LAKE_PREFIX = "datalake."
"""Options of the lake catalog, named as on the server, for those that the server does not show."""

_BY_NAME: dict[str, SparkOption] = {
    name.lower(): option for option in OPTIONS for name in (option.name, *option.aliases)
}
_CLIENT: dict[str, str] = {
    name.lower(): option.key for option in CONFIG_OPTIONS for name in (option.key, *option.aliases)
}


def is_client_option(name: str) -> bool:
    """Whether an option is one of the client's."""
    return name.lower() in _CLIENT


def is_lake_option(name: str) -> bool:
    """Whether an option is one of the lake catalog's."""
    return name.lower().startswith(_LAKE_PREFIX)


@dataclass(frozen=True)
class SourceOptions:
    """The checked options of one read or write. Travels to executors; the password in it is not shown."""

    table_path: TablePath
    client: dict[str, Any] = field(repr=False)
    values: dict[str, Any]
    lake: dict[str, str] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> Any:
        option = _BY_NAME[name.lower()]
        return self.values.get(option.name, option.default)

    def config(self) -> Config:
        return Config(self.client)


def read_options(options: Mapping[str, str], *, streaming: bool = False) -> SourceOptions:
    """The options of a read, checked; a ConfigError names what is wrong."""
    parsed = _parse(options, "reads")
    values = parsed.values
    mode = values.get("scan.startup.mode")
    if mode is not None and mode.startswith("{"):
        values["scan.startup.offsets"] = parse_offsets("startingOffsets", mode)
        values["scan.startup.mode"] = "offsets"
    elif mode is not None:
        values["scan.startup.mode"] = _choice(*STARTUP_MODES)("scan.startup.mode", mode)
    elif "scan.startup.timestamp" in values:
        values["scan.startup.mode"] = "timestamp"
    elif "scan.startup.offsets" in values:
        values["scan.startup.mode"] = "offsets"
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
        for name in ("read.changelog", "endingOffsets", "scan.incremental.start.timestamp"):
            if values.get(name):
                raise ConfigError(f"scan.snapshot-id reads the lake, where there is no {name}; leave one of them out")
        if mode != "full":
            raise ConfigError(f"scan.snapshot-id reads the lake alone, not the log from scan.startup.mode {mode!r} on")
    if streaming:
        batch_only = (
            "endingOffsets",
            "scan.incremental.start.timestamp",
            "scan.incremental.end.timestamp",
            "read.optimized",
            "scan.snapshot-id",
        )
        for name in batch_only:
            if name in values:
                raise ConfigError(f"{name} is for batch reads; a stream takes scan.startup.mode and goes on for ever")
    else:
        if mode == "latest":
            raise ConfigError("scan.startup.mode 'latest' would read nothing in a batch; use it with readStream")
        for name in ("maxRowsPerTrigger", "maxBytesPerTrigger"):
            if name in values:
                raise ConfigError(f"{name} is for streams; a batch read takes scan.maxRecordsPerPartition")
    return parsed


def write_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of a write, checked; a ConfigError names what is wrong."""
    parsed = _parse(options, "writes")
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
        if given.lower().startswith(_CATALOG_PREFIX):
            given = given[len(_CATALOG_PREFIX) :]
            if given.lower() in known:
                continue
        name = given.lower()
        if name in _IGNORED:
            continue
        option = _BY_NAME.get(name)
        if option is not None:
            if not getattr(option, side):
                kind = "writing" if option.writes else "reading"
                raise ConfigError(f"option {option.name} is for {kind}, not for this; leave it out")
            if option.name in values:
                raise ConfigError(f"option {option.name} is given twice, also as {', '.join(option.aliases)}")
            values[option.name] = option.parse(option.name, str(text))
        elif name in _CLIENT:
            client[_CLIENT[name]] = text
        elif is_lake_option(name) and side == "reads":
            lake[name] = str(text)
        else:
            raise ConfigError(_unknown(given, side))
    if "client.options.file" in values:
        filed = _from_file(values.pop("client.options.file"))
        lake = {**{name: str(value) for name, value in filed.items() if is_lake_option(name)}, **lake}
        client = {**{name: value for name, value in filed.items() if not is_lake_option(name)}, **client}
    if "bootstrap.servers" not in client:
        raise ConfigError("option bootstrap.servers is missing: give the address of a server, such as 'localhost:9123'")
    Config(client).validate()
    return SourceOptions(_table_path(values.get("table")), client, values, lake)


def _from_file(name: str) -> dict[str, Any]:
    try:
        document = json.loads(Path(name).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"client.options.file: {name} cannot be read as JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"client.options.file: {name} must hold an object of options by name")
    return document


def _unknown(given: str, side: str) -> str:
    names = [option.name for option in OPTIONS if getattr(option, side)]
    close = difflib.get_close_matches(given.lower(), [*(name.lower() for name in names), *_CLIENT], 1, 0.6)
    spelled = {name.lower(): name for name in (*names, *_CLIENT.values())}
    hint = f"did you mean {spelled.get(close[0], close[0])}?" if close else f"the options are {', '.join(names)}"
    return f"unknown option {given!r:.100} for format 'fluss'; {hint}"


def _table_path(text: str | None) -> TablePath:
    if not text:
        raise ConfigError("no table is named: write load('database.table'), or the option table")
    parts = text.split(".")
    if len(parts) != 2 or not all(parts):
        raise ConfigError(f"{text!r:.200} is not the name of a table; write 'database.table'")
    return TablePath(*parts)
