# SPDX-License-Identifier: Apache-2.0
"""pandas and polars in and out. Columns and rows are chosen on the way, not after the fact."""

from __future__ import annotations

import asyncio

import pandas as pd
import polars as pl
import pyarrow as pa

import fluss

PATH = fluss.TablePath("fluss", "rides")


async def main() -> None:
    with fluss.LocalServer() as server, await fluss.FlussConnection.create(server.config()) as conn:
        admin = await conn.get_admin()
        schema = fluss.Schema(pa.schema([("id", pa.int64()), ("city", pa.string()), ("km", pa.float64())]))
        # With statistics a filtered scan skips batches that cannot match, on the server.
        descriptor = fluss.TableDescriptor(schema, properties={"table.statistics.columns": "*"})
        await admin.create_table(PATH, descriptor)
        table = await conn.get_table(PATH)

        with table.new_append().create_writer() as writer:
            writer.write_pandas(pd.DataFrame({"id": range(5), "city": "Oslo", "km": [1.0, 2.0, 3.0, 4.0, 5.0]}))
            writer.write_polars(pl.DataFrame({"id": [5, 6], "city": ["Rome", "Rome"], "km": [10.0, 20.0]}))

        scanner = await table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        print(scanner.to_pandas().groupby("city")["km"].sum())

        long_rides = table.new_scan().filter(fluss.col("km") >= 4).project_by_name(["city", "km"])
        scanner = await long_rides.create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        print(scanner.to_polars())


if __name__ == "__main__":
    asyncio.run(main())
