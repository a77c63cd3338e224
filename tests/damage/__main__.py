# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.damage --rounds 500 --seed 7``: one damaged file per round, every kind of file in turn."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.damage.folder import fill
from tests.damage.trials import Trials


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.damage", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="number of damaged files")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after this time")
    parser.add_argument("--seed", type=int, default=None, help="random without one")
    parser.add_argument("--kind", default=None, help="damage only this kind of file")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    logging.getLogger("fluss").propagate = False
    # In memory where that is possible: many small folders are made, and no trial is about the disk.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    work = Path(tempfile.mkdtemp(prefix="fluss-damage-", dir=memory))
    try:
        return trials(work, options.rounds, options.seconds, seed, options.kind)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def trials(work: Path, rounds: int, seconds: float, seed: int, kind_wanted: str | None) -> int:
    images = {"stopped": work / "stopped", "crashed": work / "crashed"}
    contents = asyncio.run(fill(images["stopped"], images["crashed"]))
    runner = Trials(images, contents, work, seed)
    kinds = [pair for pair in runner.kinds() if kind_wanted in (None, pair[1])]
    # Mixed, so that a short run meets files of all kinds.
    random.Random(seed).shuffle(kinds)
    started = time.monotonic()
    wrong = refused = done = 0
    while done < rounds and time.monotonic() - started < seconds:
        image, kind = kinds[done % len(kinds)]
        # Said before it is tried, so that one which ends this process can be found.
        print(f"seed {seed} trial {done}: {kind} of the {image} folder", end="", flush=True)
        outcome = runner.run(image, kind)
        print(f", {outcome.file} {outcome.how}: {len(outcome.failed)} buckets out of service", flush=True)
        for text in outcome.wrong:
            print(f"WRONG: {text}", flush=True)
        wrong += bool(outcome.wrong)
        refused += bool(outcome.failed)
        done += 1
    print(f"{done} trials in {time.monotonic() - started:.0f} s, {refused} found damage that costs rows, {wrong} wrong")
    print("kinds: " + ", ".join(f"{kind} {count}" for kind, count in sorted(runner.counts.items())))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
