# SPDX-License-Identifier: Apache-2.0
"""Access rules: who may what, and the three ACL calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.catalog.support import (
    Harness,
    alter,
    create,
    create_partition,
    log_table,
    partitioned_table,
    path,
    pk_table,
    spec,
)

from fluss.errors import AuthorizationError, ConfigError
from fluss.metadata import TablePath
from fluss.protocol import fluss_pb2 as pb
from fluss.server.catalog.acl import AclFilter, Operation, Resource, ResourceType
from fluss.server.handlers import acl, admin, cluster, lake

CLUSTER, DATABASE, TABLE = 2, 3, 4
READ, WRITE, CREATE, DROP, ALTER, DESCRIBE, ALL = 3, 4, 5, 6, 7, 8, 2
OPTIONS = {
    "authorizer.enabled": "true",
    "super.users": "User:root; User:admin",
    "bind.listeners": "FLUSS://127.0.0.1:0,CLIENT://127.0.0.1:0",
}
ROOT = {"user": "root", "listener": "CLIENT"}
BOB = {"user": "bob", "listener": "CLIENT"}


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    harness = Harness(tmp_path, OPTIONS)
    yield harness
    harness.close()


def rule(
    operation: int,
    resource: str = "fluss.t",
    kind: int = TABLE,
    user: str = "bob",
    user_type: str = "User",
    host: str = "*",
    permission: int = 2,
) -> pb.PbAclInfo:
    return pb.PbAclInfo(
        resource_name=resource,
        resource_type=kind,
        principal_name=user,
        principal_type=user_type,
        host=host,
        operation_type=operation,
        permission_type=permission,
    )


def grant(harness: Harness, *rules: pb.PbAclInfo) -> None:
    answer = harness.call(acl.create_acls, pb.CreateAclsRequest(acl=rules), **ROOT)
    assert [result.acl for result in answer.aclRes] == list(rules)
    assert not any(result.HasField("error_code") for result in answer.aclRes)


def any_filter(**fields: Any) -> pb.PbAclFilter:
    return pb.PbAclFilter(**{"resource_type": 1, "operation_type": 1, "permission_type": 1, **fields})


def allowed(harness: Harness, operation: Operation, resource: Any, **who: str) -> bool:
    session = harness.context(**{**BOB, **who}).session
    return harness.catalog.authorizer.allows(session, operation, resource)


T = TablePath("fluss", "t")


def test_without_an_authorizer_the_calls_are_refused(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.fails(47, acl.create_acls, pb.CreateAclsRequest(acl=[rule(READ)]), "No authorizer")
    harness.fails(47, acl.list_acls, pb.ListAclsRequest(acl_filter=any_filter()))
    harness.fails(47, acl.drop_acls, pb.DropAclsRequest(acl_filter=[any_filter()]))
    assert harness.catalog.authorizer.allows(harness.context().session, Operation.ALL, Resource.cluster())
    harness.close()


def test_nobody_may_anything_by_default(harness: Harness) -> None:
    for operation in Operation:
        assert not allowed(harness, operation, T)
    assert allowed(harness, Operation.ALL, T, user="root")
    assert allowed(harness, Operation.ALL, T, user="admin")
    assert allowed(harness, Operation.ALL, T, listener="FLUSS")
    with pytest.raises(AuthorizationError, match=r"User:bob.*WRITE.*TABLE fluss\.t"):
        harness.catalog.authorizer.require(harness.context(**BOB).session, Operation.WRITE, T)


@pytest.mark.parametrize("operation", [READ, WRITE, CREATE, DROP, ALTER])
def test_every_right_includes_looking(harness: Harness, operation: int) -> None:
    grant(harness, rule(operation))
    assert {op for op in (3, 4, 5, 6, 7, 8) if allowed(harness, Operation(op), T)} == {operation, DESCRIBE}


def test_describe_includes_nothing_and_all_everything(harness: Harness) -> None:
    grant(harness, rule(DESCRIBE))
    assert [op for op in (3, 4, 5, 6, 7) if allowed(harness, Operation(op), T)] == []
    grant(harness, rule(ALL))
    assert all(allowed(harness, Operation(op), T) for op in (2, 3, 4, 5, 6, 7, 8))


@pytest.mark.parametrize(
    ("given", "covered"),
    [
        (rule(READ, "fluss-cluster", CLUSTER), {"cluster", "fluss", "fluss.t", "d", "d.x"}),
        (rule(READ, "fluss", DATABASE), {"fluss", "fluss.t"}),
        (rule(READ, "*", DATABASE), {"fluss", "fluss.t", "d", "d.x"}),
        (rule(READ, "fluss.t", TABLE), {"fluss.t"}),
        (rule(READ, "*", TABLE), {"fluss.t", "d.x"}),
    ],
)
def test_what_contains_a_resource_covers_it(harness: Harness, given: pb.PbAclInfo, covered: set[str]) -> None:
    grant(harness, given)
    resources: dict[str, Any] = {
        "cluster": Resource.cluster(),
        "fluss": "fluss",
        "d": "d",
        "fluss.t": T,
        "d.x": TablePath("d", "x"),
    }
    assert {name for name, res in resources.items() if allowed(harness, Operation.READ, res)} == covered


def test_wildcard_principals_and_hosts(harness: Harness) -> None:
    grant(harness, rule(READ, user="*", user_type="*"))
    assert allowed(harness, Operation.READ, T, user="anyone")
    grant(harness, rule(WRITE, user="*"))  # the name alone is a name
    assert not allowed(harness, Operation.WRITE, T, user="anyone")
    grant(harness, rule(DROP, host="10.0.0.1"))
    assert allowed(harness, Operation.DROP, T, host="10.0.0.1")
    assert not allowed(harness, Operation.DROP, T, host="10.0.0.2")


def test_case_of_principals(tmp_path: Path) -> None:
    harness = Harness(tmp_path, {**OPTIONS, "security.acl.principal.ignore-case": "true"})
    grant(harness, rule(READ, user="Bob"))
    assert allowed(harness, Operation.READ, T, user="BOB")
    assert allowed(harness, Operation.ALL, T, user="ROOT")
    harness.options["security.acl.principal.ignore-case"] = "false"
    harness.reopen()
    assert not allowed(harness, Operation.READ, T, user="BOB")
    assert not allowed(harness, Operation.ALL, T, user="ROOT")
    harness.close()


def test_rules_survive_a_restart_and_are_listed(harness: Harness) -> None:
    rules = [rule(READ), rule(WRITE, "d", DATABASE, user="eve"), rule(ALL, "fluss-cluster", CLUSTER, host="10.0.0.1")]
    grant(harness, *rules)
    grant(harness, rules[0])
    harness.reopen()

    def listed(who: dict[str, str] = ROOT, **fields: Any) -> list[pb.PbAclInfo]:
        request = pb.ListAclsRequest(acl_filter=any_filter(**fields))
        return list(harness.call(acl.list_acls, request, **who).acl)

    assert listed() == rules
    assert listed(resource_type=TABLE) == rules[:1]
    assert listed(resource_name="d") == rules[1:2]
    assert listed(principal_name="bob", principal_type="User") == [rules[0], rules[2]]
    assert listed(host="10.0.0.1") == rules[2:]
    assert listed(operation_type=WRITE) == rules[1:2]
    assert listed(permission_type=2) == rules
    # Others see the rules of what they may look at: bob may read his table.
    assert listed(BOB) == rules[:1]
    assert listed({"user": "nobody", "listener": "CLIENT"}) == []
    harness.fails(-1, acl.list_acls, pb.ListAclsRequest(acl_filter=any_filter(operation_type=77)), **ROOT)


def test_drop_acls(harness: Harness) -> None:
    rules = [rule(READ), rule(WRITE), rule(READ, user="eve")]
    grant(harness, *rules)
    request = pb.DropAclsRequest(
        acl_filter=[any_filter(principal_name="bob", operation_type=READ), any_filter(), any_filter(resource_type=9)]
    )
    answer = harness.call(acl.drop_acls, request, **ROOT)
    matched = [[item.acl for item in result.matching_acls] for result in answer.filter_results]
    assert matched == [[rules[0]], [rules[1], rules[2]], []]
    assert [result.HasField("error_code") for result in answer.filter_results] == [False, False, True]
    assert answer.filter_results[2].error_code == -1
    assert not allowed(harness, Operation.READ, T)
    harness.reopen()
    assert harness.catalog.acls.all() == []


def test_who_may_change_rules(harness: Harness) -> None:
    request = pb.CreateAclsRequest(acl=[rule(READ, user="eve")])
    grant(harness, rule(ALTER, "fluss", DATABASE), rule(ALL, "fluss.t", TABLE))
    # For a table the database decides, and it takes ALL.
    harness.fails(48, acl.create_acls, request, "User:bob", "ALL", "DATABASE fluss", **BOB)
    harness.fails(48, acl.drop_acls, pb.DropAclsRequest(acl_filter=[any_filter()]), **BOB)
    assert len(harness.catalog.acls.all()) == 2
    grant(harness, rule(ALL, "fluss", DATABASE))
    harness.call(acl.create_acls, request, **BOB)
    assert allowed(harness, Operation.READ, T, user="eve")


@pytest.mark.parametrize(
    "bad",
    [
        rule(1),
        rule(READ, kind=1),
        rule(READ, permission=1),
        rule(99),
        rule(READ, ""),
        rule(READ, user=""),
        rule(READ, "fluss", TABLE),
        rule(READ, "mine", CLUSTER),
    ],
    ids=["any op", "any type", "any permission", "unknown op", "no name", "no user", "no table", "cluster"],
)
def test_bad_rules_fail_alone(harness: Harness, bad: pb.PbAclInfo) -> None:
    answer = harness.call(acl.create_acls, pb.CreateAclsRequest(acl=[bad, rule(READ)]), **ROOT)
    assert [result.error_code for result in answer.aclRes] == [-1, 0]
    assert answer.aclRes[0].error_message
    assert len(harness.catalog.acls.all()) == 1


def test_super_users_must_be_readable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"super\.users"):
        Harness(tmp_path, {**OPTIONS, "super.users": "root"})


def test_filter_defaults_match_everything() -> None:
    assert AclFilter().resource_type is ResourceType.ANY


# ---------------------------------------------------------------------- what each call needs


def drop_partition() -> pb.DropPartitionRequest:
    return pb.DropPartitionRequest(table_path=path("p"), partition_spec=spec(dt="x"), ignore_if_not_exists=True)


NEEDS: dict[str, tuple[Any, Any, pb.PbAclInfo]] = {
    "create database": (
        admin.create_database,
        pb.CreateDatabaseRequest(database_name="new", ignore_if_exists=False),
        rule(CREATE, "fluss-cluster", CLUSTER),
    ),
    "drop database": (
        admin.drop_database,
        pb.DropDatabaseRequest(database_name="d", ignore_if_not_exists=False, cascade=True),
        rule(DROP, "d", DATABASE),
    ),
    "alter database": (
        admin.alter_database,
        pb.AlterDatabaseRequest(database_name="d", ignore_if_not_exists=False, comment="c"),
        rule(ALTER, "d", DATABASE),
    ),
    "database info": (
        admin.get_database_info,
        pb.GetDatabaseInfoRequest(database_name="d"),
        rule(DESCRIBE, "d", DATABASE),
    ),
    "create table": (admin.create_table, create(log_table(), "new"), rule(CREATE, "fluss", DATABASE)),
    "drop table": (
        admin.drop_table,
        pb.DropTableRequest(table_path=path(), ignore_if_not_exists=False),
        rule(DROP),
    ),
    "alter table": (admin.alter_table, alter({"k": "v"}), rule(ALTER)),
    "table info": (admin.get_table_info, pb.GetTableInfoRequest(table_path=path()), rule(DESCRIBE)),
    "table schema": (admin.get_table_schema, pb.GetTableSchemaRequest(table_path=path()), rule(DESCRIBE)),
    "list partitions": (
        admin.list_partition_infos,
        pb.ListPartitionInfosRequest(table_path=path("p")),
        rule(DESCRIBE, "fluss.p"),
    ),
    "create partition": (admin.create_partition, create_partition("p", dt="y"), rule(WRITE, "fluss.p")),
    "drop partition": (admin.drop_partition, drop_partition(), rule(WRITE, "fluss.p")),
    "kv snapshots": (
        cluster.get_latest_kv_snapshots,
        pb.GetLatestKvSnapshotsRequest(table_path=path("pk")),
        rule(DESCRIBE, "fluss.pk"),
    ),
    "describe configs": (
        cluster.describe_cluster_configs,
        pb.DescribeClusterConfigsRequest(),
        rule(DESCRIBE, "fluss-cluster", CLUSTER),
    ),
    "alter configs": (
        cluster.alter_cluster_configs,
        pb.AlterClusterConfigsRequest(),
        rule(ALTER, "fluss-cluster", CLUSTER),
    ),
    "add tag": (
        cluster.add_server_tag,
        pb.AddServerTagRequest(server_ids=[0], server_tag=1),
        rule(ALTER, "fluss-cluster", CLUSTER),
    ),
    "remove tag": (
        cluster.remove_server_tag,
        pb.RemoveServerTagRequest(server_ids=[0], server_tag=1),
        rule(ALTER, "fluss-cluster", CLUSTER),
    ),
    "rebalance": (cluster.rebalance, pb.RebalanceRequest(goals=[0]), rule(WRITE, "fluss-cluster", CLUSTER)),
    "register offsets": (
        cluster.register_producer_offsets,
        pb.RegisterProducerOffsetsRequest(
            producer_id="p", table_offsets=[pb.PbProducerTableOffsets(table_id=0, bucket_offsets=[])]
        ),
        rule(WRITE),
    ),
    "lease": (
        cluster.acquire_kv_snapshot_lease,
        pb.AcquireKvSnapshotLeaseRequest(
            lease_id="l", lease_duration_ms=1, snapshots_to_lease=[pb.PbKvSnapshotLeaseForTable(table_id=0)]
        ),
        rule(READ),
    ),
}


def prepare(harness: Harness) -> None:
    harness.call(admin.create_table, create(log_table()))
    harness.call(admin.create_table, create(pk_table(), "pk"))
    harness.call(admin.create_table, create(partitioned_table(), "p"))
    harness.call(admin.create_database, pb.CreateDatabaseRequest(database_name="d", ignore_if_exists=False))


@pytest.mark.parametrize(("handler", "request_", "needed"), NEEDS.values(), ids=NEEDS.keys())
def test_each_call_needs_its_right(harness: Harness, handler: Any, request_: Any, needed: pb.PbAclInfo) -> None:
    prepare(harness)
    harness.fails(48, handler, request_, "User:bob", **BOB)
    others = [op for op in (READ, WRITE, CREATE, DROP, ALTER) if op != needed.operation_type]
    if needed.operation_type != DESCRIBE:
        grant(harness, *(rule(op, needed.resource_name, needed.resource_type) for op in others))
        harness.fails(48, handler, request_, **BOB)
    grant(harness, needed)
    harness.call(handler, request_, **BOB)


def test_lists_and_existence_are_filtered(harness: Harness) -> None:
    prepare(harness)
    grant(harness, rule(READ, "fluss.pk"), rule(DESCRIBE, "d", DATABASE))

    def tables() -> list[str]:
        return list(harness.call(admin.list_tables, pb.ListTablesRequest(database_name="fluss"), **BOB).table_name)

    assert tables() == ["pk"]
    assert list(harness.call(admin.list_databases, pb.ListDatabasesRequest(), **BOB).database_name) == ["d"]
    summaries = harness.call(admin.list_databases, pb.ListDatabasesRequest(include_summary=True), **BOB)
    assert [summary.database_name for summary in summaries.database_summary] == ["d"]

    def exists(table: str) -> bool:
        return bool(harness.call(admin.table_exists, pb.TableExistsRequest(table_path=path(table)), **BOB).exists)

    assert (exists("pk"), exists("t")) == (True, False)

    def database_exists(name: str) -> bool:
        request = pb.DatabaseExistsRequest(database_name=name)
        return bool(harness.call(admin.database_exists, request, user="eve", listener="CLIENT").exists)

    assert (database_exists("d"), database_exists("fluss")) == (False, True)


def test_calls_that_need_nothing(harness: Harness) -> None:
    harness.call(cluster.get_filesystem_security_token, pb.GetFileSystemSecurityTokenRequest(), **BOB)
    harness.call(lake.lake_tiering_heartbeat, pb.LakeTieringHeartbeatRequest(), **BOB)


def test_unknown_ids_are_code_21_when_rights_are_checked(harness: Harness) -> None:
    request = pb.RegisterProducerOffsetsRequest(
        producer_id="p", table_offsets=[pb.PbProducerTableOffsets(table_id=99, bucket_offsets=[])]
    )
    harness.fails(21, cluster.register_producer_offsets, request, **BOB)


def test_producer_offsets_are_filtered_by_read(harness: Harness) -> None:
    prepare(harness)
    request = pb.RegisterProducerOffsetsRequest(producer_id="p")
    for table_id in (0, 1):
        request.table_offsets.add(table_id=table_id).bucket_offsets.add(bucket_id=0, log_end_offset=5)
    harness.call(cluster.register_producer_offsets, request, **ROOT)
    grant(harness, rule(READ, "fluss.pk"))
    answer = harness.call(cluster.get_producer_offsets, pb.GetProducerOffsetsRequest(producer_id="p"), **BOB)
    assert [table.table_id for table in answer.table_offsets] == [1]
    delete = pb.DeleteProducerOffsetsRequest(producer_id="p")
    harness.fails(48, cluster.delete_producer_offsets, delete, **BOB)
    harness.call(cluster.delete_producer_offsets, delete, **ROOT)
