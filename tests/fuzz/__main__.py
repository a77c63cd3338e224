# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.fuzz --cases 10000000``: batches and frames with changed content and valid checksums.

A case is a number: the same seed and number give the same bytes. ``--case N`` runs a single one in this process.
"""

from __future__ import annotations

import argparse
import os
import random
import sys

from tests.fuzz.campaign import leave_out_checks, run_campaign, run_once, work


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000, help="number of cases")
    parser.add_argument("--seed", type=int, default=None, help="the seed of all cases; random without one")
    parser.add_argument("--start", type=int, default=0, help="number of the first case, to go on with an earlier run")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="processes that run cases")
    parser.add_argument("--case", type=int, default=None, help="run this one case, in this process")
    parser.add_argument("--keep", default=None, help="with --case: only these of its changes, for instance 0,2")
    parser.add_argument(
        "--without-checks",
        action="store_true",
        help="do not check values: shows that cases find what is refused",
    )
    parser.add_argument("--worker", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--stop", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--step", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    if options.without_checks and (options.worker is not None or options.case is not None):
        leave_out_checks()
    if options.worker is not None:
        work(seed, options.start, options.stop, options.step, options.worker)
        return 0
    if options.case is not None:
        keep = None if options.keep is None else tuple(int(i) for i in options.keep.split(",") if i)
        return run_once(options.case, seed, keep)
    report = run_campaign(
        options.cases,
        seed=seed,
        start=options.start,
        processes=options.processes,
        without_checks=options.without_checks,
        tell=lambda text: print(text, flush=True),
    )
    print(report)
    for failure in report.failures[:50]:
        print(failure, file=sys.stderr)
    return 1 if report.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
