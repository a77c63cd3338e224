# SPDX-License-Identifier: Apache-2.0
"""The processes that work for the Spark catalog: one request per line on the input, one answer per line on the output.

The driver starts one when a catalog is first used, whose requests are
`{"call": NAME, "session": {…}, "options": {…}, "arguments": {…}}`: the call is a method of `CatalogCalls`, and
options are those of the session and, over them, of the catalog. Another one, started for the first query, gets
requests without options: they ask a function of `statistics` about a read, whose options are among the arguments.
The answer is `{"result": …}` or `{"error": KIND, "message": TEXT}`. A process ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
from typing import IO, Any

from fluss import errors
from fluss.spark.planner import prefer_compiled

_KINDS: tuple[tuple[type[errors.FlussError], str], ...] = (
    (errors.TableNotExistError, "no table"),
    (errors.TableAlreadyExistError, "table exists"),
    (errors.DatabaseNotExistError, "no database"),
    (errors.DatabaseAlreadyExistError, "database exists"),
    (errors.DatabaseNotEmptyError, "database not empty"),
)
"""Errors that Spark has exceptions of its own for."""


def answer(line: str) -> dict[str, Any]:
    """Do what one request asks for."""
    from fluss.spark.catalog import CatalogCalls
    from fluss.spark.client_options import catalog_options
    from fluss.spark.connect import client_of
    from fluss.spark.options import override

    try:
        request = json.loads(line)
        if "options" not in request:
            from fluss.spark import statistics

            return {"result": getattr(statistics, request["call"])(**request["arguments"])}
        client, lake = catalog_options(override(request["session"], request["options"]))
        catalog = CatalogCalls(client_of(client), lake)
        return {"result": getattr(catalog, request["call"])(**request["arguments"])}
    except errors.FlussError as error:
        kind = next((name for kind, name in _KINDS if isinstance(error, kind)), "failed")
        return {"error": kind, "message": str(error)}
    except Exception as error:
        return {"error": "failed", "message": f"{type(error).__name__}: {error}"}


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer requests until there are no more."""
    for line in requests:
        answers.write(json.dumps(answer(line)) + "\n")
        answers.flush()


if __name__ == "__main__":
    prefer_compiled()  # before anything of PySpark is imported
    # What a library prints must not stand among the answers.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        with open(0, encoding="utf-8", closefd=False) as requests:
            serve(requests, answers)
    sys.exit(0)
