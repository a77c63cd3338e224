# SPDX-License-Identifier: Apache-2.0
"""Tests that only some versions of PySpark can pass: see the table of versions in docs/spark.md."""

from __future__ import annotations

import pytest

from fluss.spark.versions import KNOWS_START, VERSION

needs_start = pytest.mark.skipif(not KNOWS_START, reason="PySpark before 4.2 does not say where a stream is")
needs_time = pytest.mark.skipif(VERSION < (4, 1), reason="PySpark 4.0 has no type TIME")
