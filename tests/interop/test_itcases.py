# SPDX-License-Identifier: Apache-2.0
"""How the results of the Java client's own cases are judged; the cases themselves need a checkout of Apache Fluss."""

from __future__ import annotations

import pytest
from tests.interop import itcases

INTERNAL = (
    "java.lang.NoSuchMethodError: 'org.apache.fluss.server.zk.ZooKeeperClient "
    "org.apache.fluss.server.testutils.FlussClusterExtension.getZooKeeperClient()' (AnITCase.java:7)"
)


@pytest.mark.parametrize(
    ("result", "name", "reason", "expected"),
    [
        ("successful", "AnITCase.test", "", ("✔", "")),
        ("successful", "FlussAdminITCase.testSystemsColumns", "", ("✔", "")),
        ("failed", "AnITCase.test", "java.lang.AssertionError: 1", ("✘", "java.lang.AssertionError: 1")),
        ("failed", "AnITCase.test", INTERNAL, ("–", "calls getZooKeeperClient() of a cluster in its own process")),
        (
            "failed",
            "FlussAdminITCase.testSystemsColumns.2",
            "java.lang.AssertionError: 1",
            ("–", "compares a text of several sentences"),
        ),
        ("aborted", "AnITCase.test", "org.TestAbortedException: needs two (AnITCase.java:7)", ("–", "needs two")),
        ("skipped", "RebalanceITCase", "", ("–", "needs several tablet servers")),
    ],
)
def test_judge(result: str, name: str, reason: str, expected: tuple[str, str]) -> None:
    assert itcases.judge(result, name, reason) == expected
