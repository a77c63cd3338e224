# SPDX-License-Identifier: Apache-2.0
"""The Python, command line and Spark code that does what a form of the console does."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluss.errors import InvalidArgumentError


@dataclass(frozen=True)
class TableForm:
    """What the form for a new table holds."""

    name: str
    columns: str
    """Names and types as text: ``id bigint not null, item string``."""
    primary_key: Sequence[str] = ()
    partition_by: Sequence[str] = ()
    buckets: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None

    def arguments(self) -> dict[str, Any]:
        """The arguments of `create_table` after name and columns; those that are not given are left out."""
        given: dict[str, Any] = {
            "primary_key": list(self.primary_key),
            "partition_by": list(self.partition_by),
            "buckets": self.buckets,
            "properties": dict(self.properties),
            "comment": self.comment,
        }
        return {name: value for name, value in given.items() if value}


def create_code(form: TableForm, server: str) -> dict[str, str]:
    """The code that creates a table."""
    arguments = "".join(f",\n    {name}={value!r}" for name, value in form.arguments().items())
    python = (
        f"import fluss\n\ndb = fluss.connect({server!r})\n"
        f"db.create_table(\n    {form.name!r},\n    {form.columns!r}{arguments},\n)\n"
    )
    words = ["fluss", "create", form.name, form.columns]
    words += ["--key", ",".join(form.primary_key)] if form.primary_key else []
    words += ["--partition-by", ",".join(form.partition_by)] if form.partition_by else []
    words += ["--buckets", str(form.buckets)] if form.buckets else []
    words += [word for key, value in form.properties.items() for word in ("-p", f"{key}={value}")]
    words += ["--comment", form.comment] if form.comment else []
    return {"python": python, "cli": _cli(words, server), "spark": _spark_create(form, server)}


def _spark_create(form: TableForm, server: str) -> str:
    named = {"partition_by": "partitioned_by"}
    arguments = "".join(f",\n    {named.get(name, name)}={value!r}" for name, value in form.arguments().items())
    return (
        "from fluss.spark import create_table\n\n"
        f"frame = spark.createDataFrame([], {form.columns!r})\n"
        f"create_table(\n    frame,\n    {form.name!r},\n    {server!r}{arguments},\n)\n"
    )


def alter_code(
    name: str, server: str, add_columns: Sequence[tuple[str, str]], properties: Mapping[str, str | None]
) -> dict[str, str]:
    """The code that adds columns and sets properties; a property of None is reset."""
    if not add_columns and not properties:
        raise InvalidArgumentError("Name a column or a property to change.")
    python = f"import fluss\n\ntable = fluss.connect({server!r}).table({name!r})\n"
    python += "".join(f"table.add_column({column!r}, {kind!r})\n" for column, kind in add_columns)
    if properties:
        python += f"table.set_properties({dict(properties)!r})\n"
    lines = [_cli(["fluss", "alter", name, "add", "column", column, kind], server) for column, kind in add_columns]
    chosen = [f"{key}={value}" for key, value in properties.items() if value is not None]
    reset = [key for key, value in properties.items() if value is None]
    lines += [_cli(["fluss", "alter", name, "set", *chosen], server)] if chosen else []
    lines += [_cli(["fluss", "alter", name, "reset", *reset], server)] if reset else []
    spark = "# A table is altered with the Python API on the driver; a stream that reads it sees new columns\n"
    spark += "# when it is started again.\n" + python
    return {"python": python, "cli": "".join(lines), "spark": spark}


def _cli(words: Sequence[str], server: str) -> str:
    return " ".join(shlex.quote(word) for word in [*words, "-b", server]) + "\n"
