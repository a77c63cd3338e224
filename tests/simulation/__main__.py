# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.simulation --seed 7 --rounds 1000``: simulated rounds, in worlds of ten rounds with a seed each."""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.simulation.scenario import Scenario
from tests.simulation.world import World, collect_garbage

ROUNDS_PER_WORLD = 10


def simulate(seed: int, rounds: int = ROUNDS_PER_WORLD) -> tuple[Scenario, str]:
    """Run one world; returns what it did, and a digest that is equal for equal seeds."""
    folder = Path(tempfile.mkdtemp(prefix="fluss-simulation-", dir=_memory_folder()))
    world, scenario = World(seed, folder), Scenario(rounds)
    try:
        world.run(scenario)
    except BaseException as error:
        error.add_note(f"seed {seed}\n" + "\n".join(world.trace[-20:])) if hasattr(error, "add_note") else None
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        collect_garbage()
    return scenario, hashlib.sha256("\n".join(world.trace).encode()).hexdigest()[:16]


def _memory_folder() -> str | None:
    """Files of a simulation need not reach a real disk."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _fix_hashes() -> None:
    """Start again with fixed hashes: the order of sets of strings must not differ from run to run."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])


def main() -> int:
    _fix_hashes()
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="first seed; random without one")
    parser.add_argument("--rounds", type=int, default=1000, help="rounds in all")
    parser.add_argument("--seconds", type=float, default=None, help="stop after this time")
    parser.add_argument("--verbose", action="store_true", help="show the server's log")
    options = parser.parse_args()
    logging.getLogger("fluss").setLevel(logging.DEBUG if options.verbose else logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    if options.verbose:
        logging.basicConfig(level=logging.DEBUG)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**9)
    started, done, acknowledged, failed = time.monotonic(), 0, 0, 0
    while done < options.rounds and (options.seconds is None or time.monotonic() - started < options.seconds):
        rounds = min(ROUNDS_PER_WORLD, options.rounds - done)
        try:
            scenario, digest = simulate(seed, rounds)
        except BaseException:
            print(f"FAILED: python -m tests.simulation --seed {seed} --rounds {rounds}", file=sys.stderr)
            raise
        done += rounds
        acknowledged += scenario.acknowledged
        failed += scenario.failed
        if options.verbose or done % 100 == 0 or done == options.rounds:
            print(
                f"seed {seed} ({digest}): {done} rounds in {time.monotonic() - started:.0f} s, "
                f"{acknowledged} writes acknowledged, {failed} failed",
                flush=True,
            )
        seed += 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
