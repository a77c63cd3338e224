# SPDX-License-Identifier: Apache-2.0
"""The interop protocol for clients with the Python API: one JSON command per line in, one JSON answer per line out.

``driver_fluss.py`` and ``driver_pyfluss.py`` give it the module to drive. Calls that one release has as plain calls
and another as coroutines are told apart by what they return, so one text serves all of them.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import time
import traceback
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import canonical

Command = dict[str, Any]


async def resolve(value: Any) -> Any:
    """The value itself, or what awaiting it gives."""
    return await value if inspect.isawaitable(value) else value


class PythonDriver:
    """Executes commands with ``self.fluss``, any module of the ``pyfluss`` family."""

    client = ""

    def __init__(self, module: Any) -> None:
        self.fluss = module
        self.connection: Any = None
        self.admin: Any = None

    # ---------------------------------------------------------------- the loop

    def run(self) -> None:
        answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # whatever a library prints must not get between the answers
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        for line in sys.stdin:
            answers.write(json.dumps(loop.run_until_complete(self.answer(json.loads(line)))) + "\n")
        loop.run_until_complete(self.op_disconnect({}))
        answers.flush()

    async def answer(self, command: Command) -> dict[str, Any]:
        try:
            operation = getattr(self, "op_" + command["op"], None)
            if operation is None:
                return {"unsupported": f"{self.client} has no {command['op']}"}
            return {"ok": await operation(command)}
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of a native library is a BaseException, and is an answer too
            if not isinstance(error, self.fluss.FlussError):
                traceback.print_exc()
            return {
                "error": {
                    "code": getattr(error, "error_code", -2),
                    "type": type(error).__name__,
                    "message": getattr(error, "message", None) or str(error),
                }
            }

    # ---------------------------------------------------------------- connection and databases

    def options(self, c: Command) -> dict[str, str]:
        options = {"bootstrap.servers": c["bootstrap"], "writer.batch-timeout-ms": "20"}
        if c.get("user"):
            options |= {
                "security.protocol": "sasl",
                "security.sasl.mechanism": "PLAIN",
                "security.sasl.username": c["user"],
                "security.sasl.password": c["password"],
            }
        return options

    async def op_hello(self, c: Command) -> Any:
        return {"client": self.client}

    async def op_connect(self, c: Command) -> None:
        await self.op_disconnect(c)
        connection = await resolve(self.fluss.FlussConnection.create(self.fluss.Config(self.options(c))))
        self.connection = connection
        self.admin = await resolve(connection.get_admin())

    async def op_disconnect(self, c: Command) -> None:
        if self.connection is not None:
            connection, self.connection = self.connection, None
            await resolve(connection.close())

    async def op_server_nodes(self, c: Command) -> Any:
        return [[n.server_type, n.id, n.host, n.port] for n in await self.admin.get_server_nodes()]

    async def op_create_database(self, c: Command) -> None:
        descriptor = self.fluss.DatabaseDescriptor(comment=c.get("comment"), custom_properties=c.get("custom") or {})
        await self.admin.create_database(c["db"], descriptor, c.get("ignore", False))

    async def op_drop_database(self, c: Command) -> None:
        await self.admin.drop_database(c["db"], c.get("ignore", False), c.get("cascade", True))

    async def op_database_exists(self, c: Command) -> bool:
        return await self.admin.database_exists(c["db"])

    async def op_list_databases(self, c: Command) -> list[str]:
        return await self.admin.list_databases()

    async def op_database_info(self, c: Command) -> Any:
        info = await self.admin.get_database_info(c["db"])
        descriptor = info.get_database_descriptor()
        return {
            "db": info.database_name,
            "comment": descriptor.comment,
            "custom": dict(descriptor.get_custom_properties()),
        }

    # ---------------------------------------------------------------- tables

    def path(self, c: Command) -> Any:
        return self.fluss.TablePath(c["table"]["db"], c["table"]["name"])

    def schema(self, table: dict[str, Any]) -> Any:
        fields = [canonical.arrow_field(column["name"], column["type"]) for column in table["columns"]]
        more = {"auto_increment_column": table["auto_increment"]} if table.get("auto_increment") else {}
        return self.fluss.Schema(canonical.pa.schema(fields), primary_keys=table.get("primary_key") or None, **more)

    async def op_create_table(self, c: Command) -> None:
        table = c["table"]
        options = {
            "partition_keys": table.get("partition_keys"),
            "bucket_count": table.get("buckets"),
            "bucket_keys": table.get("bucket_keys"),
            "comment": table.get("comment"),
            "properties": table.get("properties"),
            "custom_properties": table.get("custom"),
        }
        # The wheels take an absent option, but not None in its place.
        descriptor = self.fluss.TableDescriptor(self.schema(table), **{k: v for k, v in options.items() if v})
        await self.admin.create_table(self.path(c), descriptor, c.get("ignore", False))

    async def op_drop_table(self, c: Command) -> None:
        await self.admin.drop_table(self.path(c), c.get("ignore", False))

    async def op_table_exists(self, c: Command) -> bool:
        return await self.admin.table_exists(self.path(c))

    async def op_list_tables(self, c: Command) -> list[str]:
        return await self.admin.list_tables(c["db"])

    async def op_table_info(self, c: Command) -> Any:
        info = await self.admin.get_table_info(self.path(c))
        return {
            "columns": list(info.get_column_names()),
            "primary_key": list(info.get_primary_keys()),
            "bucket_keys": list(info.get_bucket_keys()),
            "partition_keys": list(info.get_partition_keys()),
            "buckets": info.num_buckets,
            "comment": info.comment,
            "schema_id": info.schema_id,
            "properties": dict(info.get_properties()),
            "custom": dict(info.get_custom_properties()),
        }

    async def op_create_partition(self, c: Command) -> None:
        await self.admin.create_partition(self.path(c), c["spec"], c.get("ignore", False))

    async def op_drop_partition(self, c: Command) -> None:
        await self.admin.drop_partition(self.path(c), c["spec"], c.get("ignore", False))

    async def op_list_partitions(self, c: Command) -> Any:
        if c.get("spec"):
            infos = await self.admin.list_partition_infos(self.path(c), c["spec"])
        else:
            infos = await self.admin.list_partition_infos(self.path(c))
        return sorted(info.partition_name for info in infos)

    async def op_list_offsets(self, c: Command) -> Any:
        spec = c["spec"]
        kind = self.fluss.OffsetSpec
        wanted = kind.timestamp(spec) if isinstance(spec, int) else getattr(kind, spec)()
        if c.get("partition"):
            found = await self.admin.list_partition_offsets(self.path(c), c["partition"], c["buckets"], wanted)
        else:
            found = await self.admin.list_offsets(self.path(c), c["buckets"], wanted)
        return sorted([bucket, offset] for bucket, offset in found.items())

    async def op_lake_snapshot(self, c: Command) -> int:
        return (await self.admin.get_latest_lake_snapshot(self.path(c))).snapshot_id

    # ---------------------------------------------------------------- writes and point reads

    def columns(self, c: Command, names: list[str] | None = None) -> list[dict[str, Any]]:
        columns = c["table"]["columns"]
        if names is None:
            return columns
        by_name = {column["name"]: column for column in columns}
        return [by_name[name] for name in names]

    def row(self, values: list[Any], columns: list[dict[str, Any]]) -> dict[str, Any]:
        return {column["name"]: canonical.to_python(value, column["type"]) for column, value in zip(columns, values)}

    async def op_append(self, c: Command) -> int:
        table = await self.connection.get_table(self.path(c))
        writer = await resolve(table.new_append().create_writer())
        columns = self.columns(c)
        way = c.get("way", "rows")
        handles = []
        if way == "rows":
            handles = [writer.append(self.row(row, columns)) for row in c["rows"]]
        elif way == "lists":
            handles = [writer.append(list(self.row(row, columns).values())) for row in c["rows"]]
        else:
            batch = canonical.record_batch(c["rows"], columns)
            if way == "batch":
                handles = [writer.write_arrow_batch(batch)]
            elif way == "arrow":
                await resolve(writer.write_arrow(canonical.pa.Table.from_batches([batch])))
            elif way == "pandas":
                await resolve(writer.write_pandas(batch.to_pandas()))
            else:
                raise ValueError(f"unknown way to write: {way}")
        await resolve(writer.flush())
        for handle in handles:
            await resolve(handle.wait())
        return len(c["rows"])

    async def op_upsert(self, c: Command) -> int:
        table = await self.connection.get_table(self.path(c))
        upsert = table.new_upsert()
        if c.get("columns"):
            upsert = upsert.partial_update_by_name(c["columns"])
        writer = await resolve(upsert.create_writer())
        columns = self.columns(c, c.get("columns"))
        return await self._finish(writer, [writer.upsert(self.row(row, columns)) for row in c["rows"]])

    async def op_delete(self, c: Command) -> int:
        table = await self.connection.get_table(self.path(c))
        writer = await resolve(table.new_upsert().create_writer())
        columns = self.columns(c, c["table"]["primary_key"])
        return await self._finish(writer, [writer.delete(self.row(key, columns)) for key in c["keys"]])

    async def _finish(self, writer: Any, handles: list[Any]) -> int:
        await resolve(writer.flush())
        for handle in handles:
            await resolve(handle.wait())
        return len(handles)

    def canonical_row(self, row: Any, columns: list[dict[str, Any]]) -> list[Any] | None:
        if row is None:
            return None
        if sorted(row) != sorted(column["name"] for column in columns):
            raise ValueError(f"row has columns {sorted(row)}")
        return [canonical.from_python(row[column["name"]], column["type"]) for column in columns]

    async def op_lookup(self, c: Command) -> Any:
        table = await self.connection.get_table(self.path(c))
        lookuper = await resolve(table.new_lookup().create_lookuper())
        key_columns = self.columns(c, c["table"]["primary_key"])
        # All at once: the peers wait a while for more keys before they send a lookup.
        found = await asyncio.gather(*[resolve(lookuper.lookup(self.row(key, key_columns))) for key in c["keys"]])
        return [self.canonical_row(row, self.columns(c)) for row in found]

    # ---------------------------------------------------------------- scans

    def scan_builder(self, table: Any, c: Command) -> Any:
        scan = table.new_scan()
        if c.get("project"):
            scan = scan.project_by_name(c["project"])
        if c.get("filter"):
            scan = scan.filter(self.predicate(c["filter"]))
        return scan

    def predicate(self, spec: list[Any]) -> Any:
        """``["and", a, b]``, ``["or", a, b]`` or ``[method, column, argument…]`` (canonical, untyped scalars only)."""
        if spec[0] in ("and", "or"):
            left, right = self.predicate(spec[1]), self.predicate(spec[2])
            return left & right if spec[0] == "and" else left | right
        return getattr(self.fluss.col(spec[1]), spec[0])(*spec[2:])

    async def op_scan(self, c: Command) -> Any:
        table = await self.connection.get_table(self.path(c))
        columns = self.columns(c, c.get("project"))
        way = c.get("way", "records")
        scan = self.scan_builder(table, c)
        scanner = await resolve(
            scan.create_log_scanner() if way == "records" else scan.create_record_batch_log_scanner()
        )
        names = await self._subscribe(scanner, c)
        if way in ("to_arrow", "to_pandas"):
            data = await resolve(scanner.to_arrow())
            return [[None, None, None, None, row] for row in canonical.rows_of(data, columns)]
        poll = self._poll_records if way == "records" else self._poll_batches
        return await self._until_quiet(c, lambda: poll(scanner, columns, names))

    async def _subscribe(self, scanner: Any, c: Command) -> dict[int, str]:
        starts = {b: c.get("start", {}).get(str(b), self.fluss.EARLIEST_OFFSET) for b in c["buckets"]}
        if not c["table"].get("partition_keys"):
            await resolve(scanner.subscribe_buckets(starts))
            return {}
        infos = await self.admin.list_partition_infos(self.path(c))
        names = {info.partition_id: info.partition_name for info in infos}
        await resolve(
            scanner.subscribe_partition_buckets({(p, b): start for p in names for b, start in starts.items()})
        )
        return names

    async def _poll_records(self, scanner: Any, columns: list[dict[str, Any]], names: dict[int, str]) -> list[Any]:
        found = []
        for bucket, records in (await resolve(scanner.poll(300))).items():
            name = names.get(bucket.partition_id) if bucket.partition_id is not None else None
            for record in records:
                row = self.canonical_row(record.row, columns)
                found += [[name, bucket.bucket_id, record.offset, record.change_type.short_string(), row]]
        return found

    async def _poll_batches(self, scanner: Any, columns: list[dict[str, Any]], names: dict[int, str]) -> list[Any]:
        found = []
        for batch in await resolve(scanner.poll_record_batch(300)):
            rows = canonical.rows_of(batch.batch, columns)
            if batch.last_offset - batch.base_offset + 1 != len(rows):
                raise ValueError(f"{len(rows)} rows between offsets {batch.base_offset} and {batch.last_offset}")
            partition = batch.bucket.partition_id
            for i, row in enumerate(rows):
                name = names.get(partition) if partition is not None else None
                found.append([name, batch.bucket.bucket_id, batch.base_offset + i, None, row])
        return found

    async def _until_quiet(self, c: Command, poll: Any) -> list[Any]:
        """Reads until the wanted number is there and one more poll brought nothing, or nothing comes for a while."""
        found: list[Any] = []
        idle_s = c.get("idle_ms", 3000) / 1000
        quiet_since = time.monotonic()
        extra = False
        while True:
            records = await poll()
            found += records
            if records:
                quiet_since = time.monotonic()
            elif (len(found) >= c["want"] and extra) or time.monotonic() - quiet_since > idle_s:
                return found
            extra = len(found) >= c["want"]

    async def bucket(self, c: Command, table_id: int) -> Any:
        if not c.get("partition"):
            return self.fluss.TableBucket(table_id, c["bucket"])
        infos = await self.admin.list_partition_infos(self.path(c))
        ids = {info.partition_name: info.partition_id for info in infos}
        return self.fluss.TableBucket.with_partition(table_id, ids[c["partition"]], c["bucket"])

    async def op_kv_snapshots(self, c: Command) -> Any:
        found = await resolve(self.admin.get_latest_kv_snapshots(self.path(c), c.get("partition")))
        return [[one.bucket.bucket_id, one.snapshot_id, one.log_offset] for one in found]

    async def op_snapshot_scan(self, c: Command) -> Any:
        table = await self.connection.get_table(self.path(c))
        bucket = await self.bucket(c, table.get_table_info().table_id)
        scan = self.scan_builder(table, c)
        scanner = await resolve(scan.create_bucket_batch_scanner(bucket, snapshot_id=c["snapshot"]))
        return canonical.rows_of(await resolve(scanner.to_arrow()), self.columns(c, c.get("project")))

    async def op_full_scan(self, c: Command) -> Any:
        """All current rows of a bucket, and the snapshot that they begin with where the server cannot list them."""
        table = await self.connection.get_table(self.path(c))
        bucket = await self.bucket(c, table.get_table_info().table_id)
        scanner = await resolve(self.scan_builder(table, c).create_bucket_batch_scanner(bucket))
        rows = canonical.rows_of(await resolve(scanner.to_arrow()), self.columns(c, c.get("project")))
        return [rows, scanner.snapshot_id]

    async def op_limit_scan(self, c: Command) -> Any:
        table = await self.connection.get_table(self.path(c))
        bucket = await self.bucket(c, table.get_table_info().table_id)
        scanner = await resolve(self.scan_builder(table, c).limit(c["limit"]).create_bucket_batch_scanner(bucket))
        return canonical.rows_of(await resolve(scanner.to_arrow()), self.columns(c, c.get("project")))

    async def op_prefix_lookup(self, c: Command) -> Any:
        table = await self.connection.get_table(self.path(c))
        lookuper = await resolve(table.new_lookup().lookup_by(c["by"]).create_lookuper())
        key_columns = self.columns(c, c["by"])
        found = []
        for key in c["keys"]:
            rows = await resolve(lookuper.lookup(self.row(key, key_columns)))
            found.append([self.canonical_row(row, self.columns(c)) for row in rows])
        return found
