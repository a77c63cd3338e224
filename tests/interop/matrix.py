# SPDX-License-Identifier: Apache-2.0
"""The compatibility matrix: ``make interop``, that is ``python -m tests.interop.matrix``.

Runs every client against every server, every client on what another one wrote, and the crash of a tablet server;
prints the table and writes ``docs/compatibility.md``. Ends with status 1 when a cell failed or could not run, and says
which and why. Needs Java 11+, Maven and pip with their usual registries; everything fetched lands in
``.cache/interop/``. Logs of failed runs are kept in ``.cache/interop/logs/``.

A part of it, without touching the document; and with ``--add``, which replaces that part of the last results in it::

    python -m tests.interop.matrix --servers ours --clients fluss,pyfluss-1.0.0 --only "prefix lookup"
    python -m tests.interop.matrix --add --servers fluss-1.0-SNAPSHOT --clients java-1.0.0 --no-failover --no-front

The server of the development line is one that was built from sources: it runs if the local Maven repository has it,
after ``mvn install`` of fluss-server and fluss-client.
"""

from __future__ import annotations

import argparse
import datetime as dt
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop import crosses, drift, environment, failover, flink, front_door, peers, report
from tests.interop.cluster import OurServer, RealCluster, Server
from tests.interop.context import Context
from tests.interop.peers import Peer
from tests.interop.scenarios import SCENARIOS, Scenario

OURS = "ours"
REAL = f"fluss-{environment.FLUSS_VERSION}"
NEXT = f"fluss-{environment.FLUSS_NEXT_VERSION}"
HEAD = f"fluss-{environment.FLUSS_HEAD_VERSION}"


@dataclass
class Outcome:
    """One scenario of one cell. ``problem`` is empty when it passed; ``asked`` is false when the client lacks it."""

    name: str
    problem: str = ""
    asked: bool = True
    seconds: float = 0.0
    known: str = ""  # it failed, and had to: why
    day: dt.date = field(default_factory=dt.date.today)


@dataclass
class Results:
    cells: dict[tuple[str, str], list[Outcome]] = field(default_factory=dict)  # (server, client)
    pairs: dict[tuple[str, str, str], Outcome] = field(default_factory=dict)  # (server, writer, reader)
    failover: dict[str, Outcome] = field(default_factory=dict)  # client
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    flink: dict[str, list[Outcome]] = field(default_factory=dict)  # server
    front_door: list[Outcome] = field(default_factory=list)  # fluss.connect() and fluss copy with the real cluster
    unpublished: str = ""  # why there is no column for the next release of Apache Fluss

    def days(self) -> list[dt.date]:
        """Return the days on which the cells ran, in order."""
        return sorted({one.day for outcomes in self.cells.values() for one in outcomes})

    def problems(self) -> list[str]:
        found = [
            f"{client} on {server}: {one.name}: {one.problem}"
            for (server, client), outcomes in self.cells.items()
            for one in outcomes
            if one.problem
        ]
        found += [
            f"{writer} to {reader} on {server}: {one.problem}"
            for (server, writer, reader), one in self.pairs.items()
            if one.problem
        ]
        found += [f"failover of {client}: {one.problem}" for client, one in self.failover.items() if one.problem]
        found += [
            f"Flink on {server}: {one.name}: {one.problem}"
            for server, outcomes in self.flink.items()
            for one in outcomes
            if one.problem
        ]
        found += [f"{one.name}: {one.problem}" for one in self.front_door if one.problem]
        return found


class Crew:
    """The client processes of one server's runs. A client that failed is replaced: it may hold on to old writes."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._peers: dict[tuple[str, str], Peer] = {}

    def get(self, name: str, role: str = "client") -> Peer:
        found = self._peers.get((name, role))
        if found is not None and not found.alive:
            found.close()
            found = None
        if found is None:
            found = self._peers[name, role] = peers.start(name, self.logs)
        return found

    def replace(self) -> None:
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()

    close = replace


def _attempt(name: str, crew: Crew, run: Callable[[], None]) -> Outcome:
    started = time.monotonic()
    problem = ""
    try:
        run()
    except Exception as error:  # whatever goes wrong in a cell is its result
        problem = f"{type(error).__name__}: {error}" if not str(error) else str(error)
        problem = problem.strip().splitlines()[0][:900]
        crew.replace()
    return Outcome(name, problem, seconds=time.monotonic() - started)


def run_scenario(server: Server, crew: Crew, client: str, helper: str, one: Scenario) -> Outcome:
    if not one.requires <= peers.capabilities(client, server.name):
        return Outcome(one.name, asked=False)

    def run() -> None:
        with Context(server, crew.get(client), crew.get(helper, "helper")) as context:
            one.run(context)

    return _attempt(one.name, crew, run)


def run_pair(server: Server, crew: Crew, writer: str, reader: str) -> Outcome:
    def run() -> None:
        bucketing = crosses.bucketing_for(writer, reader)
        with Context(server, crew.get(writer), crew.get(reader, "reader"), bucketing=bucketing) as context:
            crosses.run(context)

    return _attempt(f"{writer} to {reader}", crew, run)


@contextmanager
def crew_of(logs: Path) -> Iterator[Crew]:
    crew = Crew(logs)
    try:
        yield crew
    finally:
        crew.close()


def make_server(name: str, logs: Path) -> Server:
    if name == OURS:
        return OurServer(keep_logs_in=logs)
    return RealCluster(name.removeprefix("fluss-"), keep_logs_in=logs)


def pairs_for(server: str, clients: list[str]) -> list[tuple[str, str]]:
    """All pairs on our own server; on the real one those with us, the others being its authors' business."""
    every = [(a, b) for a in clients for b in clients if a != b]
    return every if server == OURS else [(a, b) for a, b in every if "fluss" in (a, b)]


def run_server(name: str, clients: list[str], options: argparse.Namespace, results: Results) -> None:
    logs = environment.CACHE / "logs"
    chosen = [one for one in SCENARIOS if not options.only or options.only in one.name]
    # The helper must be able to say everything; on the real server it must also be the reference.
    helper = "fluss" if options.helper is None else options.helper
    try:
        server = make_server(name, logs)
        with server, crew_of(logs / name) as crew:
            for client in clients:
                print(f"\n{client} on {name}", flush=True)
                outcomes = results.cells[name, client] = []
                for one in chosen:
                    outcomes.append(run_scenario(server, crew, client, helper, one))
                    _show(outcomes[-1])
                    server.failed |= bool(outcomes[-1].problem)
            if options.cross:
                print(f"\npairs on {name}", flush=True)
                for writer, reader in pairs_for(name, clients):
                    outcome = results.pairs[name, writer, reader] = run_pair(server, crew, writer, reader)
                    _show(outcome)
                    server.failed |= bool(outcome.problem)
    except Exception as error:  # a server or client that cannot be started is a failed cell, and is said so
        reason = _cannot_run("the cell", error)
        _show(reason)
        for client in clients:
            results.cells.setdefault((name, client), []).append(reason)


def _cannot_run(name: str, error: Exception) -> Outcome:
    said = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return Outcome(name, f"cannot run: {' … '.join(dict.fromkeys((said[0], said[-1])))}")


def run_flink(name: str, options: argparse.Namespace, results: Results) -> None:
    """Runs the Flink scenarios on a server whose lake is a warehouse of its own."""
    logs = environment.CACHE / "logs" / "flink"
    chosen = [one for one in flink.SCENARIOS if not options.only or options.only in one.name]
    outcomes = results.flink[name] = []
    print(f"\nFlink on {name}", flush=True)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="fluss-interop-lake-") as folder,
            crew_of(logs / name) as crew,
            flink.make_server(name, logs, Path(folder)) as server,
        ):
            for one in chosen:
                outcomes.append(_attempt_flink(server, crew, Path(folder), one))
                _show(outcomes[-1])
                server.failed |= bool(outcomes[-1].problem)
    except Exception as error:
        outcomes.append(_cannot_run("Flink", error))
        _show(outcomes[-1])


def _attempt_flink(server: Server, crew: Crew, warehouse: Path, one: flink.FlinkScenario) -> Outcome:
    outcome = _attempt(
        one.name,
        crew,
        lambda: flink.Session(server, crew.get(peers.FLINK), warehouse, sasl=one.sasl).run(one),
    )
    if server.name in one.fails:
        expected, reason = one.fails[server.name]
        if not outcome.problem:
            outcome.problem = f"passed, although it was expected to fail: {reason}"
        elif expected in outcome.problem:
            outcome.known, outcome.problem = reason, ""
    return outcome


def run_failover(results: Results) -> None:
    logs = environment.CACHE / "logs" / "failover"
    for face in peers.OURS:
        started = time.monotonic()
        outcome = results.failover[face] = Outcome(f"{face}: one of two tablet servers dies")
        try:
            results.figures[face] = failover.run(face, logs)
        except Exception as error:
            outcome.problem = str(error).strip() or type(error).__name__
        outcome.seconds = time.monotonic() - started
        _show(outcome)


def run_front_door(results: Results) -> None:
    logs = environment.CACHE / "logs" / "front-door"
    crew = Crew(logs)  # has no clients: the checks connect by themselves
    results.front_door = []
    try:
        for name, check in front_door.checks(logs):
            results.front_door.append(_attempt(name, crew, check))
            _show(results.front_door[-1])
    except Exception as error:
        results.front_door.append(Outcome("fluss.connect() and fluss copy", f"cannot run: {error}"))
        _show(results.front_door[-1])


def _show(one: Outcome) -> None:
    print(f"  {report.mark(one)} {one.name}" + (f"  ({one.seconds:.1f} s)" if one.asked else ""), flush=True)
    if one.problem or one.known:
        print(f"      {one.problem or f'known: {one.known}'}", flush=True)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.matrix", description=__doc__.split("\n\n")[0])
    parser.add_argument("--servers", default=f"{OURS},{REAL}", help="comma list (default %(default)s)")
    parser.add_argument(
        "--clients", default=",".join((*peers.ALL, peers.FLINK)), help="comma list (default %(default)s)"
    )
    parser.add_argument("--only", help="run only scenarios whose name contains this")
    parser.add_argument("--add", action="store_true", help="put the results in place of older ones, into the document")
    parser.add_argument("--helper", help="client that sets up what the one under test cannot (default: fluss)")
    parser.add_argument("--no-cross", dest="cross", action="store_false", help="leave the cross pairs out")
    parser.add_argument("--no-failover", dest="failover", action="store_false", help="leave the crash out")
    parser.add_argument(
        "--no-front", dest="front", action="store_false", help="leave fluss.connect() and fluss copy out"
    )
    options = parser.parse_args(arguments)
    if options.add and options.only:
        parser.error("--add takes all scenarios of a cell: leave --only out")
    return options


def _add_unreleased(servers: list[str], results: Results) -> None:
    """Add the servers that run where they can be had: the next release, and the development line."""
    try:
        environment.classpath(environment.FLUSS_NEXT_VERSION)
        servers.append(NEXT)
        results.unpublished = ""
    except environment.NotPublished as reason:
        results.unpublished = f"`{reason}` is not published"
    except environment.Unavailable as reason:
        print(reason, file=sys.stderr)
        results.unpublished = "its jars could not be fetched when this page was written"
    try:
        environment.classpath(environment.FLUSS_HEAD_VERSION)
        servers.append(HEAD)
    except environment.Unavailable as reason:
        print(f"no server of the development line: {reason}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    servers, asked = options.servers.split(","), options.clients.split(",")
    clients = [client for client in asked if client != peers.FLINK]
    whole = not arguments and len(sys.argv) == 1
    kept = environment.CACHE / "results.pickle"
    results = pickle.loads(kept.read_bytes()) if options.add and kept.exists() else Results()
    if whole or options.add:
        _add_unreleased(servers if whole else [], results)
    for server in servers:
        if clients:
            run_server(server, clients, options, results)
        if peers.FLINK in asked and server in (OURS, REAL):  # its connector and lake are of that release
            run_flink(server, options, results)
    if clients and options.failover and any(server != OURS for server in servers):
        print("\nfailover on the real cluster", flush=True)
        run_failover(results)
    if clients and options.front and any(server != OURS for server in servers):
        print("\nfluss.connect() and fluss copy with the real cluster", flush=True)
        run_front_door(results)
    if whole or options.add:
        kept.write_bytes(pickle.dumps(results))
        servers = [one for one in (OURS, REAL, NEXT, HEAD) if one in {server for server, _ in results.cells}]
        clients = [one for one in peers.ALL if one in {client for _, client in results.cells}]
        drift.DOCUMENT.write_text(report.render(results, servers, clients))
    print("\n" + report.summary(results, servers, clients))
    problems = results.problems()
    for problem in problems:
        print(f"FAILED {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
