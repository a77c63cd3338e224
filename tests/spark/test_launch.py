# SPDX-License-Identifier: Apache-2.0
"""How a Spark session is set up: what it listens on, and who may connect."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fluss.spark import launch
from fluss.spark.launch import local_only

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LISTENING = "0A"


def listening_addresses(process_id: int) -> Iterator[IPv4Address | IPv6Address]:
    """The addresses on which a process listens, as the kernel tells."""
    inodes = set()
    for entry in os.scandir(f"/proc/{process_id}/fd"):
        match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry.path))
        if match is not None:
            inodes.add(match.group(1))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process_id}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and fields[9] in inodes:
                words = bytes.fromhex(fields[1].partition(":")[0])
                packed = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
                address = ip_address(packed)
                yield getattr(address, "ipv4_mapped", None) or address


@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="needs the tables of a Linux kernel")
def test_a_local_session_listens_on_loopback_only(spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    found = set(listening_addresses(jvm.java.lang.ProcessHandle.current().pid()))
    assert found, "no socket of the JVM was found"
    assert all(address.is_loopback for address in found), found


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[4, 3]"])
def test_local_masters_are_bound_to_loopback(master: str) -> None:
    assert local_only(master, {}) == {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}


@pytest.mark.parametrize(
    "master", ["yarn", "spark://host:7077", "k8s://https://host", "local-cluster[2, 1, 1024]", None]
)
def test_executors_elsewhere_must_reach_the_driver(master: str | None) -> None:
    assert local_only(master, {}) == {}


def test_addresses_of_the_user_stay() -> None:
    assert local_only("local[2]", {"spark.driver.host": "10.0.0.1"}) == {}
    assert local_only("local[2]", {"spark.driver.bindAddress": "0.0.0.0"}) == {}


def test_the_wrapper_of_java_is_in_a_folder_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user of the machine can have made any folder of a name that is known before."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    homes = {launch._wrapped(Path("/opt/java")) for _ in range(2)}
    assert len(homes) == 2
    for home in homes:
        assert stat.S_IMODE(os.stat(home).st_mode) == 0o700
        assert os.access(f"{home}/bin/java", os.X_OK)
