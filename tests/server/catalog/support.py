# SPDX-License-Identifier: Apache-2.0
"""A catalog in a folder, its handlers, and a clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from tests.server.log_support import OPENED

from fluss.errors import ErrorCode, FlussError
from fluss.metadata import Column, DataTypes, Schema, TableDescriptor
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.apis import APIS
from fluss.server.audit import AuditLog
from fluss.server.auth import Principal
from fluss.server.catalog import Catalog
from fluss.server.config import Endpoint, ServerConfig
from fluss.server.handlers.request import RequestContext
from fluss.server.scheduler import Scheduler
from fluss.server.store_tokens import StoreTokens

T = TypeVar("T")

NOW_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z


class Clock:
    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class Harness:
    """Calls handlers as a session would, on one event loop, with a real catalog below."""

    def __init__(self, data_dir: Path, options: Mapping[str, object] | None = None) -> None:
        self.data_dir = data_dir
        self.options = dict(options or {})
        self.clock = Clock()
        self.damaged_bucket_count = 0
        self.open()
        self.loop = asyncio.new_event_loop()
        OPENED.append(self)

    def open(self) -> None:
        self.config = ServerConfig(self.options)
        self.catalog = Catalog(self.data_dir, self.config, clock_ms=self.clock)
        self.server = SimpleNamespace(
            catalog=self.catalog,
            authorizer=self.catalog.authorizer,
            config=self.config,
            damaged_bucket_count=self.damaged_bucket_count,
            tablets=(),
            audit=AuditLog(),
            scheduler=Scheduler(),
            codec=self.catalog.executor,
            tablet_server_id=self.config.integer("tablet-server.id"),
            store_tokens=StoreTokens(self.catalog.remote_data_dir, self.config.store_options, None, self.clock),
            advertised_endpoint=lambda listener: Endpoint(listener, f"{listener.lower()}.example", 9000),
        )

    def reopen(self) -> None:
        """Stop cleanly and start again on the same folder."""
        self.run(self.catalog.close())
        self.open()

    def close(self) -> None:
        if not self.loop.is_closed():
            self.run(self.catalog.close())
            self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def context(self, user: str = "ANONYMOUS", host: str = "127.0.0.1", listener: str = "FLUSS") -> RequestContext:
        session = SimpleNamespace(
            principal=Principal(user), host=host, listener=listener, share=self.server.scheduler.share(user)
        )
        return RequestContext(self.server, session, 0, 0, 0)  # type: ignore[arg-type]

    def call(self, handler: Any, request: Any, **who: str) -> Any:
        context = self.context(**who)
        # The right that is checked follows from the API.
        context.api_key = next(api.key for api in APIS.values() if api.request is type(request))
        return self.run(handler(context, request))

    def fails(self, code: int, handler: Any, request: Any, *contains: str, **who: str) -> str:
        """The call is refused with this code, and its text says all of these."""
        with pytest.raises(FlussError) as caught:
            self.call(handler, request, **who)
        wire_code = caught.value.error_code
        if wire_code == ErrorCode.CLIENT_ERROR:
            wire_code = ErrorCode.UNKNOWN_SERVER_ERROR
        assert wire_code == code, f"{type(caught.value).__name__} {caught.value.message}"
        for text in contains:
            assert text in caught.value.message
        return caught.value.message


def path(table: str = "t", database: str = "fluss") -> pb.PbTablePath:
    return pb.PbTablePath(database_name=database, table_name=table)


def log_schema() -> Schema:
    return Schema.builder().column("id", DataTypes.int()).column("name", DataTypes.string()).build()


def log_table(**options: Any) -> TableDescriptor:
    return TableDescriptor(log_schema(), **options)


def pk_table(**options: Any) -> TableDescriptor:
    columns = [Column("id", DataTypes.int()), Column("name", DataTypes.string()), Column("n", DataTypes.bigint())]
    return TableDescriptor(Schema.of(columns, ["id"]), **options)


def partitioned_table(keys: tuple[str, ...] = ("dt",), **options: Any) -> TableDescriptor:
    builder = Schema.builder().column("id", DataTypes.int())
    for key in keys:
        builder = builder.column(key, DataTypes.string())
    return TableDescriptor(builder.build(), partition_keys=keys, **options)


def create(
    descriptor: TableDescriptor | Mapping[str, Any], table: str = "t", database: str = "fluss", ignore: bool = False
) -> pb.CreateTableRequest:
    if isinstance(descriptor, TableDescriptor):
        document = descriptor.to_json_bytes()
    else:
        document = json.dumps(descriptor).encode()
    return pb.CreateTableRequest(table_path=path(table, database), table_json=document, ignore_if_exists=ignore)


def spec(**values: str) -> pb.PbPartitionSpec:
    return pb.PbPartitionSpec(
        partition_key_values=[pb.PbKeyValue(key=key, value=value) for key, value in values.items()]
    )


def create_partition(table: str = "t", ignore: bool = False, **values: str) -> pb.CreatePartitionRequest:
    return pb.CreatePartitionRequest(table_path=path(table), partition_spec=spec(**values), ignore_if_not_exists=ignore)


def drop_partition(table: str = "t", ignore: bool = False, **values: str) -> pb.DropPartitionRequest:
    return pb.DropPartitionRequest(table_path=path(table), partition_spec=spec(**values), ignore_if_not_exists=ignore)


def drop_table(table: str = "t", database: str = "fluss", ignore: bool = False) -> pb.DropTableRequest:
    return pb.DropTableRequest(table_path=path(table, database), ignore_if_not_exists=ignore)


def alter(values: Mapping[str, str | None], table: str = "t", ignore: bool = False) -> pb.AlterTableRequest:
    request = pb.AlterTableRequest(table_path=path(table), ignore_if_not_exists=ignore)
    for key, value in values.items():
        request.config_changes.add(config_key=key, op_type=1 if value is None else 0, config_value=value)
    return request
