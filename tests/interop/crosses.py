# SPDX-License-Identifier: Apache-2.0
"""What one client wrote, another reads, on the same server, value for value, and the other way round.

In a cross pair ``c.client`` is the one that creates and writes, ``c.helper`` the other one.
"""

from __future__ import annotations

from typing import Any

from tests.interop.context import Context, same
from tests.interop.tables import (
    BIGINT,
    DATE,
    INT,
    STRING,
    column,
    flat_columns,
    flat_rows,
    nested_columns,
    nested_rows,
    required,
)

# Encoded keys with a byte >= 0x80 among the last one to three: the Java client and the wheels send them to different
# buckets, so they meet only inside one family. Negative BIGINT keys (ten bytes) are among them, negative INT keys not.
_TRAP_NUMBERS = [128, 129, 200, 255, 16384, 20000, 70000, 1_000_000, 2_097_151]
_TRAP_TEXTS = ["Grüße", "世界", "naïve", "🚀", "ÿ", "aÿ", "aaÿ", "aaaÿ"]
_SAFE_NUMBERS = [0, 1, 5, 77, 127, -1, -128, 2_097_152, 2_000_000_000, -(2**31), 2**31 - 1]
_SAFE_TEXTS = ["", "a", "ab", "abc", "abcd", "hello world"]


def family(peer: str, bucketing: str | None) -> str:
    """Which of the two ways to spread keys over buckets a client follows."""
    if peer.startswith("pyfluss") or (peer.startswith("fluss") and bucketing == "pyfluss"):
        return "pyfluss"
    return "java"


def bucketing_for(writer: str, reader: str) -> str | None:
    """Our own client takes the side of its partner."""
    return "pyfluss" if "pyfluss" in writer + reader else None


def run(c: Context) -> None:
    _logs(c)
    _keys(c)
    _composite(c)
    _partitions(c)


def _both(c: Context, *capabilities: str) -> bool:
    return set(capabilities) <= c.client.capabilities & c.helper.capabilities


def _logs(c: Context) -> None:
    columns, rows = flat_columns(), flat_rows()
    if _both(c, "nested"):
        extra = nested_rows()
        columns = columns + nested_columns()
        rows = [row + extra[i % len(extra)] for i, row in enumerate(rows)]
    one = c.table("flat", columns, buckets=1)
    c.call("append", table=one, rows=rows)
    same(c.rows(one, len(rows), c.helper), rows, "log rows the other client reads")
    c.helper.call("append", table=one, rows=rows[:2])
    same(c.rows(one, len(rows) + 2), rows + rows[:2], "log rows of both clients")


def _keys(c: Context) -> None:
    traps = family(c.client.name, c.bucketing) == family(c.helper.name, c.bucketing)
    numbers = _SAFE_NUMBERS + (_TRAP_NUMBERS if traps else [])
    texts = _SAFE_TEXTS + (_TRAP_TEXTS if traps else [])
    large = numbers if traps else [number for number in numbers if number >= 0]
    for name, kind, keys in (("by_int", INT, numbers), ("by_bigint", BIGINT, large), ("by_text", STRING, texts)):
        columns: list[dict[str, Any]] = [column("k", required(kind)), column("v", STRING), column("n", BIGINT)]
        one = c.table(name, columns, primary_key=["k"], buckets=7)
        rows = [[key, f"value of {key}", i] for i, key in enumerate(keys)]
        c.call("upsert", table=one, rows=rows)
        found = c.helper.call("lookup", table=one, keys=[[key] for key in keys])
        same(found, rows, f"{name}: rows the other client looks up")
        # The other client changes half of them and removes one: a stray bucket would leave two rows of one key.
        changed = [[key, f"changed {key}", -i] for i, key in enumerate(keys) if i % 2]
        c.helper.call("upsert", table=one, rows=changed)
        c.helper.call("delete", table=one, keys=[[keys[0]]])
        expected = [None] + [[k, f"changed {k}", -i] if i % 2 else rows[i] for i, k in enumerate(keys) if i]
        same(c.call("lookup", table=one, keys=[[key] for key in keys]), expected, f"{name}: after changes")
        if "changelog" in c.helper.capabilities:
            records = c.scan(one, len(rows) + 2 * len(changed) + 1, c.helper)
            kinds = sorted(record[3] for record in records)
            wanted = ["+I"] * len(rows) + ["-U", "+U"] * len(changed) + ["-D"]
            same(kinds, sorted(wanted), f"{name}: kinds of changes")


def _composite(c: Context) -> None:
    columns = [column("region", required(STRING)), column("user", required(INT)), column("event", required(BIGINT)),
               *flat_columns()]  # fmt: skip
    key = ["region", "user", "event"]
    one = c.table("composite", columns, primary_key=key, bucket_keys=key[:2], buckets=3)
    rows = [["US", 1, i, *row] for i, row in enumerate(flat_rows())]
    c.call("upsert", table=one, rows=rows)
    same(c.helper.call("lookup", table=one, keys=[row[:3] for row in rows]), rows, "composite keys, every type")
    if "prefix_lookup" in c.helper.capabilities:
        found = c.helper.call("prefix_lookup", table=one, by=key[:2], keys=[["US", 1], ["US", 2]])
        same([sorted(found[0], key=lambda row: row[2]), found[1]], [rows, []], "rows by prefix")


def _partitions(c: Context) -> None:
    columns = [column("id", required(INT)), column("day", required(DATE)), column("shop", required(STRING)),
               column("v", BIGINT)]  # fmt: skip
    key = ["id", "day", "shop"]
    one = c.table("parts", columns, primary_key=key, partition_keys=key[1:], buckets=2)
    for day in ("2024-01-15", "2024-01-16"):
        c.create_partition(one, {"day": day, "shop": "a-1"})
    rows = [[i, 19737 + i % 2, "a-1", i * i] for i in range(10)]
    c.call("upsert", table=one, rows=rows)
    names = ["2024-01-15$a-1", "2024-01-16$a-1"]
    same(c.helper.call("list_partitions", table=one), names, "partitions the other client sees")
    same(c.helper.call("lookup", table=one, keys=[row[:3] for row in rows]), rows, "rows of partitions")
