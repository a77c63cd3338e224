# SPDX-License-Identifier: Apache-2.0
"""What operators read in the log, and what never stands there."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.server.catalog.support import drop_table
from tests.server.log_support import connected, running_server
from tests.server.test_handlers_acl import rule
from tests.server.test_handlers_cluster import change as changes_of
from tests.server.test_session import RawClient

from fluss.errors import AuthenticateError, FlussError
from fluss.metadata import DataTypes, Schema, TableDescriptor
from fluss.metadata.acl import OperationType, Resource
from fluss.metadata.info import AlterConfigOp
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials
from fluss.server.audit import AUDITED, LINES_MAX, REPEAT_SECONDS, AuditLog, printable
from fluss.server.auth import Principal
from fluss.server.datadir import CLEAN_NAME
from fluss.server.runner import JsonFormatter

OPTIONS = {
    "bind_listeners": "FLUSS://127.0.0.1:0,CLIENT://127.0.0.1:0",
    "security_protocol_map": "CLIENT:sasl",
    "authorizer_enabled": "true",
    "super_users": "User:root",
    "datalake_format": "paimon",
}
PLACES = ("jaas", "credentials", "lake", "uri", "guess", "altered", "property")
SECRETS = {place: f"{place}-pa55word" for place in PLACES}
BOB: Any = SimpleNamespace(principal=Principal("bob"), host="10.0.0.1", listener="CLIENT")
TABLE = Resource.database("d")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lines(caplog: pytest.LogCaptureFixture, logger: str = "fluss.audit") -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == logger]


def test_a_repeated_refusal_is_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = AuditLog(clock)
    for _ in range(1000):
        log.denied(BOB, OperationType.READ, TABLE)
    log.denied(BOB, OperationType.WRITE, TABLE)
    assert len(lines(caplog)) == 2
    clock.now = REPEAT_SECONDS
    log.denied(BOB, OperationType.READ, TABLE)
    assert lines(caplog)[2].endswith("(999 more in the meantime)")
    assert "User:bob from 10.0.0.1 has no right to READ on DATABASE d" in lines(caplog)[0]


def test_many_logins_leave_room_for_refusals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fluss.audit")
    clock = Clock()
    log = AuditLog(clock)
    for number in range(2 * LINES_MAX):
        caller: Any = SimpleNamespace(principal=Principal(f"user-{number}"), host="10.0.0.1", listener="CLIENT")
        log.logged_in(caller, "PLAIN")
    assert len(lines(caplog)) == LINES_MAX + 1
    assert lines(caplog)[-1].startswith(f"more than {LINES_MAX} logins in 60 s")
    log.denied(BOB, OperationType.READ, TABLE)
    assert lines(caplog)[-1].startswith("denied: User:bob")
    clock.now = REPEAT_SECONDS
    for _ in range(3):
        log.logged_in(BOB, "SCRAM-SHA-256")
    assert lines(caplog)[-1] == "login: User:bob from 10.0.0.1 on listener CLIENT by SCRAM-SHA-256"


def test_many_different_refusals_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    log = AuditLog(clock)
    for number in range(5 * LINES_MAX):
        log.login_failed(f"10.0.0.1:{number}", "CLIENT", f"user-{number}", "wrong")
    assert len(lines(caplog)) == LINES_MAX + 1
    assert "further ones are left out" in lines(caplog)[-1]
    clock.now = REPEAT_SECONDS
    log.login_failed("10.0.0.1:1", "CLIENT", "someone", "wrong")
    assert "as user 'someone' from 10.0.0.1:1 on listener CLIENT: wrong" in lines(caplog)[-1]


def test_a_client_cannot_write_lines_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    log = AuditLog()
    log.login_failed("10.0.0.1:1", "CLIENT", "x\n2026-01-01 INFO fluss.audit: User:root", "no\r\nreason")
    log.changed(BOB, "DROP_TABLE", "a\x1b[2Jb")
    assert all(line.isprintable() for line in lines(caplog))
    assert len(printable("x" * 10_000)) < 300


def test_every_change_of_a_table_or_database_is_named() -> None:
    table = pb.AlterTableRequest(table_path=pb.PbTablePath(database_name="d", table_name="t"))
    table.modify_bucket_count.new_bucket_count = 8
    assert AUDITED[apis.ALTER_TABLE.key](table, None) == "d.t: BUCKETS 8"
    database = pb.AlterDatabaseRequest(database_name="d", comment="c", ignore_if_not_exists=False)
    assert AUDITED[apis.ALTER_DATABASE.key](database, None) == "d: COMMENT"


def audited_table(properties: dict[str, str]) -> TableDescriptor:
    schema = Schema.builder().column("id", DataTypes.int()).build()
    return TableDescriptor(schema, custom_properties=properties)


async def test_the_log_of_a_server_holds_events_and_no_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Secrets in every place that takes one, at the most talkative level."""
    caplog.set_level(logging.DEBUG, "fluss")
    options = {
        **OPTIONS,
        "security_sasl_plain_jaas_config": f'M required user_root="{SECRETS["jaas"]}";',
        "security_sasl_plain_credentials": f"bob:{SECRETS['credentials']}",
        "datalake_paimon_header_Authorization": SECRETS["lake"],
        "datalake_paimon_uri": f"postgresql://u:{SECRETS['uri']}@127.0.0.1/x",
    }
    path = pb.PbTablePath(database_name="d", table_name="t")

    async with running_server(tmp_path, **options) as server:
        root = Credentials("root", SECRETS["jaas"])
        async with connected(server, "CLIENT", credentials=root) as client:
            await client.send(pb.CreateDatabaseRequest(database_name="d", ignore_if_exists=False))
            await client.create(audited_table({"note": SECRETS["property"]}), "t", "d")
            change = pb.PbAlterConfig(config_key="pin", config_value=SECRETS["property"], op_type=0)
            await client.send(
                pb.AlterTableRequest(table_path=path, ignore_if_not_exists=False, config_changes=[change])
            )
            for key, value in (
                ("datalake.paimon.adls.sas", SECRETS["altered"]),
                ("security.sasl.plain.credentials", f"bob:{SECRETS['credentials']},eve:{SECRETS['altered']}"),
            ):
                await client.send(changes_of((key, value, AlterConfigOp.SET)))
            with pytest.raises(FlussError) as refused:
                await client.send(
                    changes_of(("security.sasl.plain.credentials", SECRETS["altered"], AlterConfigOp.SET))
                )
            assert SECRETS["altered"] not in str(refused.value)
            await client.send(pb.CreateAclsRequest(acl=[rule(OperationType.DESCRIBE, "d.t")]))
        async with connected(server, "CLIENT", credentials=Credentials("bob", SECRETS["credentials"])) as client:
            for _ in range(3):
                with pytest.raises(FlussError):
                    await client.send(drop_table("t", "d"))
        for user, mechanism in (("bob", "PLAIN"), ("bob", "PLAIN"), ("mallory", "SCRAM-SHA-256")):
            with pytest.raises(AuthenticateError):
                async with connected(server, "CLIENT", credentials=Credentials(user, SECRETS["guess"], mechanism)):
                    pass
        raw = await RawClient.open(server, "CLIENT")
        await raw.request(apis.GET_METADATA.key)
        await raw.error()
        await raw.close()
        shown = [repr(server.config), repr(server.catalog.configs.current), *map(repr, server.sessions)]
        assert not [secret for secret in SECRETS.values() if secret in str(shown)]
    told = lines(caplog)
    assert [line.split(": ", 1)[1] for line in told if line.startswith("User:root")] == [
        "CREATE_DATABASE d",
        "CREATE_TABLE d.t",
        "ALTER_TABLE d.t: SET pin",
        "ALTER_CLUSTER_CONFIGS SET datalake.paimon.adls.sas",
        "ALTER_CLUSTER_CONFIGS SET security.sasl.plain.credentials",
        "CREATE_ACLS DESCRIBE on TABLE d.t for User:bob from *",
    ]
    assert [line for line in told if line.startswith("denied")] == [
        "denied: User:bob from 127.0.0.1 has no right to DROP on TABLE d.t"
    ]
    logins = [line for line in told if line.startswith("login:")]
    assert logins[0] == "login: User:root from 127.0.0.1 on listener CLIENT by PLAIN"
    assert len(logins) == len(set(logins)), "further connections of a user are counted, not written"
    failed = [line for line in told if line.startswith("login failed")]
    assert len(failed) == 3
    assert "as user 'bob' from 127.0.0.1:" in failed[0]
    assert "as user 'mallory' from 127.0.0.1:" in failed[1]
    assert "GET_METADATA before a login" in failed[2]
    [start] = [line for line in lines(caplog, "fluss.server") if "started in" in line]
    for part in (str(tmp_path), "FLUSS://127.0.0.1:", "internal", "CLIENT://127.0.0.1:", "SASL", "authorizer on"):
        assert part in start
    assert (
        "settings of the lake that are not shown to readers: datalake.paimon.header.Authorization, datalake.paimon.uri"
        in lines(caplog, "fluss.server")
    )
    text = "\n".join(JsonFormatter().format(record) for record in caplog.records) + caplog.text
    for secret in SECRETS.values():
        assert secret not in text
    assert all(json.loads(JsonFormatter().format(record)) for record in caplog.records)


async def test_recovery_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fluss")

    async with running_server(tmp_path) as server, connected(server) as client:
        await client.create_table()
    (tmp_path / CLEAN_NAME).unlink()
    async with running_server(tmp_path) as server:
        assert server.catalog.tables_by_id
    assert any("not closed cleanly; recovering" in line for line in lines(caplog, "fluss.server"))
    assert any("1 tables" in line for line in lines(caplog, "fluss.server"))
    assert any("closed cleanly" in line for line in lines(caplog, "fluss.server") if line.startswith("stopped"))
