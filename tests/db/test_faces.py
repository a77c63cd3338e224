# SPDX-License-Identifier: Apache-2.0
"""The asynchronous twin, the generated code, and the documentation of every public name."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
from pathlib import Path

import pytest

import fluss
import fluss.aio
from fluss.db import blocking, changes, database, follow, row_writer, table, write_results

ROOT = Path(__file__).resolve().parents[2]


async def test_the_twin_does_the_same(db_server: fluss.LocalServer, db: fluss.Database) -> None:
    async def rows():
        for i in range(2_500):
            yield {"id": i, "v": "a"}

    async with await fluss.aio.connect(db_server.bootstrap_servers, timeout=30) as twin:
        orders = await twin.create_table("orders", "id bigint, v string", primary_key="id", buckets=3)
        assert (await orders.upsert(rows())).rows == 2_500
        assert await orders.get(7) == {"id": 7, "v": "a"}
        assert await orders.get_many([7, -1]) == [{"id": 7, "v": "a"}, None]
        assert await orders.contains(7)
        await orders.update(7, v="b")
        await orders.delete(8)
        assert await orders.count() == 2_499
        assert len(await orders.to_arrow(where="v = 'a'")) == 2_498
        assert sum([batch.num_rows async for batch in orders.batches()]) == 2_499
        kinds = [change.kind async for change in orders.follow("earliest", stop_at_end=True)]
        assert (kinds.count("insert"), kinds.count("update_after"), kinds.count("delete")) == (2_500, 1, 1)
        pairs = [change async for change in orders.changes() if change.kind == "update"]
        assert [(pair.old, pair.new) for pair in pairs] == [({"id": 7, "v": "a"}, {"id": 7, "v": "b"})]
        async with orders.writer() as out:
            out.upsert((9_999, "x"))
        assert await twin.has_table("orders")
        assert await twin.tables() == ["orders"]
        async with orders.follow("latest", timeout=10) as changes:
            # The position is taken when the first change is asked for.
            first = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0.3)
            await orders.upsert((1, "new"))
            assert (await first).row["id"] == 1
        with pytest.raises(fluss.InvalidRowError, match="row 1, column") as caught:
            await orders.upsert([(1, "x"), ("y", "x")])
        assert caught.value.written == 1  # type: ignore[attr-defined]


async def test_an_error_of_an_asynchronous_source_is_raised(db_server: fluss.LocalServer, db: fluss.Database) -> None:
    async def rows():
        for i in range(1_700):
            yield (i,)
        raise LookupError("no more")

    async with await fluss.aio.connect(db_server.bootstrap_servers, timeout=30) as twin:
        table = await twin.create_table("t", "id bigint")
        with pytest.raises(LookupError, match="no more"):
            await table.append(rows())
        assert await table.count() == 1_700


async def test_the_twin_with_a_folder(tmp_path: Path) -> None:
    async with await fluss.aio.connect(tmp_path / "shop") as twin:
        log = await twin.create_table("log", [{"a": 1}])
        assert await log.to_pylist() == [{"a": 1}]


def test_the_generated_code_is_current() -> None:
    script = ROOT / "scripts" / "generate_blocking.py"
    spec = importlib.util.spec_from_file_location("generate_blocking", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate_blocking"] = module  # dataclasses look for the module of their class
    spec.loader.exec_module(module)
    for path, text in module.rendered().items():
        assert path.read_text(encoding="utf-8") == text, "run python scripts/generate_blocking.py"


@pytest.mark.parametrize(("sync", "twin"), [(blocking.Table, table.Table), (blocking.Database, database.Database)])
def test_both_faces_have_the_same_names(sync: type, twin: type) -> None:
    def names(cls: type) -> set[str]:
        return {name for name in dir(cls) if not name.startswith("_")}

    assert names(twin) <= names(sync)
    for name in names(twin):
        ours, theirs = getattr(sync, name), getattr(twin, name)
        if callable(theirs):
            assert str(inspect.signature(ours)).partition("->")[0] == str(inspect.signature(theirs)).partition("->")[0]


PUBLIC = [
    *(blocking.Table, blocking.Database, blocking.Follow, blocking.TableWriter),
    *(table.Table, database.Database, follow.Follow, row_writer.TableWriter),
    *(changes.Change, changes.ChangePair, changes.ChangeBatch, changes.Position, write_results.WriteResult),
]


@pytest.mark.parametrize("cls", PUBLIC, ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_every_public_name_has_an_example(cls: type) -> None:
    assert "Example:" in (cls.__doc__ or "")
    for owner in cls.__mro__:
        for name, member in vars(owner).items():
            if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
                continue
            text = inspect.getdoc(member) or ""
            assert text, f"{cls.__name__}.{name}"
            if inspect.isfunction(member):
                assert "Example:" in text or "Same as" in text, f"{cls.__name__}.{name}"


def test_connect_has_an_example() -> None:
    assert "Example:" in (fluss.connect.__doc__ or "")
    assert "await" not in (fluss.connect.__doc__ or "")
    assert "await" in (fluss.aio.connect.__doc__ or "")


async def test_connect_is_awaited_or_entered(db_server: fluss.LocalServer) -> None:
    async with fluss.aio.connect(db_server.bootstrap_servers) as db:
        assert isinstance(await db.databases(), list)
    with pytest.raises(fluss.ConnectionClosedError):
        await db.databases()
    async with await fluss.aio.connect(db_server.bootstrap_servers) as db:
        assert isinstance(await db.databases(), list)
    task = asyncio.create_task(fluss.aio.connect(db_server.bootstrap_servers))
    await (await task).close()
    with pytest.raises(fluss.NetworkError):
        async with fluss.aio.connect("127.0.0.1:1", timeout=0.5):
            pass
