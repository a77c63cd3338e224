# SPDX-License-Identifier: Apache-2.0
"""What encryption costs: the same work over TLS and without it, each with a server and a client of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import Bar, Result, Settings, Worker, alternate, free_python, ratio_of
from fluss import LocalServer
from fluss.server.certificates import ensure_self_signed

_BARS = {"zstd": Bar(0.7, 0.9), "none": Bar(0.4, 0.7)}
"""Uncompressed batches have more bytes to encrypt: asyncio's TLS alone reaches 0.2 to 0.4 of its plain transport."""


def encrypted_cases(settings: Settings) -> Iterator[Result]:
    """Appends and scans of Arrow batches, compressed and not."""
    if not settings.wanted(
        *(f"{work} over TLS against plain, {codec}" for work in ("append", "scan") for codec in _BARS)
    ):
        return
    rows = settings.rows(5_000_000)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        certificate = str(ensure_self_signed(folder, []))
        options = {"security.protocol.map": "FLUSS:ssl", "security.ssl.keystore.location": certificate}
        secured = stack.enter_context(LocalServer(options=options))
        plain = stack.enter_context(LocalServer())
        tls = Worker(
            "TLS",
            free_python(),
            secured.bootstrap_servers,
            **{"security.ssl.enabled": True, "security.ssl.truststore.location": certificate},
        )
        stack.callback(tls.close)
        open_ = Worker("plain", free_python(), plain.bootstrap_servers)
        stack.callback(open_.close)
        for codec, bar in _BARS.items():
            properties = {"table.log.arrow.compression.type": codec.upper()}

            def rate(side: Worker, op: str, properties: dict[str, str] = properties) -> Callable[[], float]:
                def run() -> float:
                    if op == "write_batches":
                        side.call("create", table="t", properties=properties)
                        return rows / float(side.call(op, table="t", rows=rows)["seconds"]) / 1e6
                    return rows / float(side.call(op, table="t")["seconds"]) / 1e6

                return run

            for name, op in (("append", "write_batches"), ("scan", "to_arrow")):
                pair = alternate(rate(tls, op), rate(open_, op), settings.repeats, rounds=settings.rounds)
                yield Result(f"{name} over TLS against plain, {codec}", *pair, "M rows/s", ratio_of(*pair), bar)
