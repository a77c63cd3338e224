# SPDX-License-Identifier: Apache-2.0
"""The process that writes RocksDB: what it does when it, or the server, or the disk fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.kv.support import opened, table
from tests.threads import in_threads
from tests.waiting import at_most, wait_for, wait_until

from fluss.server.kv import budget as budget_module
from fluss.server.kv import ordered, rocksdb
from fluss.server.kv.rocksdb import WriterProcess

ROWS: dict[bytes, bytes | None] = {i.to_bytes(8, "big"): b"\1\0row" for i in range(5_000)}


@pytest.fixture
def writer() -> Iterator[WriterProcess]:
    process = WriterProcess()
    yield process
    process.stop()


def _pid(writer: WriterProcess) -> int:
    return writer._process.pid


def test_rows_are_written_and_put_into_a_checkpoint(writer: WriterProcess, tmp_path: Path) -> None:
    sequence, figures = ordered.write_rows(writer, tmp_path / "a", ROWS)
    assert sequence == len(ROWS)
    assert set(figures) == set(rocksdb._FIGURES)
    writer.checkpoint(str(tmp_path / "a"), str(tmp_path / "b"))
    writer.put(str(tmp_path / "a"), [(next(iter(ROWS)), None)])
    writer.close(str(tmp_path / "a"))
    assert ordered.read_rows(tmp_path / "b") == ROWS
    assert len(ordered.read_rows(tmp_path / "a")) == len(ROWS) - 1


def test_few_databases_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of those whose rows are not flushed is closed: what fails then would go unnoticed."""

    def opened_folders() -> set[str]:
        paths = (Path(f"/proc/self/fd/{fd}").resolve() for fd in os.listdir("/proc/self/fd"))
        return {path.relative_to(tmp_path).parts[0] for path in paths if tmp_path in path.parents}

    monkeypatch.setattr(rocksdb, "_DATABASES_MAX", 3)
    writer, rows = rocksdb.Writer(), list(ROWS.items())[:10]
    writer.put(str(tmp_path / "unflushed"), rows)
    for number in range(8):
        writer.put(str(tmp_path / str(number)), rows)
        writer.flush(str(tmp_path / str(number)))
    assert opened_folders() == {"unflushed", "6", "7"}
    writer.put(str(tmp_path / "0"), [(b"later", b"\1\0row")])
    writer.flush(str(tmp_path / "0"))
    writer.stop()
    assert ordered.read_rows(tmp_path / "0") == {**dict(rows), b"later": b"\1\0row"}
    assert ordered.read_rows(tmp_path / "unflushed") == dict(rows)


def test_an_error_of_rocksdb_is_reported_and_ends_nothing(writer: WriterProcess, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        writer.put(str(tmp_path / "file" / "a"), [(b"k", b"v")])
    pid = _pid(writer)
    ordered.write_rows(writer, tmp_path / "a", ROWS)
    assert _pid(writer) == pid


def test_a_process_that_was_killed_is_started_again(writer: WriterProcess, tmp_path: Path) -> None:
    ordered.write_rows(writer, tmp_path / "a", ROWS)
    os.kill(_pid(writer), signal.SIGKILL)
    with pytest.raises(OSError, match="ended with status -9"):
        writer.flush(str(tmp_path / "a"))
    writer.put(str(tmp_path / "a"), [(b"k", b"v")])
    writer.flush(str(tmp_path / "a"))
    writer.close(str(tmp_path / "a"))
    assert ordered.read_rows(tmp_path / "a") == ROWS | {b"k": b"v"}


async def test_a_killed_spill_is_redone(writer: WriterProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_module, "_RETRY_SECONDS_MIN", 0.05)
    async with opened(tmp_path, table(), writer=writer) as bucket:
        bucket.budget._retry_seconds = 0.05
        await bucket.put([(i, "a", None) for i in range(1_000)])
        await bucket.spill()
        os.kill(_pid(writer), signal.SIGKILL)
        await bucket.put([(i, "b", None) for i in range(500)])
        await bucket.spill()
        expected = [(i, "b" if i < 500 else "a", None) for i in range(1_000)]
        assert sorted(await bucket.rows()) == expected
        await wait_until(lambda: not bucket.store.spill_failed and not bucket.store.is_spilling)
        assert sorted(await bucket.rows()) == expected


def test_a_process_that_works_too_long_at_a_stop_is_ended(writer: WriterProcess, tmp_path: Path) -> None:
    ordered.write_rows(writer, tmp_path / "a", ROWS)
    os.kill(_pid(writer), signal.SIGSTOP)  # as if the disk never answered
    writer.stop_within(0.2)
    with at_most(5):
        with pytest.raises(OSError, match="ended with status -9"):
            writer.flush(str(tmp_path / "a"))
        with pytest.raises(OSError, match="the server stops"):
            writer.flush(str(tmp_path / "a"))
        writer.stop()


def test_calls_of_several_threads_are_kept_apart(writer: WriterProcess, tmp_path: Path) -> None:
    def write(name: str) -> None:
        ordered.write_rows(writer, tmp_path / name, {key: name.encode() for key in ROWS})

    in_threads(write, "abcd")
    for name in "abcd":
        writer.close(str(tmp_path / name))
        assert ordered.read_rows(tmp_path / name) == dict.fromkeys(ROWS, name.encode())


_SERVER = """
import sys, time
from fluss.server.kv.rocksdb import WriterProcess
writer = WriterProcess()
writer.put(sys.argv[1], [(b"k", b"v")])
print(writer._process.pid, flush=True)
time.sleep(60)
"""


def test_the_process_ends_with_a_server_that_is_killed_even_in_the_middle_of_a_call(tmp_path: Path) -> None:
    server = subprocess.Popen([sys.executable, "-c", _SERVER, str(tmp_path / "a")], stdout=subprocess.PIPE)
    pid = int(server.stdout.readline())
    # One that is stopped does not read its pipe, as little as one that waits for the disk.
    os.kill(pid, signal.SIGSTOP)
    server.kill()
    server.wait()
    server.stdout.close()
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: not Path(f"/proc/{pid}").exists() or _state(pid) == "Z")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
