# SPDX-License-Identifier: Apache-2.0
"""The drift check finds what a later release of Apache Fluss adds or changes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.interop import drift

PROTO = """
message PbTablePath { required string database_name = 1; required string table_name = 9; /* optional int32 no = 3; */ }
message PbLater { optional int32 x = 1; }
message GetTableInfoRequest { required PbTablePath table_path = 1; repeated PbLater later = 7; }
message StopReplicaRequest { required PbInner inner = 1; }
message PbInner { required int32 y = 1; }
"""
RELEASED = """
message PbTablePath { optional unknown database_name = 1; optional unknown table_name = 9; }
message CreateAclsResponse { optional unknown acl_res = 1; }
"""
APIS = """
    GET_TABLE_INFO(1007, 0, 0, PUBLIC), PUT_KV(1016, 0, 9, PUBLIC), // OLD_ONE(1, 0, 0, PUBLIC)
    STOP_REPLICA(1019, 0, 0, PRIVATE), SHINY_THING(1999, 0, 0, PUBLIC);
"""
STUB = """
class TablePath:
    table_name: str
    def shine(self) -> None: ...
class Shiny: ...
"""


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            drift.compare_messages(PROTO, ["StopReplica"]),
            [
                "field GetTableInfoRequest.later: repeated PbLater 7",
                "message PbLater",
                "field PbTablePath.table_name: required string 9, here required string 2",
            ],
        ),
        (
            drift.compare_apis(APIS),
            [
                "API PUT_KV (1016, versions 0 to 9): here PUT_KV, 0 to 3",
                "API SHINY_THING (1999, versions 0 to 0)",
            ],
        ),
        (drift.compare_messages(RELEASED, []), ["field PbTablePath.tablename: 9, here 2"]),
        (drift.compare_errors('NONE(0, null), SHINY(\n  999, "x")'), ["error SHINY (999)"]),
        (drift.compare_options('key("table.log.ttl") key(\n "table.shiny")'), ["option table.shiny"]),
        (drift.compare_metrics('String A = "tableCount"; String B = "shinyPerSecond";'), ["metric shinyPerSecond"]),
        (drift.compare_binding(STUB), ["name TablePath.shine", "class Shiny"]),
    ],
    ids=["messages", "apis", "messages of a release", "errors", "options", "metrics", "binding"],
)
def test_drift_is_found(found: list[str], expected: list[str]) -> None:
    assert found == expected


def test_only_the_explained_is_passed_over() -> None:
    assert drift.explained("metric replicationBytesInPerSecond")
    assert not drift.explained("metric shinyPerSecond")
    assert not drift.explained("option replication.x")
