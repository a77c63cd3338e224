# SPDX-License-Identifier: Apache-2.0
"""Find the stalls of a server, in a process of its own: `python -m tests.abuse.stalls SERVER CONTROL`.

Both servers are pinged until standard input ends. Then the stalls of the first are printed as JSON: the seconds of each
ping that took longer than `STALL_SECONDS`, but for those during which the other server, which has no other work, was
slow as well. Those are stalls of the machine.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from threading import Event, Thread
from typing import NamedTuple

from tests.abuse.attackers import connect, exchange, frame

from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb

STALL_SECONDS = 0.25
_PAUSE_SECONDS = 0.005
_PING = pb.ApiVersionsRequest(client_software_name="x", client_software_version="1").SerializeToString()


class Wait(NamedTuple):
    began: float
    seconds: float

    def is_excused_by(self, other: Wait) -> bool:
        """Whether the other one was at the same time, and at least half as long."""
        overlaps = other.began < self.began + self.seconds and self.began < other.began + other.seconds
        return overlaps and other.seconds >= self.seconds / 2


def stalls(server: Sequence[Wait], control: Sequence[Wait]) -> list[Wait]:
    """Return the stalls of a server that its control does not explain."""
    return [
        wait for wait in server if wait.seconds > STALL_SECONDS and not any(wait.is_excused_by(one) for one in control)
    ]


def _ping(address: str, stopping: Event, waits: list[Wait]) -> None:
    with connect(address) as sock:
        while not stopping.is_set():
            began = time.monotonic()
            assert exchange(sock, frame(apis.API_VERSIONS.key, 0, 1, _PING), 60) is not None
            wait = Wait(began, time.monotonic() - began)
            if wait.seconds > STALL_SECONDS / 2:
                waits.append(wait)
            stopping.wait(_PAUSE_SECONDS)


def main() -> None:
    stopping = Event()
    waits: tuple[list[Wait], list[Wait]] = ([], [])
    threads = [Thread(target=_ping, args=(address, stopping, into)) for address, into in zip(sys.argv[1:], waits)]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stopping.set()
    for thread in threads:
        thread.join()
    print(json.dumps([wait.seconds for wait in stalls(*waits)]))


if __name__ == "__main__":
    main()
