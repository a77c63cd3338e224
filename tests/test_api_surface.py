# SPDX-License-Identifier: Apache-2.0
"""Every name of the reference documents and of the official release's type stubs is there, with its signature."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import fluss
import fluss.aio
from fluss import _exports, _shadow
from fluss.errors import ERROR_CLASSES

# The reference, class by class. "name(arguments)" is a method, "await " in front makes it awaited, a bare name is a
# property, "=value" after an argument is its default.

REFERENCE: dict[str, str] = {
    "FlussConnection": """
        await create(config); await get_admin(); await get_table(table_path); close()
    """,
    "FlussAdmin": """
        await create_database(database_name, database_descriptor=None, ignore_if_exists=False)
        await drop_database(database_name, ignore_if_not_exists=False, cascade=True)
        await list_databases(); await database_exists(database_name); await get_database_info(database_name)
        await create_table(table_path, table_descriptor, ignore_if_exists=False)
        await drop_table(table_path, ignore_if_not_exists=False)
        await get_table_info(table_path); await list_tables(database_name); await table_exists(table_path)
        await list_offsets(table_path, bucket_ids, offset_spec)
        await list_partition_offsets(table_path, partition_name, bucket_ids, offset_spec)
        await create_partition(table_path, partition_spec, ignore_if_exists=False)
        await drop_partition(table_path, partition_spec, ignore_if_not_exists=False)
        await list_partition_infos(table_path, partition_spec=None)
        await list_partition_infos_with_spec(table_path, partition_spec)
        await get_latest_lake_snapshot(table_path); await get_server_nodes(); await get_table(table_path)
    """,
    "ServerNode": "id; host; port; server_type; uid",
    "FlussTable": """
        new_scan(); new_append(); new_upsert(); new_lookup(); get_table_info(); get_table_path(); has_primary_key()
        arrow_schema; await new_append_writer(); new_upsert(columns=None)
    """,
    "TableScan": """
        project(indices); project_by_name(names); await create_log_scanner()
        await create_record_batch_log_scanner(); await create_batch_scanner()
        limit(n); filter(predicate); with_fixed_schema(fixed_schema); create_bucket_batch_scanner(bucket)
    """,
    "TableAppend": "create_writer()",
    "TableUpsert": "partial_update_by_name(columns); partial_update_by_index(column_indices); create_writer()",
    "TableLookup": "create_lookuper(); lookup_by(column_names); await lookup(pk)",
    "TablePrefixLookup": "create_lookuper()",
    "AppendWriter": """
        append(row); write_arrow(table); write_arrow_batch(batch); write_pandas(df); await flush()
        append_arrow_batch(batch)
    """,
    "UpsertWriter": "upsert(row); delete(pk); await flush()",
    "WriteResultHandle": "await wait()",
    "Lookuper": "await lookup(pk); await lookup_many(keys)",
    "PrefixLookuper": "await lookup(prefix)",
    "LogScanner": """
        subscribe(bucket_id, start_offset); subscribe_buckets(bucket_offsets)
        subscribe_partition(partition_id, bucket_id, start_offset)
        subscribe_partition_buckets(partition_bucket_offsets)
        unsubscribe(bucket_id); unsubscribe_partition(partition_id, bucket_id)
        poll(timeout_ms); poll_arrow(timeout_ms); poll_record_batch(timeout_ms); poll_batches(timeout_ms)
        to_arrow(); to_pandas(); to_arrow_batch_reader(); get_subscribed_buckets(); is_partitioned(); lag()
    """,
    "BatchScanner": "bucket; next_batch(); collect_all_batches(); to_arrow(); to_pandas()",
    "ScanRecords": """
        buckets(); records(bucket); count(); is_empty(); keys(); values(); items(); records_by_buckets()
        __len__(); __getitem__(index); __contains__(bucket); __iter__()
    """,
    "ScanRecord": "offset; timestamp; change_type; row",
    "RecordBatch": "batch; bucket; base_offset; last_offset; num_records",
    "Schema": """
        __init__(schema, primary_keys=None, auto_increment_column=None)
        get_column_names(); get_column_types(); get_columns(); get_primary_keys(); get_auto_increment_columns()
        builder()
    """,
    "TableDescriptor": """
        __init__(schema, *, partition_keys=None, bucket_count=None, bucket_keys=None, comment=None, log_format=None,
                 kv_format=None, properties=None, custom_properties=None)
        get_schema(); builder()
    """,
    "TablePath": "database_name; table_name; table_path_str()",
    "TableInfo": """
        table_id; table_path; num_buckets; schema_id; comment; created_time; modified_time
        get_primary_keys(); get_partition_keys(); get_bucket_keys(); has_primary_key(); is_partitioned(); get_schema()
        get_column_names(); get_column_count(); get_properties(); get_custom_properties()
        schema; primary_keys; partition_keys; properties; custom_properties
    """,
    "PartitionInfo": "partition_id; partition_name",
    "PartitionSpec": "__init__(spec_map); get_spec_map()",
    "DatabaseDescriptor": """
        __init__(comment=None, custom_properties=None); comment; get_custom_properties(); builder()
    """,
    "DatabaseInfo": "database_name; created_time; modified_time; get_database_descriptor()",
    "LakeSnapshot": "snapshot_id; table_buckets_offset; get_bucket_offset(bucket); get_table_buckets()",
    "TableBucket": "with_partition(table_id, partition_id, bucket); table_id; bucket_id; partition_id",
    "FlussError": "message; error_code; is_retriable",
    "OffsetSpec": "earliest(); latest(); timestamp(ts)",
    "ChangeType": "short_string()",
    "Predicate": "and_(other); or_(other); not_()",
    "ColumnRef": """
        __init__(name); name; equal(value); not_equal(value); less_than(value); less_or_equal(value)
        greater_than(value); greater_or_equal(value); is_null(); is_not_null(); starts_with(prefix); ends_with(suffix)
        contains(infix); is_in(values); not_in(values); between(low, high); like(pattern, escape=None)
    """,
    "Config": """
        __init__(properties=None)
        bootstrap_servers; writer_request_max_size; writer_acks; writer_retries; writer_batch_size
        writer_batch_timeout_ms; scanner_remote_log_prefetch_num; remote_file_download_thread_num
        scanner_remote_log_read_concurrency; scanner_log_max_poll_records; connect_timeout_ms; security_protocol
        security_sasl_mechanism; security_sasl_username; security_sasl_password; writer_dynamic_batch_size_enabled
        writer_dynamic_batch_size_min; writer_bucket_no_key_assigner; scanner_log_fetch_max_bytes
        scanner_log_fetch_min_bytes; scanner_log_fetch_wait_max_time_ms; scanner_log_fetch_max_bytes_for_bucket
        writer_enable_idempotence; writer_max_inflight_requests_per_bucket; writer_buffer_memory_size
        writer_buffer_wait_timeout_ms; writer_kv_backpressure_max_throttle_ms
    """,
    "DataTypes": """
        boolean(); tinyint(); smallint(); int(); bigint(); float(); double(); string(); bytes(); date(); time()
        timestamp(); timestamp_ltz(); decimal(precision, scale); char(length); binary(length); array(element_type)
        map(key_type, value_type); row(fields)
    """,
}

AIO_WAITS = {
    "FlussConnection": ("close",),
    "LogScanner": ("poll", "poll_arrow", "poll_record_batch", "poll_batches", "to_arrow", "to_pandas", "close"),
    "BatchScanner": ("next_batch", "collect_all_batches", "to_arrow", "to_pandas"),
}
"""What `fluss.aio` awaits, and `fluss` does not."""

PLAIN = {"FlussConnection": ("get_admin",)}
"""What both faces call without waiting; awaiting the result works too."""

ASYNC_CONTEXTS = ("FlussConnection", "AppendWriter", "UpsertWriter", "LogScanner")


def members(text: str) -> list[tuple[bool, str, list[tuple[str, str | None]] | None]]:
    """(awaited, name, arguments) of each member; arguments is None for a property."""
    joined = " ".join(text.replace("\n", ";").split())
    found, depth, piece = [], 0, ""
    for character in joined + ";":
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == ";" and depth == 0:
            if piece.strip():
                found.append(piece.strip())
            piece = ""
        elif character != ";":
            piece += character
    parsed: list[tuple[bool, str, list[tuple[str, str | None]] | None]] = []
    for member in found:
        awaited = member.startswith("await ")
        head, bracket, rest = member.removeprefix("await ").partition("(")
        arguments = None
        if bracket:
            arguments = []
            for argument in rest.rstrip(")").split(","):
                name, equals, default = argument.strip().partition("=")
                if name and name != "*":
                    arguments.append((name, default if equals else None))
        parsed.append((awaited, head.strip(), arguments))
    return parsed


CASES = [
    pytest.param(face, class_name, *member, id=f"{face.__name__}.{class_name}.{member[1]}")
    for face in (fluss, fluss.aio)
    for class_name, text in REFERENCE.items()
    for member in members(text)
]


@pytest.mark.parametrize(("face", "class_name", "awaited", "name", "arguments"), CASES)
def test_reference_member(face, class_name, awaited, name, arguments):
    owner = getattr(face, class_name)
    if arguments is None:
        has_slot = name in getattr(owner, "__dataclass_fields__", {}) or hasattr(owner, name)
        has_slot = has_slot or name in inspect.get_annotations(owner) or _set_in_init(owner, name)
        assert has_slot, f"{class_name}.{name} is missing"
        return
    function = getattr(owner, name)
    assert callable(function)
    parameters = {key: p for key, p in inspect.signature(function).parameters.items() if key != "self"}
    for argument, default in arguments:
        assert argument in parameters, f"{class_name}.{name} has no argument {argument!r}: {list(parameters)}"
        if default is not None:
            assert repr(parameters[argument].default) == default
    given = {argument for argument, _ in arguments}
    needed = {
        key
        for key, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    assert needed <= given, f"{class_name}.{name} needs more than the reference says: {needed - given}"
    if face is fluss.aio and name in AIO_WAITS.get(class_name, ()):
        awaited = True
    if name in PLAIN.get(class_name, ()):
        awaited = False
    assert inspect.iscoroutinefunction(function) == awaited, f"{class_name}.{name}: awaited must be {awaited}"


def _set_in_init(owner, name):
    return name in getattr(owner, "__slots__", ()) or f"self.{name} =" in inspect.getsource(owner)


@pytest.mark.parametrize("face", [fluss, fluss.aio])
def test_contexts(face):
    for name in ASYNC_CONTEXTS:
        owner = getattr(face, name)
        assert inspect.iscoroutinefunction(owner.__aenter__)
        assert inspect.iscoroutinefunction(owner.__aexit__)
    assert callable(face.FlussConnection.__enter__)
    assert hasattr(face.LogScanner, "__aiter__")


def test_guide_names():
    assert inspect.iscoroutinefunction(fluss.FlussConnection.connect)
    for name in ("upsert", "delete", "flush"):
        assert callable(getattr(fluss.TableUpsert, name))
    parameters = inspect.signature(fluss.FlussAdmin.list_offsets).parameters
    assert {"offset_type", "timestamp"} <= set(parameters)


def test_constants():
    assert fluss.EARLIEST_OFFSET == -2
    assert fluss.LATEST_OFFSET == -1
    kinds = {"AppendOnly": "+A", "Insert": "+I", "UpdateBefore": "-U", "UpdateAfter": "+U", "Delete": "-D"}
    for number, (name, text) in enumerate(kinds.items()):
        assert fluss.ChangeType[name] == number
        assert fluss.ChangeType[name].short_string() == text
    assert fluss.ErrorCode.CLIENT_ERROR == -2
    assert isinstance(fluss.__version__, str)


@pytest.mark.parametrize("face", [fluss, fluss.aio])
def test_every_error_is_found(face):
    """The errors that programs handle are listed; the others are found as well, for programs of earlier releases."""
    for error in ERROR_CLASSES.values():
        assert getattr(face, error.__name__) is error
        assert issubclass(error, face.FlussError)
    assert "FencedLeaderEpochError" not in dir(face)


EXPORTS = set(
    # One name per line would be three pages.
    """
    AclBinding AclFilter AggFunction AlterConfig AlterConfigOp AppendWriter BatchScanner ChangeType ClusterHealth
    Column ColumnRef Config ConfigEntry DataField DataType DataTypes DatabaseDescriptor DatabaseInfo DatabaseSummary
    EARLIEST_OFFSET ErrorCode FileSystemToken FlussAdmin FlussConnection FlussTable HealthStatus KvSnapshot
    KvSnapshotLease KvSnapshotMetadata LATEST_OFFSET LakeSnapshot LocalServer LogScanner Lookuper MergeMode
    OffsetSpec OperationType PartitionInfo PartitionSpec PermissionType Predicate PrefixLookuper ProducerOffsets
    PrometheusCollector RecordBatch RemoteLogManifest ResourceType ScanRecord ScanRecords Schema SchemaInfo
    ServerNode TableAppend TableBatchScanner TableBucket TableDescriptor TableInfo TableLookup TablePath
    TablePrefixLookup TableScan TableStats TableUpsert TieringHeartbeat TieringStats TieringTable UpsertWriter
    WriteResultHandle col BucketMove GoalType RebalanceProgress RebalanceStatus ServerTag MultiTable
    MultiTableLogScanner MultiTableRecords MultiTableScan MultiTableWrite MultiTableWriter Change Database Position
    Table WriteResult connect AuthenticateError AuthorizationError ConfigError ConnectionClosedError
    DatabaseAlreadyExistError DatabaseNotEmptyError DatabaseNotExistError DeadlineExceededError
    DeletionDisabledError FlussError FormatError GroupRebalancedError InvalidAlterTableError InvalidArgumentError
    InvalidConfigError
    InvalidRowError InvalidTableError InvalidTimestampError LakeSnapshotNotExistError LakeTableAlreadyExistError
    LeaderNotAvailableError LogOffsetOutOfRangeError LogStorageError MissingDependencyError NetworkError
    NonPrimaryKeyTableError PartitionAlreadyExistsError PartitionNotExistsError RecordTooLargeError
    RequestTimeOutError SchemaNotExistError SecurityDisabledError TableAlreadyExistError TableNotExistError
    TableNotPartitionedError UnknownServerError UnsupportedVersionError
    """.split()  # noqa: SIM905
)


@pytest.mark.parametrize("face", [fluss, fluss.aio])
def test_export_list(face):
    assert set(face.__all__) == EXPORTS
    assert len(face.__all__) == len(set(face.__all__))
    for name in face.__all__:
        assert getattr(face, name) is not None
    namespace: dict[str, object] = {}
    exec(f"from {face.__name__} import *", namespace)
    assert set(namespace) - {"__builtins__"} == EXPORTS


@pytest.mark.parametrize("face", [fluss, fluss.aio])
def test_a_listing_shows_public_names_only(face):
    shown = {name for name in dir(face) if not name.startswith("__")}
    assert shown - set(_exports.SUBMODULES[face.__name__]) == EXPORTS
    assert "__version__" in dir(face)


def test_generated_stubs_are_current():
    script = Path(__file__).resolve().parent.parent / "scripts" / "generate_stubs.py"
    check = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stdout


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no_such_name"):
        fluss.no_such_name  # type: ignore[attr-defined]  # noqa: B018
    assert fluss.aio.FlussConnection is not fluss.FlussConnection


def test_import_is_light():
    """Importing costs next to nothing: heavy packages come with the first use."""
    code = "import sys; before = set(sys.modules); import fluss; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert set(loaded) <= {"fluss", "fluss._exports", "fluss._plugins"}


def test_other_distributions_of_the_same_name_are_noticed(tmp_path, monkeypatch):
    (tmp_path / "pyfluss-1.0.0.dist-info").mkdir()
    (tmp_path / "fluss_python-0.1.0.dist-info").mkdir()
    assert _shadow.installed_others([str(tmp_path), str(tmp_path / "nowhere")]) == {"pyfluss": str(tmp_path)}
    monkeypatch.setattr(_shadow, "_checked", False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.warns(_shadow.ShadowWarning, match="pip uninstall pyfluss"):
        _shadow.check_once()
    _shadow.check_once()
