# SPDX-License-Identifier: Apache-2.0
"""Reading the page of figures, and checking that it says what each of them is."""

from __future__ import annotations

import asyncio

from fluss.server.metric_names import METRICS


async def http(port: int, request: str) -> tuple[str, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode())
    answer = (await asyncio.wait_for(reader.read(), 5)).decode()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition("\r\n\r\n")
    return head, body


def check_page(body: str) -> None:
    """Every series has a meaning, a kind and the labels of the table that docs/metrics.md is made from."""
    described: set[str] = set()
    kinds: dict[str, str] = {}
    for line in body.splitlines():
        if line.startswith("# "):
            _, word, name, text = line.split(" ", 3)
            if word == "HELP":
                described.add(name)
            else:
                kinds[name] = text
            continue
        series, _ = line.rsplit(" ", 1)
        name, _, rest = series.partition("{")
        base = name if name in kinds else name.rsplit("_", 1)[0]
        known = METRICS[base.removeprefix("fluss_")]
        assert base in described
        assert kinds[base] == known.kind
        labels = {label.partition("=")[0] for label in rest.rstrip("}").split('",') if label}
        assert labels - {"le", "partition"} == set(known.labels) - {"partition"}, series


def figures(text: str) -> dict[str, float]:
    """The series of a page, without `fluss_`."""
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {series.removeprefix("fluss_"): float(value) for series, value in lines}
