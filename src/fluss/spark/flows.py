# SPDX-License-Identifier: Apache-2.0
"""What the listener of the bridge reports of streams and batch writes, as flows between tables."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Sequence
from typing import Any

from fluss.tools.flows import Flow

_TABLE = re.compile(r"fluss[ .]([\w-]+\.[\w-]+)")
"""How the bridge describes a table, and how flows of a pipeline are named after tables of the catalog `fluss`."""

_OBJECT = re.compile(r"[\w.$]*\.(\w+)@[0-9a-f]+")
"""Sources without a description of their own, such as ours before Spark 4.2: a class, and a number that changes."""


def flows_of_stream(text: str) -> list[Flow]:
    """The flows of a query, from the JSON of its progress; none if it fills no table of Fluss.

    Auto CDC flows merge their rows in a function that Spark does not describe; their names are those of their tables.
    """
    progress: dict[str, Any] = json.loads(text)
    name = progress.get("name") or progress["id"]
    target = table_in(progress["sink"]["description"]) or table_in(name)
    name = table_in(name) or name
    if target is None:
        return []
    found = []
    for source in progress["sources"]:
        latest = source.get("latestOffset")
        ends = latest if isinstance(latest, dict) else {}
        read = ends.get("table") or _OBJECT.sub(r"\1", source["description"])
        rate = source.get("processedRowsPerSecond", 0.0)
        found.append(Flow(name, read, target, rate, ends.get("rows_behind"), ends.get("ms_behind"), _now()))
    return found


def flows_of_batch(target: str, sources: Sequence[str], rows: int, seconds: float) -> list[Flow]:
    """The flows of a batch write into a table of Fluss; one without a source if it reads no table of Fluss."""
    table = table_in(target)
    if table is None:
        return []
    rate = rows / max(seconds, 0.001)
    read = sorted({found for source in sources if (found := table_in(source)) not in (None, table)}) or [""]
    return [Flow(table, source, table, rate, None, None, _now()) for source in read]


def table_in(text: str) -> str | None:
    """The table of Fluss that a description of Spark means."""
    found = _TABLE.fullmatch(text)
    return None if found is None else found[1]


def _now() -> dt.datetime:
    return dt.datetime.now(dt.timezone.utc)
