# SPDX-License-Identifier: Apache-2.0
"""Nearest-neighbour search over a table that is being written: rows flow into Fluss, and from there into Lance.

The newest rows are found in the log, all others by the index of the lake. Needs ``pip install 'fluss-python[lance]'``.
"""

from __future__ import annotations

import asyncio
import tempfile

import lance
import numpy as np
import pyarrow as pa

import fluss
from fluss.client.blocking_client import close_shared_clients
from fluss.lake import TieringService, union_read

SIZE = 8
random = np.random.default_rng(7)


def documents(first: int, count: int) -> pa.Table:
    """Rows with random vectors of one length."""
    vectors = random.normal(size=(count, SIZE)).astype(np.float32)
    return pa.table(
        {"id": pa.array(range(first, first + count), pa.int64()), "embedding": pa.array(list(vectors))},
        schema=pa.schema([("id", pa.int64()), ("embedding", pa.list_(pa.float32()))]),
    )


async def main() -> None:
    folder = tempfile.mkdtemp()
    options = {"datalake.format": "lance", "datalake.lance.warehouse": folder}
    with fluss.LocalServer(options=options) as server:
        connection = await fluss.FlussConnection.create(server.config())
        path = fluss.TablePath("fluss", "documents")
        descriptor = fluss.TableDescriptor(
            fluss.Schema(documents(0, 0).schema),
            bucket_count=2,
            properties={"table.datalake.enabled": "true"},
            # Lance searches arrays of one length; the property is that of Apache Fluss.
            custom_properties={"embedding.arrow.fixed-size-list.size": str(SIZE)},
        )
        await connection.get_admin().create_table(path, descriptor)
        writer = (await connection.get_table(path)).new_append().create_writer()
        client = {"bootstrap.servers": server.bootstrap_servers}
        service = TieringService(client)

        writer.write_arrow(documents(0, 2_000))
        await writer.flush()
        await asyncio.to_thread(service.run_once)
        dataset = lance.dataset(f"{folder}/fluss/documents.lance")
        dataset.create_index("embedding", "IVF_FLAT", num_partitions=8)

        # Rows keep coming, and rounds keep moving them; the index need not know of them to find them.
        wanted = documents(5_000, 1)
        writer.write_arrow(documents(2_000, 500))
        writer.write_arrow(wanted)
        await writer.flush()
        query = np.array(wanted["embedding"][0].as_py(), np.float32)

        dataset = lance.dataset(f"{folder}/fluss/documents.lance")
        search = {"column": "embedding", "q": query, "k": 1}
        print("in the lake before the next round:", dataset.to_table(nearest=search)["id"].to_pylist() == [5_000])

        fresh = await asyncio.to_thread(union_read, client, path)
        vectors = np.stack(fresh["embedding"].to_numpy(zero_copy_only=False))
        best = int(np.argmin(((vectors - query) ** 2).sum(axis=1)))
        print("in lake and log as one:", fresh["id"][best].as_py())

        await asyncio.to_thread(service.run_once)
        dataset = lance.dataset(f"{folder}/fluss/documents.lance")
        print("in the lake after it:", dataset.to_table(nearest=search)["id"].to_pylist())
        close_shared_clients()
        connection.close()


if __name__ == "__main__":
    asyncio.run(main())
