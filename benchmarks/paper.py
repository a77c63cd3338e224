# SPDX-License-Identifier: Apache-2.0
"""A thousand machines, on paper: what a cluster's load would cost, by the processor time measured here."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness import Result
from benchmarks.report import markdown

MACHINES = 1_000
CORES = 16
REPLICAS = 3


def table(results: Sequence[Result]) -> str:
    """For each work: cores for a million a second, the client's share, and what the cores of such a cluster carry."""
    rows = []
    for result in results:
        client, server = result.cpu.get("client on peer"), result.cpu.get("server peer")
        if client is None or server is None:
            continue
        # Every replica of a bucket stores what is written; only the leader answers who reads.
        copies = REPLICAS if any(word in result.name for word in ("append", "upsert")) else 1
        whole = client + server * copies
        carried = MACHINES * CORES / whole if whole else 0.0
        rows.append(
            (
                result.name.replace(" against Java", ""),
                f"{client:.2f}",
                f"{server:.2f}",
                f"{copies}",
                f"{client / whole:.0%}" if whole else "",
                f"{carried:,.0f} M/s",
            )
        )
    header = (
        "work", "client, cores for 1 M/s", "Java server, cores for 1 M/s", "copies", "our client's share",
        f"{MACHINES:,} machines of {CORES} cores",
    )  # fmt: skip
    return markdown(header, rows)
