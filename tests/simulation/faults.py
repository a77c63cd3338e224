# SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a round: each fault begins at a random moment, and ends before what is stored is compared."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

from tests.crash.reading import read_bucket
from tests.simulation.tables import BUCKETS, EVENTS, LostOrDoubledError, text
from tests.simulation.world import World

import fluss.aio as fluss
from fluss.metadata import TableBucket


async def pause(world: World) -> None:
    await pause_for(world.rng)


async def pause_for(rng: random.Random) -> None:
    """Wait for a moment of a round: while writes are in flight, or after most of them."""
    await asyncio.sleep(rng.expovariate(1 / rng.choice((0.003, 0.05))))


async def nothing(world: World) -> None:
    await pause(world)


async def reset(world: World) -> None:
    for _ in range(world.rng.randint(1, 3)):
        await pause(world)
        world.note("connections reset")
        world.network.reset(share=world.rng.choice((0.5, 1.0)))


async def cut(world: World) -> None:
    await pause(world)
    world.note("network cut")
    world.network.cut = True
    await asyncio.sleep(world.rng.uniform(0.05, 20))
    world.network.cut = False
    world.note("network back")


async def slow(world: World) -> None:
    world.network.delay_s = world.rng.uniform(0.005, 0.2)
    await asyncio.sleep(world.rng.uniform(0.1, 2))


async def kill(world: World) -> None:
    await pause(world)
    world.kill_server()
    await pause(world)
    await world.start_server()


async def power(world: World) -> None:
    await pause(world)
    world.lose_power()
    await pause(world)
    await world.start_server()


async def restart(world: World) -> None:
    await pause(world)
    await world.stop_server()
    await pause(world)
    await world.start_server()


async def bad_disk(world: World) -> None:
    await pause(world)
    world.break_disk(world.rng.choice((0.02, 0.1, 0.5, 1.0)))
    await asyncio.sleep(world.rng.uniform(0.01, world.rng.choice((2, 10))))
    world.mend_disk()


async def bad_disk_then_power(world: World) -> None:
    await bad_disk(world)
    await power(world)


async def damage(world: World) -> None:
    """Bytes of a log or snapshot change or end early while no server runs; later they are put back, if need be.

    Meanwhile the server may refuse what it was, and must not serve anything else, nor lose what was acknowledged.
    """
    await pause(world)
    if world.rng.random() < 0.5:
        await world.stop_server()
    else:
        world.kill_server()
    world.damage_stores(share=0.5)
    put_back = world.damage_file()
    await world.start_server()
    await read_damaged(world)
    await world.stop_server()
    put_back()
    await world.start_server()


async def read_damaged(world: World) -> None:
    """Read what can be read; every row must be one that was written."""
    with contextlib.suppress(fluss.FlussError):
        async with await world.connect(**{"request-timeout": "1 s"}) as connection:
            table_id = (await connection.get_table(EVENTS)).get_table_info().table_id
            for number in range(BUCKETS):
                with contextlib.suppress(fluss.FlussError):
                    changes, _ = await read_bucket(connection, EVENTS, TableBucket(table_id, number))
                    for row in (change.row for change in changes):
                        if row["text"] != text(row["id"]):
                            raise LostOrDoubledError(f"damaged row of {EVENTS}: {row}")


async def clock(world: World) -> None:
    """The clock is wrong for less than its tolerance, by up to a year: nothing may expire by it."""
    await pause(world)
    may_follow = world.environment.sim_clock.is_unsure
    await wrong_clock(world)
    if may_follow:
        world.stamped_right_since = world.loop.time()


async def wrong_start(world: World) -> None:
    """The same when a server starts. It cannot know how long it was off."""
    await pause(world)
    world.kill_server()
    await wrong_clock(world, world.start_server)
    world.stamped_right_since = world.loop.time()


async def wrong_clock(world: World, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
    world.set_clock_off(world.rng.choice((-1, 1)) * world.rng.uniform(3600, 365 * 86400))
    if meanwhile is not None:
        await meanwhile()
    await asyncio.sleep(world.rng.uniform(1, 50))
    world.set_clock_off(0)


async def heal(world: World) -> None:
    world.network.cut = False
    world.network.delay_s = 0.0002


FAULTS: dict[str, Callable[[World], Awaitable[None]]] = {
    "nothing": nothing,
    "reset": reset,
    "cut": cut,
    "slow": slow,
    "kill": kill,
    "power": power,
    "restart": restart,
    "disk": bad_disk,
    "disk and power": bad_disk_then_power,
    "damage": damage,
    "clock": clock,
    "clock at a start": wrong_start,
}
NETWORK_FAULTS = ("nothing", "reset", "cut", "slow", "clock")
"""Faults that leave the files alone: of the rows that were read before, none is read again after these."""
