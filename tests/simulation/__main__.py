# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.simulation --seed 7 --rounds 1000``: rounds in worlds of twenty, each with a seed of its own."""

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
import traceback
from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.simulation.scenario import Scenario
from tests.simulation.world import World, collect_garbage

ROUNDS_PER_WORLD = 20


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


class _Outcome(NamedTuple):
    """What became of a world, in another process."""

    seed: int
    rounds: int
    digest: str = ""
    acknowledged: int = 0
    failed: int = 0
    problem: str = ""


def _simulate(seed: int, rounds: int, verbose: bool) -> _Outcome:
    logging.getLogger("fluss").setLevel(logging.DEBUG if verbose else logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    if verbose:
        logging.basicConfig(level=logging.DEBUG)
    try:
        scenario, digest = simulate(seed, rounds)
    except BaseException:  # as text: not every error can be sent to another process
        return _Outcome(seed, rounds, problem=traceback.format_exc())
    return _Outcome(seed, rounds, digest, scenario.acknowledged, scenario.failed)


def main() -> int:
    _fix_hashes()
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="first seed; random without one")
    parser.add_argument("--rounds", type=int, default=1000, help="rounds in all")
    parser.add_argument("--seconds", type=float, default=None, help="begin no world after this time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worlds at a time, each in a process")
    parser.add_argument("--verbose", action="store_true", help="show the server's log")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**9)
    started, begun, done, acknowledged, failed = time.monotonic(), 0, 0, 0, 0
    running: deque[Future[_Outcome]] = deque()
    with ProcessPoolExecutor(options.jobs) as processes:
        while True:
            in_time = options.seconds is None or time.monotonic() - started < options.seconds
            while in_time and begun < options.rounds and len(running) < 2 * options.jobs:
                rounds = min(ROUNDS_PER_WORLD, options.rounds - begun)
                running.append(processes.submit(_simulate, seed, rounds, options.verbose))
                seed, begun = seed + 1, begun + rounds
            if not running:
                return 0
            outcome = running.popleft().result()
            if outcome.problem:
                print(outcome.problem, file=sys.stderr)
                command = f"python -m tests.simulation --seed {outcome.seed} --rounds {outcome.rounds}"
                print(f"FAILED: {command}", file=sys.stderr)
                processes.shutdown(cancel_futures=True)
                return 1
            done += outcome.rounds
            acknowledged += outcome.acknowledged
            failed += outcome.failed
            if options.verbose or done % 100 == 0 or not running:
                print(
                    f"seed {outcome.seed} ({outcome.digest}): {done} rounds in {time.monotonic() - started:.0f} s, "
                    f"{acknowledged} writes acknowledged, {failed} failed",
                    flush=True,
                )


if __name__ == "__main__":
    raise SystemExit(main())
