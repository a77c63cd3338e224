# SPDX-License-Identifier: Apache-2.0
"""What is loaded, and what is not, until it is needed."""

from __future__ import annotations

import subprocess
import sys

import crc32c
import pytest

import fluss.lake
import fluss.records
import fluss.rows
import fluss.spark
from fluss import _checksum
from fluss._lazy import lazy_names


def test_names_are_loaded_with_their_modules() -> None:
    get, names = lazy_names("fluss.rows", {"fluss.rows.slices": "gather_array Slices"})
    assert names == ["Slices", "gather_array"]
    from fluss.rows.slices import Slices

    assert get("Slices") is Slices
    with pytest.raises(AttributeError, match=r"module 'fluss\.rows' has no attribute 'Slice'"):
        get("Slice")


@pytest.mark.parametrize("package", [fluss.rows, fluss.records, fluss.lake, fluss.spark])
def test_every_promised_name_is_there(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        assert getattr(package, name) is not None


def test_a_reader_loads_no_writers() -> None:
    """Each of these costs memory in every process that only reads."""
    unwanted = ["fluss.client.write", "fluss.client.lookup", "fluss.rows.vector", "importlib.metadata", "pandas"]
    code = f"""
import sys, fluss
fluss.FlussConnection, fluss.TableScan, fluss.LogScanner
found = [name for name in {unwanted} if name in sys.modules]
assert not found, found
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_checksum_is_that_of_its_package() -> None:
    data = bytes(range(256)) * 1000
    assert _checksum.crc32c(data) == crc32c.crc32c(data)
    assert _checksum.crc32c(data[5:], 77) == crc32c.crc32c(data[5:], 77)
