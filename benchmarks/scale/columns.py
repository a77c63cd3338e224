# SPDX-License-Identifier: Apache-2.0
"""Columns: what a value costs in narrow and in wide tables."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.scale.study import Point, Study, client, seconds

VALUES = 10_000_000
ROWS_MIN = 1_000_000
"""As many rows in wide tables as in one of ten columns: what every scan costs, whatever it reads, is shared alike."""
DICT_VALUES = 400_000
BATCH_ROWS = 2_500


def measure(study: Study) -> Iterator[Point]:
    with study.server() as server, client(server) as worker:
        for columns in study.points(1, 5, 10, 50, 100, 200):
            batches = max(VALUES // columns, ROWS_MIN) // BATCH_ROWS
            rows = batches * BATCH_ROWS
            size = {"columns": columns, "batch_rows": BATCH_ROWS, "batches": batches}
            few = DICT_VALUES // columns

            def write(columns: int = columns, size: dict[str, int] = size) -> float:
                worker.call("create", table="scale", columns=columns)
                return seconds(worker, "write_ascending", table="scale", **size)

            def append(columns: int = columns, few: int = few) -> float:
                worker.call("create", table="dicts", columns=columns)
                return seconds(worker, "append_flush", table="dicts", rows=few, flushes=1, columns=columns)

            def read(wanted: list[str] | None = None) -> float:
                return seconds(worker, "read_through", table="scale", columns=wanted)

            yield Point(
                columns,
                {
                    "write_arrow_batch, ns a value": study.middle(write) / (rows * columns) * 1e9,
                    "scan of all columns, ns a value": study.middle(read) / (rows * columns) * 1e9,
                    "scan of one column, ns a row": study.middle(lambda: read(["c0"])) / rows * 1e9,
                    "append() of dicts, ns a value": study.middle(append) / (few * columns) * 1e9,
                },
            )
