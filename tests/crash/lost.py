# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.crash.lost --rounds 100``: the machine disappears again and again, and its backup is restored.

A server writes its backup while clients append and upsert. It is killed and its data folder deleted, the backup is
restored into a new folder, and the next server goes on with it. With ``--store s3`` the backup lies on a real S3 server
behind a proxy that fails, delays and repeats old lists.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.reading import WrongRowsError, read_bucket, read_state
from tests.ports import free_port

import fluss
import fluss.aio
from fluss.errors import FlussError
from fluss.metadata import TableBucket
from fluss.server.local import LocalServer
from fluss.server.replication.layout import Backup, time_of
from fluss.server.replication.restoring import Restored, restore, verify

KEYS = 40
_MARGIN_S = 0.5
INTERVAL_MS = 200
OPTIONS: dict[str, object] = {
    "replication.interval": f"{INTERVAL_MS} ms",
    "log.segment.file-size": "24kb",
    "kv.memory-size": "16kb",
    "kv.snapshot.interval": "300 ms",
}
LOG = fluss.TablePath("fluss", "events")
KEYED = fluss.TablePath("fluss", "totals")


@dataclass
class History:
    """The values that were written to a table, in order, and when the first so many were acknowledged."""

    sent: list[int] = field(default_factory=list)
    acknowledged: list[tuple[float, int]] = field(default_factory=list)

    def written_before(self, moment: float) -> int:
        return max((count for at, count in self.acknowledged if at < moment), default=0)

    def lost_seconds(self, count: int, died: float) -> float:
        """How long the oldest lost value had been acknowledged, if only so many are left."""
        return died - min((at for at, acknowledged in self.acknowledged if acknowledged > count), default=died)

    def cut(self, count: int) -> None:
        del self.sent[count:]
        self.acknowledged = [(0.0, count)]


class Client(threading.Thread):
    """Writes batch after batch to both tables, until the server is gone."""

    def __init__(self, server: LocalServer, rows: History, changes: History, seed: int) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._rows, self._changes = rows, changes
        self._random = random.Random(seed)
        self.batches = 0

    def run(self) -> None:
        options = {"writer.delivery-timeout-ms": "1 s", "connect-timeout": "1 s"}
        with (
            contextlib.suppress(FlussError),
            fluss.connect(self._server.bootstrap_servers, options=options) as db,
        ):
            log, keyed = db.table(str(LOG)), db.table(str(KEYED))
            while True:
                for history, write in (
                    (self._rows, lambda values: log.append([(one, "x" * (one % 120)) for one in values])),
                    (self._changes, lambda values: keyed.upsert([(one % KEYS, one) for one in values])),
                ):
                    first = len(history.sent)
                    values = list(range(first, first + self._random.randint(1, 20)))
                    history.sent += values
                    write(values)
                    history.acknowledged.append((time.time(), len(history.sent)))
                self.batches += 1


class LostRun:
    """`rounds` losses, all random choices from `seed`."""

    def __init__(self, folder: Path, url: str, seed: int, store: dict[str, object] | None = None) -> None:
        self.folder = folder
        self.url = url
        self.store = dict(store or {})
        self.random = random.Random(seed)
        self.rows, self.changes = History(), History()
        self.lost_seconds_max = 0.0
        """How long the oldest value that was lost had been acknowledged."""
        self.batches = 0

    def run(self, rounds: int) -> None:
        data = self.folder / "data-0"
        with self._server(data) as server:
            self._live(server)
        for number in range(1, rounds):
            data = self.folder / f"data-{number}"
            with self._restored_server(data) as server:
                self._live(server)
        found = self._restore(self.folder / "last")
        with self._server(self.folder / "last", replicate=False) as server:
            self._check(server, found)
        damages = verify(self.url, store_options=self._store_options()).damages
        assert not damages, damages

    def _store_options(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.store.items()}

    def _server(self, data: Path, *, replicate: bool = True) -> LocalServer:
        own = {"replication.url": self.url} if replicate else {}
        return LocalServer(data, port=free_port(), options={**OPTIONS, **self.store, **own})

    def _restore(self, data: Path) -> Restored:
        deadline = time.monotonic() + 120
        while True:
            try:
                found = restore(self.url, data, store_options=self._store_options())
            except (OSError, FlussError):
                if time.monotonic() > deadline:
                    raise
                continue  # the store fails now and then; an interrupted restore begins again
            assert not found.damages, found.damages
            return found

    def _restored_server(self, data: Path) -> LocalServer:
        """Restore and start. Of a store with old lists an old state may come, whose server is refused."""
        deadline = time.monotonic() + 120
        while True:
            found = self._restore(data)
            server = self._server(data)
            try:
                server.start()
            except FlussError as error:
                if "another server" not in str(error) or time.monotonic() > deadline:
                    raise
                shutil.rmtree(data)
                continue
            self._check(server, found)
            return server

    def _live(self, server: LocalServer) -> None:
        """Work, and disappear."""
        is_first = not self.batches
        if is_first:
            with fluss.connect(server.bootstrap_servers) as db:
                db.create_table(str(LOG), "id bigint, text string")
                db.create_table(str(KEYED), "k bigint, v bigint", primary_key="k")
        client = Client(server, self.rows, self.changes, self.random.randrange(1 << 30))
        self.started = time.time()
        client.start()
        deadline = time.monotonic() + 60
        manifests = Backup(self.url, self._store_options())
        while client.batches < 3 or (is_first and not _has_manifest(manifests)):
            assert client.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(self.random.random() * 1.5)
        server.crash()
        self.died = time.time()
        shutil.rmtree(server.data_dir)
        client.join(60)
        assert not client.is_alive()
        self.batches += client.batches

    def _check(self, server: LocalServer, found: Restored) -> None:
        asyncio.run(self._check_rows(server, found.time_ms / 1000))

    def _check_lost(self, lost_s: float) -> None:
        """Nothing is lost that was older than the interval and two uploads: the last one, and one that did not end."""
        self.lost_seconds_max = max(self.lost_seconds_max, lost_s)
        if self.store:
            return  # one that fails: an upload takes as long as it is tried again
        rounds = [time_of(name) / 1000 for name in Backup(self.url).manifest_names()]
        times = [self.started, *(at for at in rounds if self.started < at < self.died)]
        upload_s = max((later - earlier for earlier, later in itertools.pairwise(times)), default=lost_s)
        if lost_s > INTERVAL_MS / 1000 + 2 * upload_s + _MARGIN_S:
            raise WrongRowsError(f"lost what was written {lost_s:.2f} s before; uploads took at most {upload_s:.2f} s")

    async def _check_rows(self, server: LocalServer, moment: float) -> None:
        async with await fluss.aio.FlussConnection.create(server.config()) as connection:
            for path, history, column in ((LOG, self.rows, "id"), (KEYED, self.changes, "v")):
                info = await connection.get_admin().get_table_info(path)
                bucket = TableBucket(info.table_id, 0)
                changes, end = await read_bucket(connection, path, bucket)
                if [change.offset for change in changes] != list(range(end)):
                    raise WrongRowsError(f"{path}: offsets are not 0 to {end - 1}")
                values = [change.row[column] for change in changes if change.kind.short_string() != "-U"]
                if values != history.sent[: len(values)]:
                    raise WrongRowsError(f"{path}: {len(values)} restored values are not the first that were written")
                if len(values) < history.written_before(moment):
                    raise WrongRowsError(
                        f"{path}: {len(values)} values restored, {history.written_before(moment)} were acknowledged "
                        "before the time of the backup"
                    )
                if path == KEYED:
                    await read_state(connection, path, "k", {bucket: changes}, list(range(KEYS)))
                self._check_lost(history.lost_seconds(len(values), self.died))
                history.cut(len(values))


def _has_manifest(backup: Backup) -> bool:
    with contextlib.suppress(OSError):
        return len(backup.manifest_names()) > 3
    return False


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.lost", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="number of losses")
    parser.add_argument("--seed", type=int, default=None, help="random without one")
    parser.add_argument("--store", choices=("folder", "s3"), default="folder", help="where the backup lies")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    with tempfile.TemporaryDirectory(prefix="fluss-lost-") as place, contextlib.ExitStack() as stack:
        folder, url, store = Path(place), str(Path(place) / "backup"), {}
        if options.store == "s3":
            from tests.crash.bad_store import bad_store

            url, store = stack.enter_context(bad_store(folder / "s3", seed))
        run = LostRun(folder, url, seed, store)
        try:
            run.run(options.rounds)
        except BaseException:
            print(f"seed {seed}: failed")
            raise
        print(
            f"seed {seed}: {options.rounds} losses, {run.batches} batches acknowledged, nothing lost from before the "
            f"backup; the oldest value that was lost had been acknowledged for {run.lost_seconds_max:.1f} s"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
