# SPDX-License-Identifier: Apache-2.0
"""`$lake`: the newest lake snapshot of a table alone, with every reader."""

from __future__ import annotations

import pytest
from tests.lake.support import LakeHarness, row

import fluss
import fluss.aio


def by_id(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda one: str(one["id"]).zfill(6))


@pytest.mark.parametrize("keys", [(), ("id",)])
async def test_the_lake_alone(paimon: LakeHarness, keys: tuple[str, ...]) -> None:
    path = paimon.create("virtual", primary_keys=list(keys))
    put = paimon.upsert if keys else paimon.append
    with fluss.connect(paimon.server.bootstrap_servers) as db:
        view = db.table(f"{path}$lake")
        assert view.to_pylist() == [], "nothing was tiered yet"
        put(path, [row(i) for i in range(5)])
        paimon.tier(path)
        put(path, [row(i) for i in range(5, 9)])
        assert by_id(view.to_pylist()) == [row(i) for i in range(5)]
        assert by_id(db.table(path).to_pylist()) == [row(i) for i in range(9)]
        assert view.count(where="id < 2") == 2
        assert db.sql(f"select count(*) from {path}$lake").fetchall() == [(5,)]
        config = fluss.Config({"bootstrap.servers": paimon.server.bootstrap_servers})
        async with await fluss.aio.FlussConnection.create(config) as conn:
            table = await conn.get_table(f"{path}$lake")
            scan = table.new_scan().project_by_name(["id", "name"]).filter(fluss.col("id") >= 3)
            found = (await scan.create_table_batch_scanner().to_arrow()).to_pylist()
            assert len(await table.new_scan().limit(2).create_table_batch_scanner().to_arrow()) <= 2
            for refused in (scan.create_log_scanner, scan.create_record_batch_log_scanner):
                with pytest.raises(fluss.InvalidArgumentError, match="read as a whole"):
                    await refused()
            with pytest.raises(fluss.InvalidArgumentError, match="can only be scanned"):
                table.new_upsert() if keys else table.new_append()
        assert by_id(found) == [{"id": i, "name": row(i)["name"]} for i in (3, 4)]
