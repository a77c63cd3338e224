# SPDX-License-Identifier: Apache-2.0
"""What a fetcher costs with many buckets, and that it fetches from each of them."""

from __future__ import annotations

import asyncio
import inspect

import pyarrow as pa
import pytest

import fluss
from fluss.client.scan.subscription import Subscription

BUCKETS = 200
ROWS = 20 * BUCKETS
FIELDS = [pa.field("id", pa.int64())]
pytestmark = pytest.mark.table(bucket_count=BUCKETS, bucket_keys=["id"])


async def fill(table):
    writer = table.new_append().create_writer()
    writer.write_arrow(pa.table({"id": pa.array(range(ROWS), pa.int64())}))
    await writer.flush()


async def poll_rows(scanner, rows):
    ids = []
    while len(ids) < rows:
        for batch in await scanner.poll_record_batch(5000):
            ids += batch.batch.column("id").to_pylist()
    return ids


async def test_buckets_subscribed_together_share_requests(conn, table):
    await fill(table)
    async with await table.new_scan().create_record_batch_log_scanner() as scanner:
        before = conn.metrics()["scanner_fetches_total"]
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        assert sorted(await poll_rows(scanner, ROWS)) == list(range(ROWS))
        assert conn.metrics()["scanner_fetches_total"] - before <= 10
        before = conn.metrics()["scanner_fetches_total"]
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        assert (await scanner.to_arrow()).num_rows == ROWS
        assert conn.metrics()["scanner_fetches_total"] - before <= 20


async def test_a_batch_costs_the_same_however_many_buckets_there_are(table, monkeypatch):
    looks = 0
    fetched_all = inspect.getattr_static(Subscription, "fetched_all").fget

    def counted(subscription):
        nonlocal looks
        looks += 1
        return fetched_all(subscription)

    monkeypatch.setattr(Subscription, "fetched_all", property(counted))
    await fill(table)
    async with await table.new_scan().create_record_batch_log_scanner() as scanner:
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        assert (await scanner.to_arrow()).num_rows == ROWS
    assert looks < 20 * BUCKETS, f"{looks} looks at {BUCKETS} buckets of one batch each"


async def test_a_bucket_that_is_subscribed_anew_while_a_poll_waits_is_read(table):
    await fill(table)
    async with await table.new_scan().create_record_batch_log_scanner() as scanner:
        scanner.subscribe_buckets(dict.fromkeys(range(BUCKETS), fluss.EARLIEST_OFFSET))
        await poll_rows(scanner, ROWS)
        waiting = asyncio.ensure_future(poll_rows(scanner, 1))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        scanner.unsubscribe(7)
        scanner.subscribe(7, 0)
        again = await waiting
        assert again == sorted(again)
        position = dict(scanner.get_subscribed_buckets())[fluss.TableBucket(table.get_table_info().table_id, 7)]
        assert position == len(again) > 0
