# SPDX-License-Identifier: Apache-2.0
"""Use an installed package as a newcomer does, without extras. Run by the Python of an otherwise empty environment.

Nothing of the source tree is on the path, except for the runner of the documentation's code blocks.
"""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import fluss

ROOT = Path(__file__).resolve().parents[2]


def check_environment(expected: str) -> None:
    """Check that the installed package is the one in use, and that no extra is installed."""
    assert Path(fluss.__file__).is_relative_to(sys.prefix), f"fluss is imported from {fluss.__file__}"
    assert version("fluss-python") == fluss.__version__ == expected, f"{fluss.__version__} instead of {expected}"
    extras = [name for name in ("pandas", "polars", "duckdb", "pyspark", "starlette") if importlib.util.find_spec(name)]
    assert not extras, f"installed without extras, and yet {extras} can be imported"


def check_table() -> None:
    """Create a table, write, read."""
    with fluss.connect("./smoke") as db:
        orders = db.create_table("orders", "id bigint, item string", primary_key="id")
        orders.upsert([(1, "tea"), (2, "milk")])
        assert orders.get(2) == {"id": 2, "item": "milk"}
        assert orders.to_arrow().num_rows == 2
        message = ""
        try:
            db.sql("select 1")
        except fluss.MissingDependencyError as error:
            message = str(error)
        assert "fluss-python[sql]" in message, "sql() without DuckDB says how to get it"


def check_commands() -> None:
    """Run the command line as a program."""
    fluss_command = str(Path(sys.executable).with_name("fluss"))
    for arguments in (["--help"], ["--version"], ["dev", "--help"]):
        done = subprocess.run([fluss_command, *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()
    done = subprocess.run([fluss_command, "server", "--ui", "--port", "0"], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0, "the console runs without its extra"
    assert "fluss-python[console" in done.stderr, done.stderr


def check_quickstart() -> None:
    """Run every block of the quickstart."""
    sys.path.append(str(ROOT))
    from tests.docs.blocks import LazyServer, read_blocks, run_page

    server = LazyServer()
    try:
        asyncio.run(run_page(read_blocks(ROOT / "docs" / "quickstart.md"), server))
    finally:
        server.stop()


if __name__ == "__main__":
    check_environment(sys.argv[1])
    check_table()
    check_commands()
    check_quickstart()
