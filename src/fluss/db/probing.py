# SPDX-License-Identifier: Apache-2.0
"""Whether a server can be reached at all: a look at its port before the client begins to retry."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass

_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Probe:
    """What came of one attempt to open a connection."""

    address: str
    problem: str | None
    """None if it was opened."""
    refused: bool = False


def probe(address: str, timeout: float = _TIMEOUT_S) -> Probe:
    """Open a TCP connection to ``host:port`` and close it.

    Example:
        probe("127.0.0.1:9123").problem
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout).close()
    except ConnectionRefusedError:
        return Probe(address, "nothing listens there", refused=True)
    except socket.gaierror:
        return Probe(address, f"the host name {host!r} is not known")
    except TimeoutError:
        return Probe(address, f"no answer within {timeout:g} s")
    except (OSError, ValueError, OverflowError) as error:
        return Probe(address, str(getattr(error, "strerror", None) or error))
    return Probe(address, None)


def unreachable(servers: str, timeout: float = _TIMEOUT_S) -> list[Probe]:
    """The failed attempts if none of the addresses can be reached; an empty list if one can.

    Example:
        unreachable("fluss-1:9123,fluss-2:9123")
    """
    failed = []
    for address in servers.split(","):
        with contextlib.suppress(UnicodeError):
            found = probe(address.strip(), timeout)
            if found.problem is None:
                return []
            failed.append(found)
    return failed
