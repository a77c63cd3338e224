# SPDX-License-Identifier: Apache-2.0
"""The changelog has exactly the changes of a plain model, in the order of the writes: no two may change places."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.server.kv.support import SCHEMA, Bucket, Delete, Row, kv_batch, opened, table

Changes = list[tuple[str, Row]]


class Model:
    """What one write after the other does to the rows of a table with the columns id, name and score."""

    def __init__(self, *, before: bool = True, first_row: bool = False, partial: bool = False) -> None:
        self.rows: dict[int, Row] = {}
        self.changes: Changes = []
        self._before, self._first_row, self._partial = before, first_row, partial

    def write(self, write: Row | Delete) -> None:
        key = write.key[0] if isinstance(write, Delete) else write[0]
        old = self.rows.get(key)
        if isinstance(write, Delete):
            if old is not None:
                self.changes.append(("-D", self.rows.pop(key)))
            return
        if old is not None and self._first_row:
            return
        row = (*write[:2], old[2] if old is not None else None) if self._partial else write
        self.rows[key] = row
        if old is None:
            self.changes.append(("+I", row))
            return
        if self._before:
            self.changes.append(("-U", old))
        self.changes.append(("+U", row))


def some_writes(rng: random.Random, count: int, keys: int, deletes: float) -> list[Row | Delete]:
    writes: list[Row | Delete] = []
    for number in range(count):
        key = rng.randrange(keys)
        if rng.random() < deletes:
            writes.append(Delete(key))
        else:
            writes.append((key, f"{number}-{rng.randrange(1000)}" * rng.randrange(3), rng.random()))
    return writes


FULL = (Model, {}, [], 0.2)
FIRST_ROW: tuple[Callable[[], Model], dict[str, str], list[int], float] = (
    lambda: Model(first_row=True), {"merge__engine": "first_row"}, [], 0.0,
)  # fmt: skip
PARTIAL: tuple[Callable[[], Model], dict[str, str], list[int], float] = (lambda: Model(partial=True), {}, [0, 1], 0.0)


@pytest.mark.parametrize("keys", [5, 10_000], ids=["repeated keys", "distinct keys"])
@pytest.mark.parametrize(("model", "properties", "targets", "deletes"), [FULL, FIRST_ROW, PARTIAL])
@pytest.mark.parametrize("log_format", ["arrow", "compacted"])
async def test_one_batch_after_the_other(
    tmp_path: Path,
    model: Callable[[], Model],
    properties: dict[str, str],
    targets: Sequence[int],
    deletes: float,
    keys: int,
    log_format: str,
) -> None:
    rng, expected = random.Random(7), model()
    async with opened(tmp_path, table(log_format=log_format, **properties)) as bucket:
        for count in (1, 2, 3, 7, 40, 300, 1, 2):
            writes = some_writes(rng, count, keys, deletes)
            if targets:
                writes = [(*write[:2], None) for write in writes if not isinstance(write, Delete)]
            await bucket.put(writes, targets)
            for write in writes:
                expected.write(write)
        assert bucket.changelog() == expected.changes
        assert {row[0]: row for row in await bucket.rows()} == expected.rows


async def test_batches_that_arrive_together(tmp_path: Path) -> None:
    """They are prepared in one step."""
    rng, expected = random.Random(11), Model()

    async def put_all(bucket: Bucket, batches: list[list[Row | Delete]]) -> None:
        info = bucket.entry.table_info
        puts = [
            asyncio.ensure_future(bucket.tablet.put(memoryview(kv_batch(info, SCHEMA, 1, writes)), [], 0))
            for writes in batches
        ]
        for result in await asyncio.gather(*puts):
            await bucket.log.committed(result.end_offset)

    async with opened(tmp_path, table()) as bucket:
        for round_number in range(5):
            batches = [some_writes(rng, rng.randint(1, 30), 8 if round_number % 2 else 500, 0.2) for _ in range(10)]
            await put_all(bucket, batches)
            for write in (write for batch in batches for write in batch):
                expected.write(write)
        assert bucket.changelog() == expected.changes
