# SPDX-License-Identifier: Apache-2.0
"""Compare Apache Fluss with what this package knows: ``python -m tests.interop.drift PATH_OF_UPSTREAM``.

Reads messages, API keys and versions, error codes, option keys, metrics and the stubs of the Python binding out of a
checkout, or all but the last out of a release of the Java client (``--release 1.0.0``, from Maven), and prints what is
missing here or different. ``--write`` puts the result, with commit, release and day, into docs/compatibility.md. Ends
with status 1 when something is missing or different that is not listed here as such.
"""

from __future__ import annotations

import argparse
import ast
import datetime as dt
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.interop import environment

import fluss
import fluss.aio
from fluss.config import CONFIG_OPTIONS
from fluss.config_providers import PROVIDERS
from fluss.errors import ERROR_NAMES
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


def _numbers(fields: Fields) -> Fields:
    """A release shows the numbers of fields only, and their names without the case of the .proto file."""
    return {name.replace("_", "").lower(): text.split()[-1] for name, text in fields.items()}


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
        mine_all, their_all = ours[name], theirs[name]
        if any(" unknown " in text for text in their_all.values()):
            mine_all, their_all = _numbers(mine_all), _numbers(their_all)
        for field, text in their_all.items():
            mine = mine_all.get(field)
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
        elif (api.name, api.min_version) != (name, int(lowest)) or api.max_version < int(highest):
            versions = f"here {api.name}, {api.min_version} to {api.max_version}"
            found.append(f"API {name} ({key}, versions {lowest} to {highest}): {versions}")
    return found


def compare_errors(upstream: str) -> list[str]:
    return [
        f"error {name} ({code})" + (f", here {ERROR_NAMES[int(code)]}" if int(code) in ERROR_NAMES else "")
        for name, code in _ERROR.findall(_COMMENT.sub("", upstream))
        if ERROR_NAMES.get(int(code)) != name
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
    "requestProcessTime|responseSendTime|inflightRequests|sender|kvWalMemoryPool|DirectMemory|DirectArenas|Allocations|preWriteBuffer",
    "metrics of the Java client and its connections: ours has metrics of its own": "_avg|_total|_max|buffer(Total|"
    "Available|Waiting)|batchQueueTime|recordsRetry|recordSend|bytesSend|bytesPerBatch|recordsPerBatch|sendLatency|"
    "timeMsBetweenPoll|lastPoll|pollIdle|fetchLatency|fetchRequests|bytesPerRequest|remoteFetch|metric recordsLag",
    "metrics of caches for historical partitions": "lookupCache|lakeLookup",
    "metrics of RocksDB's statistics and of the disk, which the operating system reports": (
        "rocksdb|kvBackpressureMaxPressure|diskUsage|diskWriteLocked"
    ),
    "versions of APIs that are not used here: version 0 does all that this package asks for": (
        "API (ALTER_TABLE|GET_KV_SNAPSHOT_METADATA) .*versions 0 to 1"
    ),
    "figures that have another name here": "lakeTableCount|pendingRecordsLag|metric readBytes",
}
"""What is left out on purpose, and a pattern of the lines that this explains."""


def explained(line: str) -> bool:
    return line.startswith(("metric ", "API ")) and any(re.search(pattern, line) for pattern in ABSENT.values())


def sources_of_checkout(root: Path) -> dict[str, str]:
    """Read the files that say what Apache Fluss knows."""
    files = {
        "messages": PROTO,
        "apis": APIS_FILE,
        "errors": ERRORS_FILE,
        "options": OPTIONS_FILE,
        "metrics": METRICS_FILE,
        "binding": BINDING_FILE,
    }
    return {part: (root / name).read_text(encoding="utf-8") for part, name in files.items()}


def sources_of_release(version: str) -> dict[str, str]:
    """Let a published Java client print the same; it has no Python binding, and the types of fields are not known."""
    jar, path = environment.jar("fluss-client", version), environment.facts_program(version)
    command = [environment.java(), "-cp", path, "Facts", str(jar)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    parts = (part.partition("\n") for part in printed.split("--- ")[1:])
    return {name: text for name, _, text in parts}


def compare(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Collect all differences, by what was compared."""
    apis = sources["apis"]
    private = [
        "".join(word.capitalize() for word in name.split("_"))
        for name, *_, visibility in _API.findall(_COMMENT.sub("", apis))
        if visibility == "PRIVATE"
    ]
    found = {
        "Messages": compare_messages(sources["messages"], private),
        "APIs": compare_apis(apis),
        "Error codes": compare_errors(sources["errors"]),
        "Options": compare_options(sources["options"]),
        "Metrics": compare_metrics(sources["metrics"]),
    }
    return found | ({"Python binding": compare_binding(sources["binding"])} if "binding" in sources else {})


def commit_of(root: Path) -> str:
    """Name the commit of a checkout and its date; one without history is named by its folder."""
    command = ["git", "-C", str(root), "log", "-1", "--format=%h of %cs"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or root.name


def section(compared: Mapping[str, Mapping[str, list[str]]]) -> str:
    """Write the differences of some sources as a section of docs/compatibility.md."""
    lines = [
        MARKS[0],
        "## Sources compared",
        "",
        f"What Apache Fluss has and this package has not, or has otherwise, on {dt.date.today()}. "
        "`python -m tests.interop.drift PATH_OF_UPSTREAM` compares a checkout, `--release 1.0.0` a release.",
        "",
        "| | | missing or different | left out on purpose |",
        "| --- | --- | --- | --- |",
    ]
    for name, differences in compared.items():
        for part, found in differences.items():
            open_points = [line for line in found if not explained(line)]
            shown = "<br>".join(open_points) or "–"
            lines.append(f"| {name} | {part} | {shown} | {len(found) - len(open_points) or '–'} |")
    return "\n".join([*lines, "", "Left out on purpose:", "", *(f"* {reason}" for reason in ABSENT), MARKS[1]])


def kept_section() -> str:
    """Return the section that docs/compatibility.md has, for those who write the rest of that page."""
    _, mark, rest = DOCUMENT.read_text(encoding="utf-8").partition(MARKS[0])
    return f"{mark}{rest.partition(MARKS[1])[0]}{MARKS[1]}" if mark else ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compare Apache Fluss with this package.")
    parser.add_argument("upstream", type=Path, nargs="?", help="a checkout of apache/fluss")
    parser.add_argument("--release", help="a released version, such as 1.0.0")
    parser.add_argument("--commit", help="what to call it, such as '545c5539 of 2026-08-22'; git is asked otherwise")
    parser.add_argument("--write", action="store_true", help="write the result into docs/compatibility.md")
    options = parser.parse_args(arguments)
    if options.upstream is None and options.release is None:
        parser.error("name a checkout or a --release, or both")
    compared: dict[str, dict[str, list[str]]] = {}
    if options.release:
        compared[f"Java client {options.release}"] = compare(sources_of_release(options.release))
    if options.upstream:
        name = f"commit {options.commit or commit_of(options.upstream)}"
        compared[name] = compare(sources_of_checkout(options.upstream))
    open_points: list[str] = []
    for name, differences in compared.items():
        for part, found in differences.items():
            new = [line for line in found if not explained(line)]
            print(f"{name}: {part}: {len(new)} missing or different, {len(found) - len(new)} left out on purpose")
            print("".join(f"  {line}\n" for line in new), end="")
            open_points += new
    if options.write:
        made = section(compared)
        page = DOCUMENT.read_text(encoding="utf-8").replace(kept_section(), "").rstrip()
        DOCUMENT.write_text(f"{page}\n\n{made}\n", encoding="utf-8")
    return int(bool(open_points))


if __name__ == "__main__":
    raise SystemExit(main())
