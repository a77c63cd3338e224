# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.crash --rounds 1000 --seed 7``: as many kills as wanted, in runs of fifty on fresh folders."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.crash.harness import CrashRun

KILLS_PER_RUN = 50


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="number of kills")
    parser.add_argument("--seed", type=int, default=None, help="first seed; random without one")
    parser.add_argument("--keep", action="store_true", help="keep the data folder of a run that failed")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    left = options.rounds
    while left > 0:
        folder = Path(tempfile.mkdtemp(prefix="fluss-crash-"))
        run = CrashRun(folder / "data", min(left, KILLS_PER_RUN), seed)
        try:
            report = run.run()
        except BaseException as error:
            print(f"seed {seed}: failed after {run.server.kills} kills: {error}", file=sys.stderr)
            if options.keep:
                print(f"data folder: {folder}", file=sys.stderr)
            else:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        print(report, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        problems = report.failed_writes + report.complaints
        if problems:
            print("\n".join(problems[:20]), file=sys.stderr)
            return 1
        left -= report.kills
        seed += 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
