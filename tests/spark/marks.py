# SPDX-License-Identifier: Apache-2.0
"""Tests that only some versions of PySpark, or only a Spark with the bridge, can pass: see docs/spark.md."""

from __future__ import annotations

import pytest
from tests.spark.conftest import BRIDGE

from fluss.spark.versions import KNOWS_START, VERSION

needs_start = pytest.mark.skipif(not KNOWS_START, reason="PySpark before 4.2 does not say where a stream is")
needs_time = pytest.mark.skipif(VERSION < (4, 1), reason="PySpark 4.0 has no type TIME")
needs_bridge = pytest.mark.skipif(not BRIDGE, reason="the tests run without the jar")
