# SPDX-License-Identifier: Apache-2.0
"""Run the integration cases of the Java client on our server: ``python -m tests.interop.itcases PATH_OF_UPSTREAM``.

The path is a checkout of Apache Fluss whose tests of fluss-client are compiled (``fluss-client/target/test-classes``).
Its classes named ``*ITCase`` run unchanged; only the class that starts a cluster in their own process is replaced, by
one that starts our server (``itcases_java/``). Prints each case, and why one is left out: it calls a method that only
a Java cluster in the same process can answer, needs several servers, or is listed in ``LEFT_OUT``. Ends with status 1
when another one fails.

A part of it::

    python -m tests.interop.itcases PATH --version 1.0-SNAPSHOT --only FlussAdminITCase,FlussTableITCase#testAppend
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.interop import environment

JAVA = environment.HERE / "itcases_java"
CLASS_S_MAX = 900.0
_MISSING = re.compile(r"NoSuchMethodError: '.*\.FlussClusterExtension\.(\w+)\(")

# Cases that fail for a reason that stays, by that reason. A class by itself is not started.
LEFT_OUT: dict[str, tuple[str, ...]] = {
    "needs several tablet servers": (
        "FlussAdminITCase.testGetTableInfoAndSchema",
        "FlussFailServerTableITCase",
        "FlussTableITCase.testGetDescriptor",
        "MetadataUpdaterITCase.testUpdateWithEmptyMetadataResponse",
        "RackAwareClusterITCase",
        "RebalanceITCase",
    ),
    "moves the clock of the server": ("RemoteLogScannerITCase.testAlterTableLogTtlAffectsFetch",),
    "sends a request that only servers send": ("FlussAuthorizationITCase.testControlledShutdown",),
    "here a user without rights does not learn that a table or database exists": (
        "FlussAuthorizationITCase.testAcquireKvSnapshotLease",
        "FlussAuthorizationITCase.testDescribeTableOperation",
        "FlussAuthorizationITCase.testRegisterProducerOffsetsAuthorization",
        "FlussAuthorizationITCase.testReleaseKvSnapshotLease",
    ),
    "here leases and offsets belong to the user who made them": (
        "FlussAuthorizationITCase.testDeleteProducerOffsetsAuthorization",
        "FlussAuthorizationITCase.testDropKvSnapshotLease",
    ),
    "compares a text of several sentences": (
        "FlussAdminITCase.testCreateTableWithAggregateEngineAndWalChangelog",
        "FlussAdminITCase.testSystemsColumns",
    ),
    "looks into the coordinator of its own process": ("LakeEnableTableITCase",),
    "here a table needs a column": ("FlussAdminITCase.testBootstrapServerConfigAsTabletServer",),
    "is otherwise in later releases, which the server follows": (
        "FlussAdminITCase.testAddTooManyBuckets",
        "FlussAdminITCase.testCreateTableWithInvalidReplicationFactor",
        "FlussAuthorizationITCase.testAclOperation",
    ),
    "finds the hidden partition of a table in ZooKeeper": ("FlussAdminITCase.testListPartitionInfos",),
    "changes an option that is fixed or without effect here": (
        "FlussAdminITCase.testDynamicDiskWriteLimitRatios",
        "FlussAdminITCase.testDynamicRemoteDataDirsWithRoundRobin",
    ),
}
_LISTED = {name: why for why, names in LEFT_OUT.items() for name in names}


def cases(upstream: Path, version: str, only: str) -> Iterator[tuple[str, str, str]]:
    """Run the classes one after the other; yield result, name and reason of each case as it ends."""
    folder = upstream / "fluss-client" / "target" / "test-classes"
    classes = {path.stem: str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*ITCase.class")}
    if not classes:
        raise environment.Unavailable(f"{folder} has no compiled cases: compile the tests of fluss-client first")
    wanted = only.split(",") if only else sorted(classes)
    path = environment.classpath(version, JAVA / "pom.xml")
    ours, *rest = environment.compiled(JAVA, path, version).split(os.pathsep)
    command = [environment.java(), "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *environment.JAVA_OPENS]
    command += [
        f"-Ditcases.server={sys.executable} -m fluss.server",
        "-cp",
        os.pathsep.join([ours, str(folder), *rest]),
    ]
    for one in wanted:
        name, _, method = one.partition("#")
        if name in _LISTED:
            yield "skipped", name, ""
            continue
        case = classes[name].replace(os.sep, ".") + (f"#{method}" if method else "")
        with subprocess.Popen([*command, "Cases", case], stdout=subprocess.PIPE, text=True) as process:
            try:
                lines = process.communicate(timeout=CLASS_S_MAX)[0]
            except subprocess.TimeoutExpired:
                process.terminate()  # which lets it stop its server
                lines = process.communicate()[0] + f"failed\t{name}\tdid not end within {CLASS_S_MAX:.0f} s\n"
        for line in lines.splitlines():
            if line.count("\t") == 2:
                result, full_name, reason = line.split("\t")
                yield result, full_name, reason


def judge(result: str, name: str, reason: str) -> tuple[str, str]:
    """Return the mark of a case and the reason for it: ✔ passed, ✘ failed, – left out."""
    missing = _MISSING.search(reason)
    if missing:
        return "–", f"calls {missing.group(1)}() of a cluster in its own process"
    listed = _LISTED.get(re.sub(r"\.\d+$", "", name))
    if listed is not None and result != "successful":
        return "–", listed
    if result in ("aborted", "skipped"):
        return "–", reason.partition(": ")[2].partition(" (")[0] or reason
    return ("✔", "") if result == "successful" else ("✘", reason[:900])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.itcases", description=__doc__.split("\n\n")[0])
    parser.add_argument("upstream", type=Path, help="a checkout of Apache Fluss with compiled tests")
    parser.add_argument("--version", default=environment.FLUSS_VERSION, help="of its jars (default %(default)s)")
    parser.add_argument("--only", default="", help="comma list of classes, or Class#method")
    options = parser.parse_args()
    marks: list[str] = []
    for case in cases(options.upstream, options.version, options.only):
        mark, reason = judge(*case)
        marks.append(mark)
        print(f"{mark} {case[1]}" + (f"  {reason}" if reason else ""), flush=True)
    counts = {mark: marks.count(mark) for mark in "✔✘–"}
    print(f"{counts['✔']} passed, {counts['✘']} failed, {counts['–']} left out")
    return 1 if counts["✘"] or not marks else 0


if __name__ == "__main__":
    sys.exit(main())
