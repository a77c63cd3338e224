# SPDX-License-Identifier: Apache-2.0
"""Every single operation of the disk fails once: ``python -m tests.faults``."""

from __future__ import annotations

import argparse
import errno
import logging
import shutil
import sys
import time

from tests.faults.disk_faults import count_operations, run_trial, trial_folder

from fluss.server import disk


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--kind", choices=sorted(disk.OPERATIONS), action="append", help="only these operations")
    parser.add_argument("--every", type=int, default=1, help="only every so many-th operation")
    parser.add_argument("--length", type=int, default=1, help="so many operations of the kind fail in a row")
    parser.add_argument("--seconds", type=float, default=3600.0, help="end after this time")
    parser.add_argument("--full-disk", action="store_true", help="fail with 'no space left' instead of an I/O error")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    logging.getLogger("asyncio").disabled = False
    code = errno.ENOSPC if arguments.full_disk else errno.EIO
    started = time.monotonic()
    trials = failures = fired = 0
    with trial_folder() as root:
        counts = count_operations(root / "count")
        print("operations:", ", ".join(f"{kind} {counts[kind]}" for kind in disk.OPERATIONS), flush=True)
        for kind in arguments.kind or disk.OPERATIONS:
            for number in range(0, counts[kind], arguments.every):
                if time.monotonic() - started > arguments.seconds:
                    print("the time is over", flush=True)
                    break
                folder = root / "trial"
                shutil.rmtree(folder, ignore_errors=True)
                trial = run_trial(folder, kind, number, code=code, length=arguments.length)
                trials += 1
                fired += bool(trial.faults.failed)
                if trial.wrong:
                    failures += 1
                    print(f"{kind} {number}: {trial.faults.failed[:1]} {dict(trial.refused)}", flush=True)
                    for problem in trial.wrong:
                        print(f"  {problem}", flush=True)
    seconds = time.monotonic() - started
    print(f"{trials} trials in {seconds:.0f} s, {fired} operations failed, {failures} trials went wrong")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
