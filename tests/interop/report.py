# SPDX-License-Identifier: Apache-2.0
"""Turns the results into the table on the screen and into ``docs/compatibility.md``."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from tests.interop import drift, environment, itcases, peers

if TYPE_CHECKING:
    from tests.interop.matrix import Outcome, Results

_TITLES = {
    "ours": "our server",
    "fluss": "our client, `fluss`",
    "fluss.aio": "our client, `fluss.aio`",
    **{f"java-{version}": f"the Java client {version}" for version in environment.JAVA_CLIENTS},
    "flink": f"Flink 1.20 with the official connector {environment.FLUSS_VERSION}",
    **{f"pyfluss-{version}": f"`pyfluss` {version}" for version in environment.WHEELS},
    f"fluss-{environment.FLUSS_VERSION}": f"Apache Fluss {environment.FLUSS_VERSION}",
    f"fluss-{environment.FLUSS_NEXT_VERSION}": f"Apache Fluss {environment.FLUSS_NEXT_VERSION}",
    f"fluss-{environment.FLUSS_HEAD_VERSION}": f"Apache Fluss, commit {environment.FLUSS_HEAD_COMMIT}",
}

# Why a client is not asked for something: what the release itself cannot do.
_NOT_ASKED = {
    "pyfluss-0.1.0": [
        "no nested or fixed-length types, prefix lookup, limit scan, filter, or auto-increment columns",
        "refuses to scan the changelog of a primary-key table",
        "cannot read rows written before a column was added (log: Arrow error; lookup: panic)",
    ],
    "pyfluss-1.0.0": [
        "a partition must exist before it is written: the writer waits for ever for one that does not",
        "reads batches of an older schema only with `with_fixed_schema(True)`, which the runs set",
        "the log is always written in Arrow format, whatever the table says",
        "on Apache Fluss, no added column in a projection over older batches: the server refuses it, see below",
    ],
    f"java-{environment.FLUSS_VERSION}": [
        "no Arrow or pandas input, and in this release no filter",
        "cannot read a timestamp before 1970 with a part of a millisecond from a log",
        "on Apache Fluss, no added column in a projection over older batches: the server refuses it, see below",
    ],
    f"java-{environment.FLUSS_NEXT_VERSION}": ["it is asked for what the release before it can do"],
}

# What the real system does otherwise than its documents or sources suggest, found by running it.
_DIFFERENCES = [
    "`server.yaml` is read line by line, not as YAML: a quoted value keeps its quotes (`'1'` is then not a number).",
    "With `authorizer.enabled`, the internal listener passes every check, but LIST_DATABASES and LIST_TABLES still "
    "filter by the rights of `User:ANONYMOUS`: without an ACL for it, the lists are empty there.",
    "Apache Fluss 0.9.1 answers DATABASE_EXISTS and TABLE_EXISTS to everybody, without looking at ACLs; the "
    "development line answers false to those who may not describe.",
    "A projection that names a column added later is refused by Apache Fluss 0.9.1 (code 34, "
    "INVALID_COLUMN_PROJECTION) as soon as the fetch meets a batch of the older schema; the Java client and the wheels "
    "pass the failure on. Our server fills such columns with null, for them too; our client copes with both.",
    "A lookup that inserts missing keys fails on partitioned tables of Apache Fluss 0.9.1 (IndexOutOfBoundsException): "
    "the keys that it decodes lack the partition columns. Our server fills these from the partition.",
    "The coordinator of Apache Fluss now and then misses the creation of a table right after that of its database: the "
    "table exists, its buckets never get a leader, and clients wait for one. The runs create such a table again.",
    "A scan of `pyfluss` 1.0.0 over batches of two schemas fails unless `with_fixed_schema(True)` is set.",
    "The Java client and the wheels spread keys differently over buckets when one of the last one to three bytes of "
    "the encoded key is 0x80 or more and its length is no multiple of four. Beside INT and BIGINT keys from 128 to "
    "2097151 and some texts this concerns every negative BIGINT key.",
    "`pyfluss` accepts timestamps only up to 9999-12-30T22:00:00Z.",
    "After `pyfluss` 1.0.0 had refused a row and the table was dropped, the next flush of the same connection did not "
    "return within two minutes; a failed client is therefore replaced before the next scenario.",
    "Apache Fluss adds a column named `__offset`, `__timestamp` or `__bucket` by ALTER, though not by CREATE. "
    "Our server refuses it in both: in a lake it would collide with a column of the same name.",
    "Errors have the codes of Apache Fluss. Where its cases compare one phrase of a text, ours begins with it; the "
    "rest is our own and says what to do next.",
    "Options that a cluster takes while it runs and that have nothing to act on here, such as "
    "`kv.rocksdb.shared-rate-limiter.bytes-per-sec`, are accepted and have no effect.",
    "Keys of expired partitions are looked up in the lake where the table has "
    "`table.datalake.historical-partition.enabled`, by our server and by our client, as on the development line: "
    "our client and the Java client 1.0.0 find the same rows on our server and on one built from its sources (`python "
    "-m tests.interop.expired`, 2026-11-18). Our server plans each lookup from the newest snapshot and keeps no copies "
    "of lake files; it refuses writes to the partition `__historical__`, which Apache Fluss takes and never tiers.",
    "`db.sql` has the functions `rb_*` that Apache Fluss has for Flink, for bitmaps of 32-bit integers. There too are "
    "none for those of `rbm64`.",
    "The number of buckets of a table with a lake cannot be changed on our server; Apache Fluss changes it for Paimon.",
    "Apache Fluss stores a row under the key that a client sends, and after a recovery under the key of its "
    "columns. The two differ where a key column holds more digits of a second than its TIME or TIMESTAMP, or "
    "fewer bytes than its BINARY; our server refuses such a row.",
    "Apache Fluss creates a table without columns, to which nothing can be written; our server refuses it.",
    "LIST_TABLES of a database that a user may not see, and has no table of, is an empty list on Apache Fluss, which "
    "shows that the database exists. Our server answers as for one that does not exist.",
    "Apache Fluss creates Paimon tables without the columns `__bucket`, `__offset` and `__timestamp` from 1.0 on, and "
    "has no property to choose. Our server creates them with these columns, which every release reads; both kinds are "
    "tiered to and read.",
]


_VERSIONS = """\
## Versions

| Apache Fluss | what holds |
| --- | --- |
| 0.9.1 | every client and server above is tested with it |
| 1.0 | messages, error codes and options are known and used, buckets per partition among them; tested with `pyfluss` \
1.0.0, the Java client 1.0.0 and a server built from the sources of its development line. That server cannot change \
the number of buckets yet: `tests/client/test_rescale.py` does so on ours |
| later | unknown fields are passed over, unknown error codes keep their number; the comparison of sources below shows \
what is new, and is run before each release of ours |
"""


# What the last runs of `tests.interop.itcases` counted: release, passed, left out, day.
_CASES = [
    ("0.9.1", 141, 29, "2026-11-18"),
    ("1.0, commit 545c5539", 211, 34, "2026-11-18"),
]


def _cases() -> list[str]:
    lines = ["## The Java client's own cases", ""]
    lines += [
        "`python -m tests.interop.itcases PATH_OF_UPSTREAM` runs the integration cases of `fluss-client` unchanged on "
        "our server; only the class that starts a cluster in their own process is replaced. Left out is what calls "
        "into that process (ZooKeeper, replicas, the coordinator), and what does not pass for a reason below; a class "
        "without a case counts once. All others pass.",
        "",
        "| Apache Fluss | passed | left out | on |",
        "| --- | --- | --- | --- |",
    ]
    lines += [f"| {' | '.join(map(str, row))} |" for row in _CASES]
    lines += [""]
    for reason, names in itcases.LEFT_OUT.items():
        lines.append(f"* {reason}: {', '.join(f'`{name}`' for name in names)}")
    return [*lines, "", *_BINDING, ""]


_BINDING = [
    "## The Python binding's own tests",
    "",
    "The tests of the Python binding in the sources of Apache Fluss (`fluss-rust/bindings/python/test`, commit "
    "545c5539) on our server, which they take from `FLUSS_BOOTSTRAP_SERVERS`, on 2026-11-18: `pyfluss` 1.0.0 passes "
    "all 82. Our client, `fluss.aio` under the name `fluss`, passes 80; the other two expect it to refuse what it can "
    "do: read a log in the indexed format and the changelog of a primary-key table in Arrow batches.",
]


# What the connector cannot do on any server; the scenarios check the refusals.
_FLINK_LIMITS = [
    "The connector itself refuses, on both servers: a batch read of a whole table that has no lake.",
]


def title(name: str) -> str:
    return _TITLES.get(name, name)


def _on(days: list[dt.date]) -> str:
    return " and ".join(f"on {day}" for day in days)


def mark(one: Outcome | None) -> str:
    if one is None:
        return ""
    return "✘" if one.problem else "✘ known" if one.known else "✔" if one.asked else "–"


def _cell(outcomes: list[Outcome] | None) -> str:
    if outcomes is None:
        return ""
    asked = [one for one in outcomes if one.asked and not one.known]
    failed = [one for one in asked if one.problem]
    if any(one.problem.startswith("cannot run") for one in failed):
        return "✘ cannot run"
    return f"✘ {len(failed)} of {len(asked)} failed" if failed else f"✔ {len(asked)}"


def summary(results: Results, servers: list[str], clients: list[str]) -> str:
    """The matrix as Markdown, which is readable enough on a terminal."""
    lines = ["| | " + " | ".join(title(server) for server in servers) + " |", "| --- |" + " --- |" * len(servers)]
    for client in clients:
        cells = [_cell(results.cells.get((server, client))) for server in servers]
        lines.append(f"| {title(client)} | " + " | ".join(cells) + " |")
    if results.flink:
        cells = [_cell(results.flink.get(server)) for server in servers]
        lines.append(f"| {title(peers.FLINK)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _by_scenario(results: Results, servers: list[str], clients: list[str]) -> list[str]:
    columns = [(server, client) for server in servers for client in clients if (server, client) in results.cells]
    names: list[str] = []
    for column in columns:
        names += [one.name for one in results.cells[column] if one.name not in names]
    lines = []
    for server in servers:
        here = [client for client in clients if (server, client) in results.cells]
        lines += [f"### On {title(server)}", "", "| | " + " | ".join(title(client) for client in here) + " |"]
        lines.append("| --- |" + " --- |" * len(here))
        for name in names:
            marks = []
            for client in here:
                found = [one for one in results.cells[server, client] if one.name == name]
                marks.append(mark(found[0] if found else None))
            lines.append(f"| {name} | " + " | ".join(marks) + " |")
        lines.append("")
    return lines


def _pairs(results: Results, servers: list[str], clients: list[str]) -> list[str]:
    lines = []
    for server in servers:
        if not any(key[0] == server for key in results.pairs):
            continue
        lines += [f"### Pairs on {title(server)}", "", "Rows write, columns read; an empty pair did not run.", ""]
        lines.append("| | " + " | ".join(title(client) for client in clients) + " |")
        lines.append("| --- |" + " --- |" * len(clients))
        for writer in clients:
            marks = [mark(results.pairs.get((server, writer, reader))) for reader in clients]
            lines.append(f"| {title(writer)} | " + " | ".join(marks) + " |")
        lines.append("")
    return lines


def _flink(results: Results, servers: list[str]) -> list[str]:
    if not results.flink:
        return []
    here = [server for server in servers if server in results.flink]
    days = sorted({one.day for server in here for one in results.flink[server]})
    lines = [
        "## Flink",
        "",
        f"SQL through the official connector `fluss-flink-1.20` {environment.FLUSS_VERSION}, on an embedded Flink "
        f"cluster, with Paimon as the lake and the official tiering job. Run {_on(days)}.",
        "",
        "| | " + " | ".join(title(server) for server in here) + " |",
        "| --- |" + " --- |" * len(here),
    ]
    found = {server: {one.name: one for one in results.flink[server]} for server in here}
    names = dict.fromkeys(name for server in here for name in found[server])
    lines += [f"| {name} | " + " | ".join(mark(found[server].get(name)) for server in here) + " |" for name in names]
    known = [(server, one) for server in here for one in results.flink[server] if one.known]
    lines += ["", *(f"* {one.name}, on {title(server)}: {one.known}." for server, one in known)]
    return [*lines, "", *_FLINK_LIMITS, ""]


def render(results: Results, servers: list[str], clients: list[str]) -> str:
    lines = [
        "# Compatibility",
        "",
        "Written by `make interop`, which runs all of this; do not edit it. A number is that of the scenarios "
        f"that passed. Run {_on(results.days())}.",
        "",
        summary(results, servers, clients),
        "",
    ]
    lines += [_VERSIONS, ""]
    if results.unpublished:
        lines += [
            f"Apache Fluss {environment.FLUSS_NEXT_VERSION} has no column: {results.unpublished}.",
            "",
        ]
    lines += ["## Scenarios", "", "✔ passed, ✘ failed, – the client has no such thing.", ""]
    lines += _by_scenario(results, servers, clients)
    lines += _flink(results, servers)
    lines += [
        "## What one client wrote, another reads",
        "",
        "Every type, keys of every length, composite keys, partitions; then the reader changes and the writer looks. "
        "With a wheel as partner our client runs with `client.bucketing=pyfluss`; keys that the Java client and the "
        "wheels send to different buckets are compared only within one family.",
        "",
    ]
    lines += _pairs(results, servers, clients)
    if results.failover:
        lines += [
            "## Failover",
            "",
            "One of two tablet servers of the real cluster is killed while the client writes a log and a keyed table "
            "and follows the log; replication factor 2.",
            "",
        ]
        for client in peers.OURS:
            one = results.failover.get(client)
            if one is not None:
                figures = ", ".join(f"{name}: {value}" for name, value in results.figures.get(client, {}).items())
                verdict = "✘ " + one.problem if one.problem else "✔ nothing acknowledged was lost or doubled"
                lines.append(f"* {title(client)}: {verdict}" + (f" ({figures})" if figures else ""))
        lines.append("")
    if results.front_door:
        lines += [
            "## `fluss.connect()` and `fluss copy`",
            "",
            "The high-level API on the real cluster, and tables copied from our server to it and back by the command "
            "line, verified; copies that are killed while they run and started again end equal.",
            "",
        ]
        lines += [f"* {one.name}: {'✘ ' + one.problem if one.problem else '✔'}" for one in results.front_door]
        lines.append("")
    lines += _cases()
    lines += ["## What is not asked, and why", ""]
    for client, reasons in _NOT_ASKED.items():
        lines += [f"* {title(client)}: " + "; ".join(reasons) + "."]
    lines += ["", "## Where the real system differs from its description", ""]
    lines += [f"* {difference}" for difference in _DIFFERENCES]
    lines += ["", drift.kept_section()]
    return "\n".join(lines) + "\n"
