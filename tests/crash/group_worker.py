# SPDX-License-Identifier: Apache-2.0
"""A process that follows a table in a group and writes down what it handles: ``ADDRESS TABLE GROUP FILE``.

A line per change: when it began (nanoseconds), the bucket, the number of the grant, the offset, the id, and whether the
lease was over when it began: the process may be stopped between the moment it gets a change and the one it looks at the
clock.
"""

from __future__ import annotations

import signal
import sys
import time
from types import FrameType
from typing import Any

import fluss
from fluss.metadata.path import bucket_text


class _Stop(Exception):
    """The process shall end in good order."""


def _stop(_: int, __: FrameType | None) -> None:
    raise _Stop


def main() -> None:
    address, table, group, file = sys.argv[1:]
    with open(file, "a", buffering=1) as notes, fluss.connect(address) as db:
        signal.signal(signal.SIGTERM, _stop)
        try:
            with db.table(table).follow("earliest", group=group) as changes:
                feed: Any = changes._core._feed
                for change in changes:
                    began, late = time.time_ns(), time.monotonic() >= feed._member.lease_until
                    grant = feed._grants[change.bucket]
                    place = f"{bucket_text(change.bucket)} {grant} {change.offset} {change.row['id']}"
                    notes.write(f"{began} {place} {int(late)}\n")
                    time.sleep(0.0002)  # the work
        except _Stop:
            pass


if __name__ == "__main__":
    main()
