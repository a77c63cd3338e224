# SPDX-License-Identifier: Apache-2.0
"""Tiering on Spark: the tasks of a round run on the executors, one per bucket; the driver commits.

from fluss.spark import session
from fluss.spark.tiering import tiering_service

service = tiering_service(session(master="spark://host:7077"), {"bootstrap.servers": "host:9123"})
service.run_forever()
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss.errors import FlussError
from fluss.lake.rounds import Progress
from fluss.lake.service import ServiceSettings, TieringService
from fluss.lake.tasks import BucketResult, BucketTask, run_task
from fluss.metadata import TablePath

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMA = "result binary"


class SparkRunner:
    """Runs the tasks of a round as one Spark job, classic or Connect."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, tasks: Sequence[BucketTask], done: Callable[[BucketResult], None]) -> list[BucketResult]:
        if not tasks:
            return []
        pickled = [pickle.dumps(task) for task in tasks]
        # A range with as many partitions as numbers: each Spark task finds its own number, and with it its task.
        numbers = self._spark.range(0, len(pickled), 1, len(pickled))
        rows = numbers.mapInArrow(_Work(pickled), _SCHEMA).collect()
        results, failure = [], None
        for row in rows:
            outcome = pickle.loads(bytes(row["result"]))
            if isinstance(outcome, BucketResult):
                results.append(outcome)
                done(outcome)
            else:
                failure = failure or outcome
        if failure is not None:
            raise failure
        return results


class _Work:
    """What an executor does with the numbers it is given."""

    def __init__(self, tasks: list[bytes]) -> None:
        self._tasks = tasks

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                outcome = pickle.dumps(_outcome(self._tasks[number]))
                yield pa.RecordBatch.from_arrays([pa.array([outcome], pa.binary())], names=["result"])


def _outcome(data: bytes) -> BucketResult | FlussError:
    """A result or an error: an error that Spark saw would make it run the task again, and write its files again."""
    task = pickle.loads(data)
    try:
        return run_task(task)
    except FlussError as error:
        return error
    except Exception as error:
        return FlussError(f"{type(error).__name__} while {task.bucket} of {task.table_path} was written: {error}")


def tiering_service(
    spark: SparkSession,
    client: Mapping[str, Any],
    *,
    tables: Collection[TablePath] | None = None,
    lake_options: Mapping[str, str] | None = None,
    settings: ServiceSettings | None = None,
    progress: Progress | None = None,
) -> TieringService:
    """A tiering service whose tasks run on Spark. Call `run_forever()` or `run_once()` on it.

    Args:
        spark: The session to run on; the executors need this package and the one of the lake format.
        client: Options of the connection, at least ``bootstrap.servers``.
        tables: Only these tables; all by default.
        lake_options: Options of the lake catalog that the server does not show, such as credentials.
        settings: Times and limits.
        progress: Called with what happens.
    """
    return TieringService(
        client,
        tables=tables,
        runner=SparkRunner(spark),
        lake_options=lake_options,
        settings=settings,
        progress=progress,
    )
