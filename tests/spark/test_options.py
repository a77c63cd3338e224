# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from fluss.errors import ConfigError
from fluss.spark.option_types import BucketOffsets, Moment
from fluss.spark.options import OPTIONS, read_options, write_options

BASE = {"bootstrap.servers": "localhost:9123", "path": "db.t"}


def test_spark_lowers_names_and_values_come_back_typed() -> None:
    options = read_options({**BASE, "scan.maxrecordsperpartition": "5", "failondataloss": "FALSE", "columns": "a, b"})
    assert options["scan.maxRecordsPerPartition"] == 5
    assert options["failOnDataLoss"] is False
    assert options["columns"] == ("a", "b")
    assert options["scan.startup.mode"] == "full"
    assert str(options.table_path) == "db.t"


def test_client_options_are_taken_with_their_own_spelling() -> None:
    options = write_options({**BASE, "writer.batch-size": "1000", "security.sasl.username": "me"})
    assert options.config().writer_batch_size == 1000
    assert options.config().security_sasl_username == "me"


def test_the_password_is_not_shown() -> None:
    given = {**BASE, "security.protocol": "sasl", "security.sasl.username": "u", "security.sasl.password": "hush"}
    assert "hush" not in repr(read_options(given))


def test_options_of_the_lake_are_for_reading_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "options.json"
    file.write_text('{"datalake.paimon.s3.secret-key": "hush", "datalake.paimon.s3.region": "filed"}')
    given = {**BASE, "client.options.file": str(file), "datalake.paimon.s3.region": "here"}
    options = read_options(given)
    assert options.lake == {"datalake.paimon.s3.secret-key": "hush", "datalake.paimon.s3.region": "here"}
    assert options.client == {"bootstrap.servers": "localhost:9123"}
    assert "hush" not in repr(options)
    with pytest.raises(ConfigError, match=r"unknown option 'datalake\.paimon\.s3\.region'"):
        write_options(given)
    with pytest.raises(ConfigError, match=r"scan\.snapshot-id is for batch reads"):
        read_options({**BASE, "scan.snapshot-id": "5"}, streaming=True)


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"foo": "1"}, "unknown option 'foo'"),
        ({"scan.startup.mod": "full"}, "did you mean scan.startup.mode?"),
        ({"minPartitions": "0"}, "minPartitions: got '0'"),
        ({"minPartitions": "many"}, "takes a whole number from 1 on"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss: got 'maybe', but it takes true or false"),
        ({"scan.startup.mode": "late"}, "one of 'full', 'earliest', 'latest', 'timestamp', 'offsets'"),
        ({"scan.startup.mode": "timestamp"}, "needs the option 'scan.startup.timestamp'"),
        ({"scan.startup.mode": "earliest", "scan.startup.timestamp": "5"}, "but scan.startup.mode is 'earliest'"),
        ({"scan.startup.mode": "latest"}, "would read nothing in a batch"),
        ({"scan.incremental.end.timestamp": "5"}, "needs an earlier"),
        ({"scan.incremental.start.timestamp": "5", "scan.incremental.end.timestamp": "5"}, "needs an earlier"),
        ({"write.mode": "append"}, "write.mode is for writing"),
        ({"columns": ","}, "names separated by commas"),
        ({"columns": "a,a"}, "twice"),
        ({"endingOffsets": "[1]"}, "as JSON"),
        ({"endingOffsets": '{"a": 1}'}, "as JSON"),
        ({"maxRowsPerTrigger": "5"}, "is for streams"),
        ({"table": "t", "path": "db.u"}, "given twice"),
        ({"scan.snapshot-id": "last"}, "scan.snapshot-id: got 'last'"),
        ({"scan.snapshot-id": "5", "read.changelog": "true"}, "where there is no read.changelog"),
        ({"snapshot-id": "5", "scan.incremental.start.timestamp": "1"}, "no scan.incremental.start.timestamp"),
        ({"snapshot_id": "5", "scan.startup.mode": "earliest"}, "not the log from scan.startup.mode 'earliest' on"),
    ],
)
def test_bad_read_options_are_named(extra: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_options({**BASE, **extra})
    assert text in caught.value.message
    assert "\n" not in caught.value.message


def test_streams_refuse_options_of_batches() -> None:
    with pytest.raises(ConfigError, match="is for batch reads"):
        read_options({**BASE, "endingOffsets": '{"0": 1}'}, streaming=True)


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"txnAppId": "a"}, "belong together"),
        ({"write.mode": "merge"}, "one of 'auto', 'append', 'upsert', 'delete'"),
        ({"rowkind.column": "k", "write.mode": "delete"}, "cannot be combined"),
        ({"write.columns": "k", "write.mode": "delete"}, "is for upserts"),
        ({"txnAppId": "a", "txnVersion": "1", "write.delivery": "at-least-once"}, "exactly-once"),
        ({"columns": "a"}, "columns is for reading"),
    ],
)
def test_bad_write_options_are_named(extra: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        write_options({**BASE, **extra})
    assert text in caught.value.message


@pytest.mark.parametrize("options", [{"path": "db.t"}, {**BASE, "path": "t"}, {"bootstrap.servers": "localhost:9123"}])
def test_server_and_table_must_be_named(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        read_options(options)


def test_starting_offsets_may_be_a_mode_or_json() -> None:
    assert read_options({**BASE, "startingOffsets": "earliest"})["scan.startup.mode"] == "earliest"
    options = read_options({**BASE, "startingoffsets": '{"0": 3, "1": -2}'})
    assert options["scan.startup.mode"] == "offsets"
    assert options["scan.startup.offsets"] == {"": {0: 3, 1: -2}}
    assert BucketOffsets().convert('{"2024": {"0": 7}}') == {"2024": {0: 7}}


def test_times_are_milliseconds_or_text() -> None:
    assert Moment().convert("1700000000000") == 1_700_000_000_000
    moment = datetime.datetime(2024, 1, 2, 3, 4, 5)
    assert Moment().convert("2024-01-02 03:04:05") == int(moment.timestamp() * 1000)
    assert Moment().convert("2024-01-02T03:04:05Z") == 1704164645000
    assert Moment().convert("yesterday") is None


def test_every_option_says_what_it_means() -> None:
    assert all(option.doc.endswith(".") and (option.reads or option.writes) for option in OPTIONS.values())


def test_options_of_the_java_client_keep_their_prefix_and_their_reason() -> None:
    options = read_options({**BASE, "client.writer.BATCH-size": "64 kb", "client.request-timeout": "10 s"})
    assert options.config().writer_batch_size == 65536
    assert options.config().request_timeout_ms == 10_000
    with pytest.raises(ConfigError, match="cannot be used: memory for rows is not divided into pages"):
        read_options({**BASE, "client.writer.buffer.page-size": "1 mb"})
