# SPDX-License-Identifier: Apache-2.0
"""Lookups of expired partitions: rows that this server has dropped and the lake still has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor

import pyarrow as pa

from fluss import _plugins
from fluss.errors import FlussError, HistoricalPartitionThrottledError, KvStorageError, UnknownServerError
from fluss.net.deadline import Deadline, wait_for
from fluss.net.eager import retrieve_exception
from fluss.rows import kv_key_encoder
from fluss.server.catalog import TableEntry
from fluss.server.catalog.cluster_configs import ClusterConfigs
from fluss.server.catalog.lake_hook import LakeTables, lake_options
from fluss.server.exposure import scrub
from fluss.server.kv.values import ValueCodec, decode_keys

SECONDS_MAX = 30.0
"""Time for all lookups of one request: that after which clients repeat it."""
_VALUES_BYTES_MAX = 16 * 1024 * 1024
"""Rows of one lookup, which wait in memory for the others of their request."""

Values = list["bytes | None"]


class HistoricalLookups:
    """Reads rows from the lake by key, in threads of its own: a slow lake holds up no other request.

    A lookup that the server cannot take is refused, and its client tries again later.
    """

    def __init__(self, configs: ClusterConfigs, executor: Executor, in_flight_max: int) -> None:
        self._configs = configs
        self._executor = executor
        self._in_flight_max = in_flight_max
        self.in_flight = 0
        self.per_request_max = max(1, in_flight_max // 4)
        """Lookups of one request at the same time: one that asks for many buckets leaves room for others."""

    async def look_up(
        self, entry: TableEntry, partition: tuple[str, ...], bucket: int, keys: Sequence[bytes], deadline: Deadline
    ) -> Values:
        """Return the stored value of each key in a bucket of an expired partition; None where there is no row."""
        if self.in_flight >= self._in_flight_max:
            raise HistoricalPartitionThrottledError(
                f"{self.in_flight} lookups of expired partitions are in flight, the most allowed (option "
                f"'netty.server.max-queued-historical-requests'). Look up table '{entry.table_path}' again later."
            )
        what = f"Cannot look up partition '{'$'.join(partition)}' of table '{entry.table_path}' in the lake"
        found = lake_options(self._configs)
        if found is None:
            raise UnknownServerError(
                f"{what}: this server has none (options 'datalake.format' and 'datalake.paimon.warehouse')."
            )
        if deadline.expired:
            raise KvStorageError(f"{what}: the other buckets of the request took too long. Ask for fewer at a time.")
        lake_format, options = found
        self.in_flight += 1
        reading = asyncio.get_running_loop().run_in_executor(
            self._executor, _read, lake_format, options, entry, partition, bucket, keys
        )
        reading.add_done_callback(self._done)
        kind: type[FlussError] = KvStorageError
        try:
            # Shielded: a lookup is in flight until its thread is free again, whether or not its client still waits.
            return await wait_for(asyncio.shield(reading), deadline.remaining_ms / 1000)
        except asyncio.TimeoutError:
            reason = f"no answer within {SECONDS_MAX:.0f} s"
        except FlussError as error:
            reason, kind = error.message, UnknownServerError
        except Exception as error:
            # Libraries of lake formats raise what they like. A file that compaction has removed is one of the reasons,
            # so clients try again.
            reason = f"{type(error).__name__}: {error}"
        settings = {key.removeprefix(f"datalake.{lake_format}."): value for key, value in options.items()}
        text = scrub(reason, settings, lake_format)
        raise kind(f"{what}: {text}") from None

    def _done(self, reading: asyncio.Future[Values]) -> None:
        self.in_flight -= 1
        retrieve_exception(reading)

    def shut_down(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


def _read(
    lake_format: str,
    options: dict[str, str],
    entry: TableEntry,
    partition: tuple[str, ...],
    bucket: int,
    keys: Sequence[bytes],
) -> Values:
    info = entry.table_info
    encoder = kv_key_encoder(info)
    codec = ValueCodec(info.kv_format, entry.schemas, info.schema_id)
    wanted = set(keys)
    columns = pa.RecordBatch.from_arrays(decode_keys(encoder, list(wanted)), names=list(encoder.names))
    lake: LakeTables = _plugins.implementation("server.lake")
    values: dict[bytes, bytes] = {}
    for batch in lake.look_up(lake_format, options, info, partition, bucket, columns):
        found = encoder.encode_columns([batch.column(name) for name in encoder.names]).to_list()
        rows = [row for row, key in enumerate(found) if key in wanted]
        values.update(zip((found[row] for row in rows), codec.encode_batch(batch.take(rows))))
        if sum(map(len, values.values())) > _VALUES_BYTES_MAX:
            raise UnknownServerError(
                f"the rows have more than {_VALUES_BYTES_MAX} bytes. Ask for fewer keys at a time."
            )
    return [values.get(key) for key in keys]
