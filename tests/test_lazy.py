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


def test_writing_rows_makes_no_python_functions_of_arrow() -> None:
    """`pyarrow.compute` has one for each of Arrow's functions, and takes as long as encoding 100,000 rows."""
    code = """
import sys
import fluss.client.write.upsert
from fluss.records import encode_kv_records
from fluss.rows import Slices
spread = Slices(b"a-bc-def", [0, 2, 5], [1, 2, 3])
assert bytes(encode_kv_records(spread, spread)[0][:7]) == b"\\3\\0\\0\\0\\1aa"
assert spread.to_arrow().to_pylist() == [b"a", b"bc", b"def"]
found = {"pyarrow.compute", "pandas", "fluss.client.lookup"}.intersection(sys.modules)
assert not found, found
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_scanner_loads_no_urls_and_paths() -> None:
    """They are for tiered segments, which few tables have."""
    code = """
import sys
import pyarrow
before = set(sys.modules)
import fluss.client.scan.scanner
found = {"pathlib", "urllib.parse", "ipaddress", "fluss.metadata.documents"}.intersection(set(sys.modules) - before)
assert not found, found
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


FIRST_REQUEST = """
import asyncio, os, socket, sys, threading, pyarrow
before = set(sys.modules)
listener = socket.create_server(("127.0.0.1", 0))

def serve():
    connection, _ = listener.accept()
    connection.recv(1)
    print(*sorted(set(sys.modules) - before), flush=True)
    os._exit(0)

threading.Thread(target=serve, daemon=True).start()
import fluss
config = fluss.Config({"bootstrap.servers": "127.0.0.1:%d" % listener.getsockname()[1]})
asyncio.run(fluss.FlussConnection.create(config))
"""


def test_the_first_request_is_sent_with_few_modules() -> None:
    """Scripts and Spark tasks connect once in their lives; each module delays them."""
    done = subprocess.run([sys.executable, "-c", FIRST_REQUEST], capture_output=True, text=True, check=True, timeout=60)
    loaded = done.stdout.split()
    ours = [name for name in loaded if name.startswith("fluss.")]
    assert "fluss.net.connection" in ours  # the list is that of a process which did connect
    unwanted = {
        *("fluss.client.admin", "fluss.client.lookup", "fluss.client.scan", "fluss.client.write"),
        *("fluss.metadata.types", "fluss.records", "fluss.rows"),
        *("html.entities", "json", "numpy.typing", "pandas", "pyarrow.compute"),
    }
    assert not unwanted.intersection(loaded)
    assert len(ours) <= 52, ours
    assert len(loaded) <= 140, loaded


def test_the_checksum_is_that_of_its_package() -> None:
    data = bytes(range(256)) * 1000
    assert _checksum.crc32c(data) == crc32c.crc32c(data)
    assert _checksum.crc32c(data[5:], 77) == crc32c.crc32c(data[5:], 77)
