# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from fluss.errors import ConfigError, InvalidArgumentError
from fluss.spark import lookup_join

if TYPE_CHECKING:
    from tests.spark.conftest import SparkHarness

USERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("age", pa.int32())])


def test_rows_are_looked_up(harness: SparkHarness, tmp_path: Path) -> None:
    users = harness.create(USERS, primary_key=["id"], buckets=2)
    harness.put(users, [{"id": i, "name": f"u{i}", "age": i * 2} for i in range(5)])
    orders = harness.create(pa.schema([("user", pa.int64()), ("n", pa.int32())]))
    harness.put(orders, [{"user": i % 7 if i != 9 else None, "n": i} for i in range(20)])
    joined = lookup_join(harness.read(orders), users, {"user": "id"}, harness.bootstrap)
    assert joined.columns == ["user", "n", "name", "age"]
    expected = []
    for i in range(20):
        user = i % 7 if i != 9 else None
        known = user is not None and user < 5
        expected.append((i, user, f"u{user}" if known else None, user * 2 if known and user is not None else None))
    assert sorted((row.n, row.user, row.name, row.age) for row in joined.collect()) == expected
    streamed = lookup_join(harness.stream(orders), users, {"user": "id"}, harness.bootstrap, columns=["name"])
    assert sorted(row[1:] for row in harness.collect(streamed, tmp_path)) == [(n, name) for n, _, name, _ in expected]


def test_wrong_joins_are_refused(harness: SparkHarness) -> None:
    users = harness.create(USERS, primary_key=["id"])
    log = harness.create(USERS)
    frame = harness.spark.range(3)
    with pytest.raises(ConfigError, match=r"write 'database\.table'"):
        lookup_join(frame, "users", "id", harness.bootstrap)
    with pytest.raises(InvalidArgumentError, match="whole primary key"):
        lookup_join(frame, log, "id", harness.bootstrap)
    with pytest.raises(InvalidArgumentError, match="has no column 'user'"):
        lookup_join(frame, users, {"user": "id"}, harness.bootstrap)
    with pytest.raises(InvalidArgumentError, match="'name' already"):
        lookup_join(frame.selectExpr("id", "'x' as name"), users, "id", harness.bootstrap)
