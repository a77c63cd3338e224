# SPDX-License-Identifier: Apache-2.0
"""What `connect` connects to."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.ports import free_port, silent_address
from tests.waiting import at_most, wait_for

import fluss
from fluss.cli import main as cli
from fluss.db import targets
from fluss.server.datadir import live_addresses


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("FLUSS_BOOTSTRAP_SERVERS", "FLUSS_USER", "FLUSS_PASSWORD", "FLUSS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FLUSS_CONFIG_DIR", str(tmp_path / "config"))


def test_a_folder_keeps_its_tables(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    with fluss.connect(folder) as db:
        db.create_table("orders", "id bigint, item string", primary_key="id").upsert({"id": 7, "item": "tea"})
    assert live_addresses(folder) == []
    with fluss.connect(str(folder)) as db:
        assert db.table("orders").get(7) == {"id": 7, "item": "tea"}


def test_a_folder_in_use_is_joined_by_other_connections_and_programs(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    with fluss.connect(folder) as db:
        orders = db.create_table("orders", "id bigint, item string", primary_key="id")
        with fluss.connect(folder) as other:
            assert other.address == db.address
            other.orders.upsert((1, "tea"))
        program = f"""
            import fluss
            with fluss.connect({str(folder)!r}) as db:
                db.orders.upsert((2, "milk"))
        """
        subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(program)], check=True, timeout=60)
        assert [orders.get(key) for key in (1, 2)] == [{"id": 1, "item": "tea"}, {"id": 2, "item": "milk"}]


def test_connecting_again_in_one_program_keeps_the_server(tmp_path: Path) -> None:
    db = fluss.connect(tmp_path / "shop")
    table = db.create_table("t", "a int")
    db = fluss.connect(tmp_path / "shop")  # a cell of a notebook that is run twice
    del table  # with it goes the first connection, which has started the server
    gc.collect()
    db.t.append((1,))
    first, second = fluss.connect(tmp_path / "shop"), fluss.connect(str(tmp_path / "x" / ".." / "shop"))
    assert first.address == second.address == db.address
    db.close()
    first.close()
    first.close()
    assert second.t.to_pylist() == [{"a": 1}]
    second.close()
    assert live_addresses(tmp_path / "shop") == []


def test_programs_that_start_at_the_same_time_share_one_server(tmp_path: Path) -> None:
    program = f"""
        import fluss, sys
        with fluss.connect({str(tmp_path / "shop")!r}) as db:
            db.create_table("t", "pid int", exist_ok=True).append((1,))
            print(db.address, flush=True)
            sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        addresses = {child.stdout.readline().strip() for child in children if child.stdout is not None}
        assert len(addresses) == 1, addresses
        with fluss.connect(tmp_path / "shop") as db:
            assert len(db.t) == 2
    finally:
        for child in children:
            child.kill()
            child.communicate()


def test_the_server_ends_with_a_program_that_is_killed(tmp_path: Path) -> None:
    program = f"""
        import fluss, time
        db = fluss.connect({str(tmp_path / "shop")!r})
        db.create_table("t", "a int").append((1,))
        print(db._core._target.server.pid, flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE) as child:
        server_pid = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        child.wait()
        wait_for(lambda: not _runs(server_pid))
    with fluss.connect(tmp_path / "shop") as db:
        assert db.t.to_pylist() == [{"a": 1}]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A child of a dead parent stays a zombie until it is waited for by its new one.
    return " Z " not in Path(f"/proc/{pid}/stat").read_text() if Path(f"/proc/{pid}/stat").exists() else False


def test_a_database_that_is_dropped_takes_its_server_along(tmp_path: Path) -> None:
    table = fluss.connect(tmp_path / "shop").create_table("t", "a int")
    table.append((1,))
    assert len(table) == 1, "the table keeps the database"
    assert live_addresses(tmp_path / "shop")
    del table
    wait_for(lambda: live_addresses(tmp_path / "shop") == [])


def test_a_forked_child_that_exits_leaves_the_server_alone() -> None:
    program = """
        import fluss, os, sys
        db = fluss.connect()
        table = db.create_table("t", "a int")
        child = os.fork()
        if not child:
            sys.exit(0)  # runs the exit handlers that it has from its parent
        os.waitpid(child, 0)
        assert os.path.isdir(db._core._target.server._temporary)
        db.create_table("u", "a int").append((1,))
        print(len(db.u))
        db.close()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=100)
    assert done.stdout == "1\n", done.stderr


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_worker_processes(tmp_path: Path, method: str) -> None:
    """Objects of the parent fail at once in a forked child; a connection of its own works, by any way to start it."""
    program = tmp_path / "workers.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import multiprocessing, sys
            import fluss

            folder = {str(tmp_path / "shop")!r}
            table = None

            def inherited(call):
                try:
                    return getattr(table, call[0])(*call[1:])
                except fluss.ConnectionClosedError as error:
                    return "fluss.connect" in str(error)

            def own(key):
                with fluss.connect(folder) as db:
                    return db.table("t").get(key)["id"]

            if __name__ == "__main__":
                with fluss.connect(folder) as db:
                    table = db.create_table("t", [{{"id": 1}}, {{"id": 2}}], primary_key="id")
                    assert [table.get(1) for _ in range(300)], "over a socket of the thread"
                    with multiprocessing.get_context({method!r}).Pool(2) as pool:
                        if {method!r} == "fork":
                            calls = [("get", 1), ("upsert", {{"id": 3}}), ("to_pylist",), ("count",)]
                            assert pool.map_async(inherited, calls).get(60) == [True] * 4
                        assert pool.map_async(own, [1, 2]).get(60) == [1, 2]
                    print(table.get(2), table.count())
            """
        )
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "{'id': 2} 2\n", done.stderr


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader(tmp_path: Path, method: str) -> None:
    """As PyTorch's: the parent reads from a dataset, and hands it to daemons that take indices from a queue each."""
    program = tmp_path / "loader.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import multiprocessing, os
            import fluss

            class Rows:
                def __init__(self, folder):
                    self.folder, self.pid = folder, None

                def __getstate__(self):
                    return {{"folder": self.folder, "pid": None}}

                def __getitem__(self, index):
                    if self.pid != os.getpid():
                        self.pid, self.table = os.getpid(), fluss.connect(self.folder).table("t")
                    return self.table.get(index)["v"]

            def work(dataset, indices, done):
                while (batch := indices.get()) is not None:
                    done.put((batch, [dataset[index] for index in batch]))

            if __name__ == "__main__":
                folder = {str(tmp_path / "shop")!r}
                with fluss.connect(folder) as db:
                    db.create_table("t", [{{"id": n, "v": n * n}} for n in range(40)], primary_key="id")
                    dataset = Rows(folder)
                    assert dataset[3] == 9, "the parent has a connection of the dataset, too"
                    context = multiprocessing.get_context({method!r})
                    done, queues = context.Queue(), [context.Queue() for _ in range(2)]
                    workers = [context.Process(target=work, args=(dataset, q, done), daemon=True) for q in queues]
                    for worker in workers:
                        worker.start()
                    for first in range(0, 40, 5):
                        queues[first % 2].put(range(first, first + 5))
                    found = dict(pair for _ in range(8) for pair in zip(*done.get(timeout=60)))
                    for queue, worker in zip(queues, workers):
                        queue.put(None)
                        worker.join(60)
                    assert found == {{n: n * n for n in range(40)}}
                    print(dataset[4], {{worker.exitcode for worker in workers}})
                    dataset.table.database.close()
            """
        )
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "16 {0}\n", done.stderr


def test_an_address_nothing_listens_on_fails_in_time_and_says_what_to_start() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with at_most(6), pytest.raises(fluss.NetworkError) as caught:  # two seconds, and what a busy machine adds
            fluss.connect(f"127.0.0.1:{port}")
    assert f"fluss server --port {port}" in caught.value.message
    assert "fluss.connect('./folder')" in caught.value.message


def test_an_address_that_never_answers_fails_in_time() -> None:
    with silent_address() as address, at_most(20), pytest.raises(fluss.NetworkError, match=r"within 0\.3 s"):
        fluss.connect(address, timeout=0.3)


def test_environment_and_profile(db_server: fluss.LocalServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "profiles.yaml").write_text(
        f"active: here\nprofiles:\n  here:\n    bootstrap_servers: {db_server.bootstrap_servers}\n"
        "  away:\n    bootstrap_servers: 127.0.0.1:1\n"
    )
    with fluss.connect(timeout=30) as db:
        assert db.address == db_server.bootstrap_servers
    monkeypatch.setenv("FLUSS_PROFILE", "away")
    with pytest.raises(fluss.NetworkError, match="profile 'away'"):
        fluss.connect(timeout=0.5)
    monkeypatch.setenv("FLUSS_BOOTSTRAP_SERVERS", db_server.bootstrap_servers)
    with fluss.connect(timeout=30) as db:
        assert db.address == db_server.bootstrap_servers


def test_without_anything_the_folder_is_temporary() -> None:
    with fluss.connect() as db:
        assert db.tables() == []
        folder = db._core._target.server.data_dir  # type: ignore[union-attr]
        assert folder.exists()
    assert not folder.exists()


def test_user_and_password(tmp_path: Path) -> None:
    options = {
        "security.protocol.map": "FLUSS:SASL",
        "security.sasl.enabled.mechanisms": "PLAIN",
        "security.sasl.plain.jaas.config": (
            'org.apache.fluss.security.auth.sasl.plain.PlainLoginModule required user_alice="secret-1";'
        ),
    }
    with fluss.LocalServer(options=options) as server:
        with fluss.connect(server.bootstrap_servers, user="alice", password="secret-1", timeout=30) as db:
            assert db.tables() == []
            assert "secret-1" not in repr(db) + repr(db._core._target) + repr(db.connection)
        with pytest.raises(fluss.AuthenticateError) as caught:
            fluss.connect(server.bootstrap_servers, user="alice", password="secret-2", timeout=30)
        assert "secret-2" not in str(caught.value)
        with pytest.raises(fluss.AuthenticateError, match="asks for a login; connect with user= and password="):
            fluss.connect(server.bootstrap_servers, timeout=30)
        refused = CliRunner().invoke(cli, ["ls", "-b", server.bootstrap_servers])
        assert (refused.exit_code, "asks for a login; add --user NAME" in refused.stderr) == (1, True)


def test_a_login_that_a_server_does_not_ask_for(db_server: fluss.LocalServer) -> None:
    with pytest.raises(fluss.AuthenticateError, match="asks for no login: connect without a user"):
        fluss.connect(db_server.bootstrap_servers, user="alice", password="secret-1", timeout=30)


@pytest.mark.parametrize("target", [7, b"x", "http://host:1/x", "", " ", ":memory:", "host:912x", "host:", "9123"])
def test_what_is_neither_folder_nor_address(target: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(fluss.InvalidArgumentError, match=r"such as '\./shop'"):
        fluss.connect(target)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir()), "no folder is made of it"


def test_a_folder_with_a_colon_in_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fluss.connect("./a:b").close()
    fluss.connect("a:b").close()
    assert [path.name for path in tmp_path.iterdir()] == ["a:b"]


def test_options_for_a_server_that_runs_with_others(tmp_path: Path) -> None:
    options = {"log.segment.file-size": "64mb"}
    with fluss.connect(tmp_path, server=options):
        fluss.connect(tmp_path, server=options).close()
        fluss.connect(tmp_path).close()
        with pytest.warns(UserWarning, match="runs already, with other options: server= has no effect"):
            fluss.connect(tmp_path, server={"log.segment.file-size": "32mb"}).close()


def test_objects_of_a_connection_stay_in_their_process(db_server: fluss.LocalServer, db: fluss.Database) -> None:
    table = db.create_table("t", "id int")
    address = re.escape(repr(db_server.bootstrap_servers))
    with pytest.raises(TypeError, match=rf"fluss\.connect\({address}\)\.table\('fluss\.t'\)"):
        pickle.dumps(table)
    with pytest.raises(TypeError, match=rf"fluss\.connect\({address}\)"):
        copy.deepcopy(db)


def test_options_of_the_client(db_server: fluss.LocalServer) -> None:
    with fluss.connect(db_server.bootstrap_servers, timeout=30, options={"writer.acks": "all"}) as db:
        assert db.connection.config.writer_acks == "all"
    with pytest.raises(fluss.ConfigError, match=r"unknown option 'writer\.ack'; did you mean 'writer\.acks'"):
        fluss.connect(db_server.bootstrap_servers, options={"writer.ack": "all"})


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(fluss.InvalidArgumentError, match="it is a file"):
        fluss.connect(tmp_path / "x")


def test_a_closed_database_says_so(tmp_path: Path) -> None:
    db = fluss.connect(tmp_path / "shop")
    table = db.create_table("t", "a int")
    db.close()
    db.close()
    with pytest.raises(fluss.ConnectionClosedError):
        table.append((1,))


def test_the_full_client_is_there(db_server: fluss.LocalServer) -> None:
    with fluss.connect(db_server.bootstrap_servers, timeout=30) as db:
        assert isinstance(db.connection, fluss.FlussConnection)
        assert not db.connection.closed
    assert db.connection.closed


def test_a_folder_whose_catalog_cannot_be_read(tmp_path: Path) -> None:
    with fluss.connect(tmp_path) as db:
        db.create_table("orders", "id bigint", primary_key="id").upsert({"id": 7})
    [document] = tmp_path.glob("catalog/tables/*/table.doc")
    saved = document.read_bytes()
    document.write_bytes(b"")
    with pytest.warns(UserWarning, match=r"damaged catalog document.*table\.doc"):
        db = fluss.connect(tmp_path)
    with db:
        assert db.tables() == ["orders"]
        with pytest.raises(fluss.FlussError, match=r"out of service.*table\.doc"):
            db.create_table("orders", "id bigint", primary_key="id", exist_ok=True)
    document.write_bytes(saved)
    with fluss.connect(tmp_path) as db:
        assert db.table("orders").get(7) == {"id": 7}


def test_a_folder_with_other_files_does_not_become_a_database(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(fluss.ConfigError, match=r"has other files, such as 'letter\.txt'"):
        fluss.connect(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    with fluss.connect(tmp_path / "shop") as db:
        db.create_table("t", "id int")
    (tmp_path / "shop" / "letter.txt").write_text("dear")
    with fluss.connect(tmp_path / "shop") as db:
        assert db.tables() == ["t"]


def test_temporary_data_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setattr(targets, "DEFAULT_SERVER", f"127.0.0.1:{free_port()}")
    with fluss.connect():
        assert re.fullmatch(r"fluss: temporary data.*fluss\.connect\('\./shop'\)\n", capfd.readouterr().err)
    with fluss.LocalServer() as server:
        monkeypatch.setattr(targets, "DEFAULT_SERVER", server.bootstrap_servers)
        with fluss.connect() as db:
            assert db.address != server.bootstrap_servers, "its data is not changed by accident"
            assert f"fluss.connect('{server.bootstrap_servers}')" in capfd.readouterr().err
        with fluss.connect(tmp_path / "shop"):
            assert capfd.readouterr().err == ""


def test_a_program_that_joined_takes_over(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    program = f"""
        import fluss
        db = fluss.connect({str(folder)!r})
        db.create_table("t", [{{"id": 1}}], primary_key="id")
        print("ready", flush=True)
        input()
        db.close()
    """
    first = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout.readline() == "ready\n"
    with fluss.connect(folder) as db:
        address, table = db.address, db.table("t")
        assert table.get(1) == {"id": 1}
        first.communicate("\n", timeout=60)
        with at_most(30):  # without a server, writes fail after two minutes
            table.upsert({"id": 2})
        assert sorted(row["id"] for row in table.to_pylist()) == [1, 2]
        assert live_addresses(folder) == [address]
    assert live_addresses(folder) == [], "it ends with the program that took over"
    with fluss.connect(folder) as db:
        assert db.table("t").count() == 2


def test_a_server_with_options_is_not_taken_over(tmp_path: Path) -> None:
    """Another program does not know them: they may ask for a login."""
    with fluss.LocalServer(tmp_path, options={"default.bucket.number": 2}), fluss.connect(tmp_path) as db:
        assert db._core._target.successor is None


def test_read_only(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    with pytest.raises(fluss.InvalidArgumentError, match="no database in"):
        fluss.connect(folder, read_only=True)
    assert not folder.exists()
    with fluss.connect(folder) as db:
        db.create_table("t", [{"id": 1, "v": 2}], primary_key="id")
        db.create_table("log", [{"id": 1}])
    with fluss.connect(folder, read_only=True) as db:
        table = db.table("t")
        assert table.get(1) == {"id": 1, "v": 2}
        assert table.to_pylist() == [row.row for row in table.follow(stop_at_end=True)]
        assert (table.count(), db.log.count()) == (1, 1)
        for change in (
            lambda: table.upsert({"id": 2, "v": 3}),
            lambda: table.update(1, v=3),
            lambda: table.delete(1),
            lambda: table.add_column("w", "int"),
            lambda: db.log.append({"id": 2}),
            lambda: db.create_table("u", "id int"),
            lambda: db.create_database("d"),
            lambda: db.drop_table("t"),
            lambda: next(table.follow(group="g", timeout=5)),
        ):
            with pytest.raises(fluss.InvalidArgumentError, match="read-only"):
                change()
        assert (db.tables(), table.to_pylist()) == (["log", "t"], [{"id": 1, "v": 2}])


def test_workers_that_fork_after_the_program_was_loaded(tmp_path: Path) -> None:
    """As web servers do that load an application once: workers share a socket, each with a connection of its own."""
    program = f"""
        import functools, os, socket
        import fluss

        folder = {str(tmp_path / "shop")!r}
        database = functools.lru_cache(lambda pid: fluss.connect(folder))
        table = lambda: database(os.getpid()).table("t")

        database(os.getpid()).create_table("t", "worker int, request int", primary_key="worker,request")
        inherited = table()
        listener = socket.create_server(("127.0.0.1", 0))
        workers = []
        for worker in range(3):
            if (pid := os.fork()) == 0:
                for request in range(5):
                    with listener.accept()[0] as client:
                        table().upsert({{"worker": worker, "request": request}})
                        try:
                            inherited.count()
                        except fluss.ConnectionClosedError as error:
                            client.sendall(str(table().count(f"worker = {{worker}}") - request).encode())
                database(os.getpid()).close()
                os._exit(0)
            workers.append(pid)
        answers = set()
        for _ in range(15):
            with socket.create_connection(listener.getsockname()) as client:
                answers.add(client.recv(100))
        codes = {{os.waitpid(pid, 0)[1] for pid in workers}}
        print(answers, codes, table().count())
        database(os.getpid()).close()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "{b'1'} {0} 15\n", done.stderr


def test_a_program_may_connect_while_it_ends() -> None:
    """In a thread that goes on, and in what runs at the exit."""
    program = """
        import atexit, sys, threading, fluss

        def work():
            with fluss.connect(sys.argv[1]) as db:
                print(db.databases())

        def later():
            threading.main_thread().join()
            work()

        work()
        atexit.register(work)
        threading.Thread(target=later).start()
    """
    with fluss.LocalServer() as server:
        command = [sys.executable, "-c", textwrap.dedent(program), server.bootstrap_servers]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.stdout.splitlines(), done.stderr) == (["['fluss']"] * 3, "")
