# SPDX-License-Identifier: Apache-2.0
"""The official wheels (``pyfluss``), each run by the interpreter of its own virtual environment."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import canonical
from driver_python import Command, PythonDriver

import fluss


class Wheel(PythonDriver):
    def __init__(self) -> None:
        super().__init__(fluss)
        self.version = importlib.metadata.version("pyfluss")
        self.client = f"pyfluss-{self.version}"
        self.first = self.version.startswith("0.")
        # The first release gives TIMESTAMP_LTZ columns of Arrow data no zone.
        canonical.naive_means_utc = self.first

    def options(self, c: Command) -> dict[str, str]:
        options = super().options(c)
        if self.first:
            # This release takes the whole text for one address.
            options["bootstrap.servers"] = options["bootstrap.servers"].split(",")[0]
        return options

    def scan_builder(self, table: Any, c: Command) -> Any:
        scan = super().scan_builder(table, c)
        # Without this the wheel fails on batches written before a column was added.
        return scan if self.first or c.get("limit") else scan.with_fixed_schema(True)


if __name__ == "__main__":
    Wheel().run()
