# SPDX-License-Identifier: Apache-2.0
"""Access rules: who may what, and the three ACL calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.server.catalog.support import Harness, create, log_table, partitioned_table, path, pk_table

from fluss.errors import AuthorizationError, ConfigError
from fluss.metadata import TablePath
from fluss.metadata.acl import AclBinding, AclFilter, OperationType, Resource, ResourceType
from fluss.protocol import fluss_pb2 as pb
from fluss.server.catalog.producers import ProducerEntry
from fluss.server.handlers import acl, admin, cluster

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
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path, OPTIONS)


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


def allowed(harness: Harness, operation: OperationType, resource: Any, **who: str) -> bool:
    session = harness.context(**{**BOB, **who}).session
    return harness.catalog.authorizer.allows(session, operation, resource)


T = TablePath("fluss", "t")


def test_without_an_authorizer_the_calls_are_refused(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.fails(47, acl.create_acls, pb.CreateAclsRequest(acl=[rule(READ)]), "No Authorizer is configured.")
    harness.fails(47, acl.list_acls, pb.ListAclsRequest(acl_filter=any_filter()))
    harness.fails(47, acl.drop_acls, pb.DropAclsRequest(acl_filter=[any_filter()]))
    assert harness.catalog.authorizer.allows(harness.context().session, OperationType.ALL, Resource.cluster())


def test_nobody_may_anything_by_default(harness: Harness) -> None:
    for operation in OperationType:
        assert not allowed(harness, operation, T)
    assert allowed(harness, OperationType.ALL, T, user="root")
    assert allowed(harness, OperationType.ALL, T, user="admin")
    assert allowed(harness, OperationType.ALL, T, listener="FLUSS")
    grant(harness, rule(ALL, permission=1))
    assert not allowed(harness, OperationType.READ, T)  # a rule whose permission is ANY grants nothing
    with pytest.raises(
        AuthorizationError,
        match=r"name='bob', type='User'} have no .* WRITE on resource Resource{type=TABLE, name='fluss\.t'} ",
    ):
        harness.catalog.authorizer.require(harness.context(**BOB).session, OperationType.WRITE, T)


@pytest.mark.parametrize("operation", [READ, WRITE, CREATE, DROP, ALTER])
def test_every_right_includes_looking(harness: Harness, operation: int) -> None:
    grant(harness, rule(operation))
    assert {op for op in (3, 4, 5, 6, 7, 8) if allowed(harness, OperationType(op), T)} == {operation, DESCRIBE}


def test_describe_includes_nothing_and_all_everything(harness: Harness) -> None:
    grant(harness, rule(DESCRIBE))
    assert [op for op in (3, 4, 5, 6, 7) if allowed(harness, OperationType(op), T)] == []
    grant(harness, rule(ALL))
    assert all(allowed(harness, OperationType(op), T) for op in (2, 3, 4, 5, 6, 7, 8))


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
    assert {name for name, res in resources.items() if allowed(harness, OperationType.READ, res)} == covered


def test_wildcard_principals_and_hosts(harness: Harness) -> None:
    grant(harness, rule(READ, user="*", user_type="*"))
    assert allowed(harness, OperationType.READ, T, user="anyone")
    grant(harness, rule(WRITE, user="*"))  # the name alone is a name
    assert not allowed(harness, OperationType.WRITE, T, user="anyone")
    grant(harness, rule(DROP, host="10.0.0.1"))
    assert allowed(harness, OperationType.DROP, T, host="10.0.0.1")
    assert not allowed(harness, OperationType.DROP, T, host="10.0.0.2")


def test_case_of_principals(tmp_path: Path) -> None:
    harness = Harness(tmp_path, {**OPTIONS, "security.acl.principal.ignore-case": "true"})
    grant(harness, rule(READ, user="Bob"))
    assert allowed(harness, OperationType.READ, T, user="BOB")
    assert allowed(harness, OperationType.ALL, T, user="ROOT")
    harness.options["security.acl.principal.ignore-case"] = "false"
    harness.reopen()
    assert not allowed(harness, OperationType.READ, T, user="BOB")
    assert not allowed(harness, OperationType.ALL, T, user="ROOT")


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
    # Others see the rules of what they may describe: bob may read his table.
    assert listed(BOB) == rules[:1]
    assert listed({"user": "mallory", "listener": "CLIENT"}) == []
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
    assert not allowed(harness, OperationType.READ, T)
    harness.reopen()
    assert harness.catalog.acls.all() == []


def test_who_may_change_rules(harness: Harness) -> None:
    request = pb.CreateAclsRequest(acl=[rule(READ, user="eve")])
    grant(harness, rule(ALTER, "fluss", DATABASE), rule(ALL, "fluss.t", TABLE))
    # For a table the database decides, and it takes ALL.
    harness.fails(48, acl.create_acls, request, "name='bob'", "ALL", "type=DATABASE, name='fluss'", **BOB)
    harness.fails(48, acl.drop_acls, pb.DropAclsRequest(acl_filter=[any_filter()]), **BOB)
    assert len(harness.catalog.acls.all()) == 2
    grant(harness, rule(ALL, "fluss", DATABASE))
    harness.call(acl.create_acls, request, **BOB)
    assert allowed(harness, OperationType.READ, T, user="eve")


BAD_RULES = {
    "any op": rule(1),
    "any type": rule(READ, kind=1),
    "unknown op": rule(99),
    "no name": rule(READ, ""),
    "no user": rule(READ, user=""),
    "no table": rule(READ, "fluss", TABLE),
    "cluster": rule(READ, "mine", CLUSTER),
    "tables": rule(READ, "fluss.*", TABLE),
    "databases": rule(READ, "fl*", DATABASE),
}


@pytest.mark.parametrize("bad", BAD_RULES.values(), ids=BAD_RULES)
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


def test_any_resource_as_the_flink_procedures_name_it() -> None:
    one = AclBinding(ResourceType.TABLE, "fluss.t", "bob", OperationType.READ)
    assert AclFilter(resource_name="any").matches(one)
    assert not AclFilter(resource_name="fluss.other").matches(one)
    assert not AclFilter(ResourceType.TABLE, "any").matches(one)


# ---------------------------------------------------------------------- lists, existence, producers


def prepare(harness: Harness) -> None:
    harness.call(admin.create_table, create(log_table()))
    harness.call(admin.create_table, create(pk_table(), "pk"))
    harness.call(admin.create_table, create(partitioned_table(), "p"))
    harness.call(admin.create_database, pb.CreateDatabaseRequest(database_name="d", ignore_if_exists=False))


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


def register(producer_id: str, *table_ids: int, ttl_ms: int | None = None) -> pb.RegisterProducerOffsetsRequest:
    request = pb.RegisterProducerOffsetsRequest(producer_id=producer_id, ttl_ms=ttl_ms)
    for table_id in table_ids:
        request.table_offsets.add(table_id=table_id).bucket_offsets.add(bucket_id=0, log_end_offset=5)
    return request


def offsets_of(harness: Harness, producer_id: str, **who: str) -> pb.GetProducerOffsetsResponse:
    request = pb.GetProducerOffsetsRequest(producer_id=producer_id)
    answer: pb.GetProducerOffsetsResponse = harness.call(cluster.get_producer_offsets, request, **who)
    return answer


def test_a_database_without_a_visible_table_does_not_exist(harness: Harness) -> None:
    prepare(harness)
    grant(harness, rule(READ, "fluss.pk"))
    hidden = harness.fails(4, admin.list_tables, pb.ListTablesRequest(database_name="d"), **BOB)
    missing = harness.fails(4, admin.list_tables, pb.ListTablesRequest(database_name="x"), **BOB)
    assert hidden.replace(" d ", " x ") == missing
    grant(harness, rule(DESCRIBE, "d", DATABASE))
    assert harness.call(admin.list_tables, pb.ListTablesRequest(database_name="d"), **BOB).table_name == []


def test_rules_about_hidden_resources_are_not_dropped_and_not_told_of(harness: Harness) -> None:
    prepare(harness)
    grant(harness, rule(READ, "d.secret", user="eve"), rule(DESCRIBE))
    request = pb.DropAclsRequest(acl_filter=[any_filter(principal_name="eve")])
    missing = pb.DropAclsRequest(acl_filter=[any_filter(principal_name="mallory")])
    assert harness.call(acl.drop_acls, request, **BOB) == harness.call(acl.drop_acls, missing, **BOB)
    assert len(harness.catalog.acls.all()) == 2


def test_producer_ids_belong_to_their_principal(harness: Harness) -> None:
    """No caller can take the id of another principal, or see what is registered under it."""
    prepare(harness)
    grant(harness, rule(WRITE), rule(WRITE, user="eve"))
    eve = {"user": "eve", "listener": "CLIENT"}
    assert harness.call(cluster.register_producer_offsets, register("p", 0), **eve).result == 0
    assert not offsets_of(harness, "p", **BOB).HasField("producer_id")
    assert harness.call(cluster.register_producer_offsets, register("p", 0), **BOB).result == 0
    assert harness.call(cluster.register_producer_offsets, register("p", 0), **BOB).result == 1
    harness.call(cluster.delete_producer_offsets, pb.DeleteProducerOffsetsRequest(producer_id="p"), **BOB)
    assert offsets_of(harness, "p", **eve).HasField("producer_id")
    harness.reopen()
    assert offsets_of(harness, "p", **eve).producer_id == "p"
    assert not offsets_of(harness, "p", **BOB).HasField("producer_id")


def test_a_registration_needs_a_table_and_ends_within_a_week(harness: Harness) -> None:
    prepare(harness)
    harness.fails(48, cluster.register_producer_offsets, register("p"), **BOB)
    grant(harness, rule(ALL))
    harness.call(cluster.register_producer_offsets, register("p", 0, ttl_ms=10**15), **BOB)
    assert offsets_of(harness, "p", **BOB).expiration_time == harness.clock.now_ms + 7 * 24 * 3600 * 1000


def test_one_principal_cannot_fill_the_register(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss.server.catalog.producers.PRODUCERS_PER_OWNER_MAX", 2)
    prepare(harness)
    grant(harness, rule(WRITE), rule(WRITE, user="eve"))
    for number in range(2):
        harness.call(cluster.register_producer_offsets, register(f"p{number}", 0), **BOB)
    harness.fails(-1, cluster.register_producer_offsets, register("p2", 0), "User:bob", **BOB)
    harness.call(cluster.register_producer_offsets, register("p2", 0), user="eve", listener="CLIENT")


def test_registrations_of_older_releases_are_found(harness: Harness) -> None:
    prepare(harness)
    grant(harness, rule(ALL))
    old = ProducerEntry("p", harness.clock.now_ms + 1000, {0: {(None, 0): 3}})
    harness.catalog.producers.write(old)
    harness.reopen()
    assert offsets_of(harness, "p", **BOB).table_offsets[0].bucket_offsets[0].log_end_offset == 3
    harness.call(cluster.delete_producer_offsets, pb.DeleteProducerOffsetsRequest(producer_id="p"), **BOB)
    assert not offsets_of(harness, "p", **BOB).HasField("producer_id")


def test_producer_offsets_are_filtered_by_read(harness: Harness) -> None:
    prepare(harness)
    grant(harness, rule(WRITE), rule(WRITE, "fluss.pk"), rule(READ, "fluss.pk"))
    harness.call(cluster.register_producer_offsets, register("p", 0, 1), **BOB)
    assert [table.table_id for table in offsets_of(harness, "p", **BOB).table_offsets] == [1]
    request = any_filter(principal_name="bob", operation_type=WRITE, resource_name="fluss.t")
    harness.call(acl.drop_acls, pb.DropAclsRequest(acl_filter=[request]), **ROOT)
    # Without the right on one of its tables the registration stays, and the hidden table is not named.
    delete = pb.DeleteProducerOffsetsRequest(producer_id="p")
    assert "fluss" not in harness.fails(21, cluster.delete_producer_offsets, delete, **BOB)
