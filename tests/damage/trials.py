# SPDX-License-Identifier: Apache-2.0
"""One trial: a copy of the folder, one damaged file, two starts, and everything read in between."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from tests.crash.reading import Change, WrongRowsError
from tests.damage.folder import DATABASE, Contents, Place, damage, files_by_kind, read_all, served

import fluss.aio as fluss
from fluss.net.connection import Connection
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.record_messages import encode_produce_log
from fluss.records.log_batch import iter_log_batches

READ_SECONDS_MAX = 30.0
_ONE_COLUMN = pa.schema([("id", pa.int32())])

# Damage to any other file may cost time, but no row: what it says is in the log as well.
COSTS_ROWS = frozenset({"log segment", "table", "partition", "remote log segment", "remote file", "remote reference"})


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@dataclass
class Outcome:
    """What a trial found."""

    file: str
    kind: str
    how: str
    failed: dict[Place, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class Trials:
    """Many trials on copies of the same folders."""

    def __init__(self, images: dict[str, Path], contents: Contents, work: Path, seed: int) -> None:
        self.images = images
        self.contents = contents
        self.work = work
        self.random = random.Random(seed)
        self.files = {name: files_by_kind(folder) for name, folder in images.items()}
        self.counts: Counter[str] = Counter()

    def kinds(self) -> list[tuple[str, str]]:
        """Every kind of file in every image."""
        return [(image, kind) for image, kinds in self.files.items() for kind in kinds]

    def run(self, image: str, kind: str) -> Outcome:
        file = self.random.choice(self.files[image][kind])
        folder = self.work / "trial"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.images[image], folder)
        outcome = Outcome(file, kind, damage(folder / file, self.random))
        self.counts[kind] += 1
        lines = _Lines()
        server_log = logging.getLogger("fluss.server")
        server_log.addHandler(lines)
        try:
            for start in ("first", "second"):
                try:
                    asyncio.run(asyncio.wait_for(self._read(folder, outcome), READ_SECONDS_MAX))
                except Exception as error:
                    outcome.wrong.append(f"{start} start: {type(error).__name__}: {error}")
        finally:
            server_log.removeHandler(lines)
        self._judge(outcome, "\n".join(lines.lines))
        return outcome

    async def _read(self, folder: Path, outcome: Outcome) -> None:
        async with served(folder) as (server, connection):
            endpoint = server.advertised_endpoint(next(iter(server.listeners)))
            bare = await _connect(endpoint.host, endpoint.port)
            for place in self.contents.logs:
                try:
                    await self._read_place(connection, place)
                    await self._repeat_batch(bare, folder, place)
                except fluss.FlussError as error:
                    outcome.failed[place] = str(error)
                except WrongRowsError as error:
                    outcome.wrong.append(f"{place}: {error}")
            await bare.close()
            with contextlib.suppress(fluss.FlussError):
                await connection.get_admin().get_producer_offsets("producer")
            # The rest of the server goes on.
            admin = connection.get_admin()
            new = fluss.TablePath("others", "new")
            await admin.create_database("others", ignore_if_exists=True)
            await admin.drop_table(new, ignore_if_not_exists=True)
            await admin.create_table(new, fluss.TableDescriptor(fluss.Schema(_ONE_COLUMN)))
            table_id = (await admin.get_table_info(new)).table_id
            if table_id in self.contents.table_ids.values():
                raise WrongRowsError(f"the new table has the id {table_id} of another one")

    async def _read_place(self, connection: fluss.FlussConnection, place: Place) -> None:
        expected = self.contents.logs[place]
        bucket = self.contents.bucket(place)
        changes: list[Change] = []
        try:
            await read_all(connection, place.path, bucket, changes)
        except fluss.FlussError:
            if changes != expected[: len(changes)]:
                raise WrongRowsError(f"wrong records before an error: {_difference(changes, expected)}") from None
            raise
        if changes != expected:
            raise WrongRowsError(_difference(changes, expected))
        if place not in self.contents.states:
            return
        state = self.contents.states[place]
        table = await connection.get_table(place.path)
        rows = (await table.new_scan().create_bucket_batch_scanner(bucket).to_arrow()).to_pylist()
        if sorted(rows, key=lambda row: row["k"]) != [state[key] for key in sorted(state)]:
            raise WrongRowsError(f"the full scan gives {len(rows)} rows, not the {len(state)} expected ones")
        lookuper = table.new_lookup().create_lookuper()
        found = (await lookuper.lookup_many([[key] for key in state])).to_pylist()
        if found != list(state.values()):
            raise WrongRowsError("lookups give other rows than were written")

    async def _repeat_batch(self, connection: Connection, folder: Path, place: Place) -> None:
        """The last batch of a writer, sent again, is known to be there; whatever happened to the writers' state."""
        if place in self.contents.states:
            return
        newest = max((folder / place.folder).glob("*.log"))
        batches = [bytes(b.view) for b in iter_log_batches(memoryview(newest.read_bytes()), verify=True)]
        if not batches:
            return
        bucket = self.contents.bucket(place)
        records = [(bucket.partition_id, bucket.bucket_id, [batches[-1]])]
        body = encode_produce_log(-1, bucket.table_id, 5000, records)
        answer = pb.ProduceLogResponse.FromString(bytes(await connection.call_parts(apis.PRODUCE_LOG, body)))
        result = answer.buckets_resp[0]
        base_offset = next(iter(iter_log_batches(memoryview(batches[-1])))).header.base_offset
        if result.error_code == 0 and result.base_offset != base_offset:
            raise WrongRowsError(f"a repeated batch was appended at {result.base_offset}; it was at {base_offset}")

    def _judge(self, outcome: Outcome, log_text: str) -> None:
        """Failures must be in the damaged place and must name the file."""
        for place, message in outcome.failed.items():
            if outcome.kind not in COSTS_ROWS:
                outcome.wrong.append(f"{place} failed, although its log is whole: {message}")
            elif not self._may_hurt(outcome, place):
                outcome.wrong.append(f"{place} failed, although it lies elsewhere: {message}")
        # Clients read remote files themselves and know their folder: that of the bucket, above the segment's.
        name = Path(outcome.file).name if not outcome.kind.startswith("remote ") else "remote/log"
        if outcome.failed and name not in log_text and not any(name in text for text in outcome.failed.values()):
            outcome.wrong.append(f"neither an error nor the log names '{name}': {list(outcome.failed.values())[:1]}")

    def _may_hurt(self, outcome: Outcome, place: Place) -> bool:
        table_id = self.contents.table_ids[place.table]
        if outcome.kind in ("log segment", "remote reference"):
            return outcome.file.startswith(place.folder + "/")
        if outcome.kind in ("table", "partition"):
            return outcome.file.startswith(f"catalog/tables/{table_id}/")
        return f"{DATABASE}/{place.table}-{table_id}/" in outcome.file


def _difference(found: list[Change], expected: list[Change]) -> str:
    for number, (one, other) in enumerate(zip(found, expected)):
        if one != other:
            return f"record {number} is {one}, expected {other}"
    return f"{len(found)} records, expected {len(expected)}"


async def _connect(host: str, port: int) -> Connection:
    return await Connection.open(
        host, port, software_name="damage", connect_timeout_ms=5000, request_timeout_ms=10_000, max_frame_bytes=1 << 26
    )
