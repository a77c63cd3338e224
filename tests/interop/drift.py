# SPDX-License-Identifier: Apache-2.0
"""Compare the sources of Apache Fluss with what this package knows: ``python -m tests.interop.drift PATH_OF_UPSTREAM``.

Reads messages, API keys and versions, error codes, option keys, metrics and the stubs of the Python binding out of a
checkout, and prints what is missing here or different. ``--write`` puts the result, with the commit and its date, into
docs/compatibility.md. Ends with status 1 when something is missing or different that is not listed here as such.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import fluss
import fluss.aio
from fluss.config import CONFIG_OPTIONS
from fluss.config_providers import PROVIDERS
from fluss.errors import ERROR_TABLE
from fluss.metadata.properties import TABLE_PROPERTIES
from fluss.protocol.apis import APIS, SERVER_TO_SERVER_API_NAMES
from fluss.server.config import SERVER_OPTIONS
from fluss.server.foreign_options import PASSED_OVER, REFUSED
from fluss.server.metric_names import METRICS

OUR_PROTO = Path(fluss.__file__).parent / "protocol" / "fluss.proto"
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
MARKS = ("<!-- drift -->", "<!-- /drift -->")

PROTO = "fluss-rpc/src/main/proto/FlussApi.proto"
APIS_FILE = "fluss-rpc/src/main/java/org/apache/fluss/rpc/protocol/ApiKeys.java"
ERRORS_FILE = "fluss-rpc/src/main/java/org/apache/fluss/rpc/protocol/Errors.java"
OPTIONS_FILE = "fluss-common/src/main/java/org/apache/fluss/config/ConfigOptions.java"
METRICS_FILE = "fluss-common/src/main/java/org/apache/fluss/metrics/MetricNames.java"
BINDING_FILE = "fluss-rust/bindings/python/fluss/__init__.pyi"

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_MESSAGE = re.compile(r"message (\w+) *\{([^}]*)\}")
_FIELD = re.compile(r"(required|optional|repeated) +([\w.]+) +(\w+) *= *(\d+)")
_API = re.compile(r"\b([A-Z_0-9]+)\( *(\d+) *, *(\d+) *, *(\d+) *, *(PUBLIC|PRIVATE) *\)")
_ERROR = re.compile(r"\b([A-Z_0-9]+)\(\s*(-?\d+),")
_OPTION = re.compile(r'\bkey\(\s*"([^"]+)"')
_METRIC = re.compile(r'String \w+ *=\s*"([^"]+)"')

Fields = dict[str, str]
"""`repeated int32 3` by the name of the field."""


def messages_of(proto: str) -> dict[str, Fields]:
    """Read the messages of a .proto file."""
    return {
        name: {field: f"{label} {kind} {number}" for label, kind, field, number in _FIELD.findall(body)}
        for name, body in _MESSAGE.findall(_COMMENT.sub("", proto))
    }


def reachable(messages: Mapping[str, Fields], roots: Iterable[str]) -> set[str]:
    """Collect the messages that travel with some APIs: their own, and those inside of these."""
    found: set[str] = set()
    left = [root for root in roots if root in messages]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += [kind for kind in (text.split()[1] for text in messages[name].values()) if kind in messages]
    return found


def compare_messages(upstream: str, private: Iterable[str]) -> list[str]:
    theirs, ours = messages_of(upstream), messages_of(OUR_PROTO.read_text(encoding="utf-8"))
    inner = reachable(theirs, [f"{stem}{end}" for stem in private for end in ("Request", "Response")])
    roots = [name for name in theirs if name.endswith(("Request", "Response")) and name not in inner]
    found = []
    for name in sorted(reachable(theirs, roots) | (theirs.keys() & ours.keys())):
        if name not in ours:
            found.append(f"message {name}")
            continue
        for field, text in theirs[name].items():
            mine = ours[name].get(field)
            if mine != text:
                found.append(f"field {name}.{field}: {text}" + (f", here {mine}" if mine else ""))
    return found


def compare_apis(upstream: str) -> list[str]:
    found = []
    for name, key, lowest, highest, visibility in _API.findall(_COMMENT.sub("", upstream)):
        api = APIS.get(int(key))
        if api is None:
            if visibility == "PUBLIC" or int(key) not in SERVER_TO_SERVER_API_NAMES:
                found.append(f"API {name} ({key}, versions {lowest} to {highest})")
        elif (api.name, api.min_version, api.max_version) != (name, int(lowest), int(highest)):
            versions = f"here {api.name}, {api.min_version} to {api.max_version}"
            found.append(f"API {name} ({key}, versions {lowest} to {highest}): {versions}")
    return found


def compare_errors(upstream: str) -> list[str]:
    ours = {row.code: row.name for row in ERROR_TABLE}
    return [
        f"error {name} ({code})" + (f", here {ours[int(code)]}" if int(code) in ours else "")
        for name, code in _ERROR.findall(_COMMENT.sub("", upstream))
        if ours.get(int(code)) != name
    ]


def compare_options(upstream: str) -> list[str]:
    refused = {PROVIDERS, *PASSED_OVER, *REFUSED, *(f"client.{key}" for key in CONFIG_OPTIONS.refused)}
    tables = (SERVER_OPTIONS, TABLE_PROPERTIES, CONFIG_OPTIONS)
    return [
        f"option {key}"
        for key in dict.fromkeys(_OPTION.findall(_COMMENT.sub("", upstream)))
        if key not in refused and not any(table.find(key) for table in tables)
    ]


def compare_metrics(upstream: str) -> list[str]:
    ours = {name.removesuffix("_total").rpartition("_")[2] for name in METRICS}
    # What upstream reports as a rate is a counter here.
    return [
        f"metric {name}"
        for name in dict.fromkeys(_METRIC.findall(upstream))
        if not {name, name.removesuffix("PerSecond")} & ours
    ]


def compare_binding(upstream: str) -> list[str]:
    found = []
    for node in ast.parse(upstream).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            ours = getattr(fluss.aio, node.name, None)
            if ours is None:
                found.append(f"class {node.name}")
                continue
            fields = {name for one in ours.__mro__ for name in getattr(one, "__annotations__", ())}
            made = ours("") if issubclass(ours, Exception) else ours
            for one in node.body:
                targets = [one.target] if isinstance(one, ast.AnnAssign) else getattr(one, "targets", [])
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                    names = [one.name]
                found += [
                    f"name {node.name}.{name}" for name in names if name not in fields and not hasattr(made, name)
                ]
    return found


ABSENT: dict[str, str] = {
    "metrics of replication: there are no followers": "replication|Follower|underReplicated|underMinIsr|atMinIsr|"
    "isrExpands|isrShrinks|IsrUpdates|replicasToDelete|pendingLeaderActivation|kvLeaderReplica",
    "metrics of queues and threads that one event loop does not have": "eventQueue|eventProcessing|requestQueueTime|"
    "requestProcessTime|responseSendTime|inflightRequests|DirectMemory|DirectArenas|Allocations|preWriteBuffer",
    "metrics of the Java client and its connections: ours has metrics of its own": "_avg|_total|_max|buffer(Total|"
    "Available|Waiting)|batchQueueTime|recordsRetry|recordSend|bytesSend|bytesPerBatch|recordsPerBatch|sendLatency|"
    "timeMsBetweenPoll|lastPoll|pollIdle|fetchLatency|fetchRequests|bytesPerRequest|remoteFetch",
    "metrics of caches for historical partitions": "lookupCache|lakeLookup",
    "metrics of RocksDB's statistics and of the disk, which the operating system reports": (
        "rocksdb|kvBackpressureMaxPressure|diskUsage|diskWriteLocked"
    ),
    "figures that have another name here": "lakeTableCount|pendingRecordsLag|metric readBytes",
}
"""What is left out on purpose, and a pattern of the lines that this explains."""


def explained(line: str) -> bool:
    return any(re.search(pattern, line) for pattern in ABSENT.values() if line.startswith("metric "))


def compare(root: Path) -> dict[str, list[str]]:
    """Collect all differences, by what was compared."""

    def text(name: str) -> str:
        return (root / name).read_text(encoding="utf-8")

    apis = text(APIS_FILE)
    private = [
        "".join(word.capitalize() for word in name.split("_"))
        for name, *_, visibility in _API.findall(_COMMENT.sub("", apis))
        if visibility == "PRIVATE"
    ]
    return {
        "Messages": compare_messages(text(PROTO), private),
        "APIs": compare_apis(apis),
        "Error codes": compare_errors(text(ERRORS_FILE)),
        "Options": compare_options(text(OPTIONS_FILE)),
        "Metrics": compare_metrics(text(METRICS_FILE)),
        "Python binding": compare_binding(text(BINDING_FILE)),
    }


def commit_of(root: Path) -> str:
    """Name the commit of a checkout and its date; one without history is named by its folder."""
    command = ["git", "-C", str(root), "log", "-1", "--format=%h of %cs"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or root.name


def section(commit: str, differences: Mapping[str, list[str]]) -> str:
    """Write the result as a section of docs/compatibility.md."""
    lines = [
        MARKS[0],
        "## Sources compared",
        "",
        f"What the sources of Apache Fluss at commit {commit} have and this package has not, or has otherwise. "
        "`python -m tests.interop.drift PATH_OF_UPSTREAM` compares another checkout.",
        "",
        "| | missing or different | left out on purpose |",
        "| --- | --- | --- |",
    ]
    for name, found in differences.items():
        open_points = [line for line in found if not explained(line)]
        shown = "<br>".join(open_points) or "–"
        lines.append(f"| {name} | {shown} | {len(found) - len(open_points) or '–'} |")
    return "\n".join([*lines, "", "Left out on purpose:", "", *(f"* {reason}" for reason in ABSENT), MARKS[1]])


def kept_section() -> str:
    """Return the section that docs/compatibility.md has, for those who write the rest of that page."""
    _, mark, rest = DOCUMENT.read_text(encoding="utf-8").partition(MARKS[0])
    return f"{mark}{rest.partition(MARKS[1])[0]}{MARKS[1]}" if mark else ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare the sources of Apache Fluss with this package.")
    parser.add_argument("upstream", type=Path, help="a checkout of apache/fluss")
    parser.add_argument("--commit", help="what to call it, such as '545c5539 of 2026-08-22'; git is asked otherwise")
    parser.add_argument("--write", action="store_true", help="write the result into docs/compatibility.md")
    options = parser.parse_args(arguments)
    differences = compare(options.upstream)
    for name, found in differences.items():
        open_points = [line for line in found if not explained(line)]
        print(f"{name}: {len(open_points)} missing or different, {len(found) - len(open_points)} left out on purpose")
        print("".join(f"  {line}\n" for line in open_points), end="")
    if options.write:
        made = section(options.commit or commit_of(options.upstream), differences)
        page = DOCUMENT.read_text(encoding="utf-8").replace(kept_section(), "").rstrip()
        DOCUMENT.write_text(f"{page}\n\n{made}\n", encoding="utf-8")
    return int(any(not explained(line) for found in differences.values() for line in found))


if __name__ == "__main__":
    raise SystemExit(main())
