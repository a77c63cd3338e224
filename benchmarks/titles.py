# SPDX-License-Identifier: Apache-2.0
"""What the charts of the suites are called."""

from __future__ import annotations

TITLES = {
    "bench": "fluss-python against pyfluss 1.0.0 and raw limits",
    "server": "the embedded server against Apache Fluss 0.9.1 (Java)",
    "spark": "fluss in Spark against Parquet in Spark",
    "front": "fluss.connect() against the full client, and its SQL against Parquet",
}
