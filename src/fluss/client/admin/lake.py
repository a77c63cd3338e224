# SPDX-License-Identifier: Apache-2.0
"""Admin calls about lake snapshots, tiering, snapshots of primary-key tables and producer offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fluss.client.admin.base import AdminBase, check_name
from fluss.client.admin.types import (
    FileSystemToken,
    KvSnapshot,
    KvSnapshotMetadata,
    ProducerOffsets,
    RemoteLogManifest,
    TieringHeartbeat,
    TieringStats,
    TieringTable,
)
from fluss.client.requests import bucket_from, pb_path, raise_for_code
from fluss.errors import InvalidArgumentError, UnknownServerError, error_for_code
from fluss.metadata import LakeSnapshot, TableBucket, TablePath, table_path_of
from fluss.net.deadline import Deadline
from fluss.protocol import apis
from fluss.protocol import messages as pb


class LakeAdmin(AdminBase):
    """Lake, tiering, KV snapshots, producer offsets."""

    # -- lake snapshots -------------------------------------------------------------------------------------------

    async def get_latest_lake_snapshot(
        self, table_path: TablePath | str, *, timeout: float | None = None
    ) -> LakeSnapshot:
        """The newest snapshot of the table in the lake, and the log offset each bucket continues from."""
        return await self._lake_snapshot(pb.GetLakeSnapshotRequest(table_path=pb_path(table_path)), timeout=timeout)

    async def get_lake_snapshot(
        self, table_path: TablePath | str, snapshot_id: int, *, timeout: float | None = None
    ) -> LakeSnapshot:
        """One snapshot of the table in the lake by its id."""
        request = pb.GetLakeSnapshotRequest(table_path=pb_path(table_path), snapshot_id=snapshot_id)
        return await self._lake_snapshot(request, timeout=timeout)

    async def get_readable_lake_snapshot(
        self, table_path: TablePath | str, *, timeout: float | None = None
    ) -> LakeSnapshot:
        """The newest snapshot that readers may use."""
        request = pb.GetLakeSnapshotRequest(table_path=pb_path(table_path), readable=True)
        return await self._lake_snapshot(request, timeout=timeout)

    async def _lake_snapshot(
        self, request: pb.GetLakeSnapshotRequest, timeout: float | Deadline | None
    ) -> LakeSnapshot:
        response = await self._ask(apis.GET_LAKE_SNAPSHOT, request, timeout=timeout)
        offsets = {
            bucket_from(response.table_id, bucket): bucket.log_offset
            for bucket in response.bucket_snapshots
            if bucket.HasField("log_offset")
        }
        return LakeSnapshot(response.snapshotId, offsets)

    # -- the tiering service --------------------------------------------------------------------------------------

    async def lake_tiering_heartbeat(
        self,
        *,
        tiering: Iterable[TieringTable] = (),
        finished: Iterable[TieringTable] | Mapping[TieringTable, TieringStats | None] = (),
        failed: Iterable[TieringTable] = (),
        force_finished: Iterable[int] = (),
        request_table: bool = False,
        timeout: float | None = None,
    ) -> TieringHeartbeat:
        """Report to the coordinator what a tiering worker is doing, and ask for the next table."""
        request = pb.LakeTieringHeartbeatRequest(
            request_table=request_table, force_finished_tables=list(force_finished)
        )
        stats = finished if isinstance(finished, Mapping) else dict.fromkeys(finished)
        request.tiering_tables.extend(_tiering_message(table) for table in tiering)
        request.finished_tables.extend(_tiering_message(*item) for item in stats.items())
        request.failed_tables.extend(_tiering_message(table) for table in failed)
        response = await self._change(
            apis.LAKE_TIERING_HEARTBEAT, request, idempotent=not request_table, timeout=timeout
        )
        assigned = None
        if response.HasField("tiering_table"):
            info = response.tiering_table
            path = TablePath(info.table_path.database_name, info.table_path.table_name)
            assigned = TieringTable(info.table_id, info.tiering_epoch, response.coordinator_epoch, path)
        errors: dict[int, Exception] = {}
        for results in (response.tiering_table_resp, response.finished_table_resp, response.failed_table_resp):
            for result in results:
                if result.HasField("error"):
                    errors[result.table_id] = error_for_code(result.error.error_code, result.error.error_message)
        return TieringHeartbeat(response.coordinator_epoch, assigned, errors)

    async def prepare_lake_table_snapshot(
        self,
        table_path: TablePath | str,
        table_id: int,
        offsets: Mapping[TableBucket, int],
        *,
        ignore_previous_offsets: bool = False,
        timeout: float | None = None,
    ) -> str:
        """Store the offsets a lake snapshot will cover; gives the path to pass to the commit."""
        table_path = table_path_of(table_path)
        request = pb.PrepareLakeTableSnapshotRequest(ignore_previous_table_offsets=ignore_previous_offsets)
        message = request.bucket_offsets.add(table_id=table_id, table_path=pb_path(table_path))
        for bucket, offset in offsets.items():
            message.bucket_offsets.add(
                partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, log_end_offset=offset
            )
        response = await self._change(apis.PREPARE_LAKE_TABLE_SNAPSHOT, request, idempotent=True, timeout=timeout)
        for result in response.prepare_lake_table_resp:
            raise_for_code(result, f"table '{table_path}'")
            return result.lake_table_offsets_path
        raise UnknownServerError(f"The server said nothing about table '{table_path}'")

    async def commit_lake_table_snapshot(
        self,
        table_id: int,
        snapshot_id: int,
        offsets_path: str,
        *,
        readable_offsets_path: str | None = None,
        earliest_snapshot_id_to_keep: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Make a lake snapshot known, with the offsets that `prepare_lake_table_snapshot` stored."""
        request = pb.CommitLakeTableSnapshotRequest()
        request.lake_table_snapshot_metadata.add(
            table_id=table_id,
            snapshot_id=snapshot_id,
            tiered_bucket_offsets_file_path=offsets_path,
            readable_bucket_offsets_file_path=readable_offsets_path,
            earliest_snapshot_id_to_keep=earliest_snapshot_id_to_keep,
        )
        response = await self._change(apis.COMMIT_LAKE_TABLE_SNAPSHOT, request, idempotent=True, timeout=timeout)
        for result in response.table_resp:
            raise_for_code(result, f"table {table_id}, snapshot {snapshot_id}")

    # -- snapshots of primary-key tables, remote log --------------------------------------------------------------

    async def get_latest_kv_snapshots(
        self, table_path: TablePath | str, partition_name: str | None = None, *, timeout: float | None = None
    ) -> list[KvSnapshot]:
        """The newest snapshot of each bucket of a primary-key table, or of one of its partitions."""
        request = pb.GetLatestKvSnapshotsRequest(table_path=pb_path(table_path), partition_name=partition_name)
        response = await self._ask(apis.GET_LATEST_KV_SNAPSHOTS, request, timeout=timeout)
        partition_id = response.partition_id if response.HasField("partition_id") else None
        return [_kv_snapshot(response.table_id, partition_id, s) for s in response.latest_snapshots]

    async def list_kv_snapshots(
        self, table_path: TablePath | str, partition_name: str | None = None, *, timeout: float | None = None
    ) -> list[KvSnapshot]:
        """All snapshots that are kept, several per bucket. Needs a server that has this call."""
        table_path = table_path_of(table_path)
        deadline = self._deadline(timeout)
        table_id, partition_id = await self._ids(table_path, partition_name, deadline)
        request = pb.ListKvSnapshotsRequest(table_id=table_id, partition_id=partition_id)
        response = await self._ask(apis.LIST_KV_SNAPSHOTS, request, timeout=deadline)
        return [_kv_snapshot(table_id, partition_id, s) for s in response.active_snapshots]

    async def get_kv_snapshot_metadata(
        self, bucket: TableBucket, snapshot_id: int, *, timeout: float | None = None
    ) -> KvSnapshotMetadata:
        """The files of one snapshot."""
        request = pb.GetKvSnapshotMetadataRequest(
            table_id=bucket.table_id,
            partition_id=bucket.partition_id,
            bucket_id=bucket.bucket_id,
            snapshot_id=snapshot_id,
        )
        response = await self._ask(apis.GET_KV_SNAPSHOT_METADATA, request, timeout=timeout)
        files = {file.remote_path: file.local_file_name for file in response.snapshot_files}
        return KvSnapshotMetadata(bucket, snapshot_id, response.log_offset, files)

    async def list_remote_log_manifests(
        self, table_path: TablePath | str, partition_name: str | None = None, *, timeout: float | None = None
    ) -> list[RemoteLogManifest]:
        """Where the tiered log of each bucket is described. Needs a server that has this call."""
        table_path = table_path_of(table_path)
        deadline = self._deadline(timeout)
        table_id, partition_id = await self._ids(table_path, partition_name, deadline)
        request = pb.ListRemoteLogManifestsRequest(table_id=table_id, partition_id=partition_id)
        response = await self._ask(apis.LIST_REMOTE_LOG_MANIFESTS, request, timeout=deadline)
        return [
            RemoteLogManifest(
                bucket_from(entry.table_bucket.table_id, entry.table_bucket),
                entry.remote_log_manifest_path,
                entry.remote_log_end_offset,
            )
            for entry in response.manifests
        ]

    async def get_file_system_security_token(self, *, timeout: float | None = None) -> FileSystemToken:
        """Credentials for the store of tiered data; an empty token means none are needed."""
        request = pb.GetFileSystemSecurityTokenRequest()
        deadline = self._deadline(timeout)
        response = await self._runner.ask(
            lambda cluster: cluster.call_tablet(apis.GET_FILESYSTEM_SECURITY_TOKEN, request, deadline=deadline)
        )
        return FileSystemToken(
            response.schema,
            response.token,
            response.expiration_time if response.HasField("expiration_time") else None,
            {pair.key: pair.value for pair in response.addition_info},
        )

    # -- producer offsets -----------------------------------------------------------------------------------------

    async def register_producer_offsets(
        self,
        producer_id: str,
        offsets: Mapping[TableBucket, int],
        ttl_ms: int | None = None,
        *,
        timeout: float | None = None,
    ) -> bool:
        """Keep the offsets a producer started from; False if some were kept before (those stay)."""
        request = pb.RegisterProducerOffsetsRequest(producer_id=check_name(producer_id, "producer id"), ttl_ms=ttl_ms)
        tables: dict[int, pb.PbProducerTableOffsets] = {}
        for bucket, offset in offsets.items():
            if bucket.table_id not in tables:
                tables[bucket.table_id] = request.table_offsets.add(table_id=bucket.table_id)
            tables[bucket.table_id].bucket_offsets.add(
                partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, log_end_offset=offset
            )
        response = await self._change(apis.REGISTER_PRODUCER_OFFSETS, request, timeout=timeout)
        return response.result == 0

    async def get_producer_offsets(self, producer_id: str, *, timeout: float | None = None) -> ProducerOffsets:
        """The offsets a producer registered; none if it did not."""
        request = pb.GetProducerOffsetsRequest(producer_id=check_name(producer_id, "producer id"))
        response = await self._ask(apis.GET_PRODUCER_OFFSETS, request, timeout=timeout)
        offsets = {
            bucket_from(table.table_id, b): b.log_end_offset
            for table in response.table_offsets
            for b in table.bucket_offsets
        }
        expires = response.expiration_time if response.HasField("expiration_time") else None
        return ProducerOffsets(producer_id, expires, offsets)

    async def delete_producer_offsets(self, producer_id: str, *, timeout: float | None = None) -> None:
        """Delete the offsets a producer registered."""
        request = pb.DeleteProducerOffsetsRequest(producer_id=check_name(producer_id, "producer id"))
        await self._change(apis.DELETE_PRODUCER_OFFSETS, request, idempotent=True, timeout=timeout)

    async def _ids(
        self, table_path: TablePath, partition_name: str | None, deadline: Deadline
    ) -> tuple[int, int | None]:
        state = await self._runner.ask(lambda cluster: cluster.table(table_path, refresh=True, deadline=deadline))
        if partition_name is None:
            return state.table_id, None
        partition = await self._runner.ask(
            lambda cluster: cluster.partition(table_path, partition_name, deadline=deadline)
        )
        if partition is None:
            raise InvalidArgumentError(f"Table '{table_path}' has no partition '{partition_name}'")
        return state.table_id, partition.partition_id


def _tiering_message(table: TieringTable, stats: TieringStats | None = None) -> pb.PbHeartbeatReqForTable:
    try:
        message = pb.PbHeartbeatReqForTable(
            table_id=table.table_id, coordinator_epoch=table.coordinator_epoch, tiering_epoch=table.tiering_epoch
        )
        if stats is not None:
            message.lake_tiering_stats.CopyFrom(
                pb.PbLakeTieringStats(file_size=stats.file_size, record_count=stats.record_count)
            )
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"lake_tiering_heartbeat(): {table} has a value that is no id: {error}") from None
    return message


def _kv_snapshot(table_id: int, partition_id: int | None, snapshot: pb.PbKvSnapshot) -> KvSnapshot:
    return KvSnapshot(
        TableBucket(table_id, snapshot.bucket_id, partition_id),
        snapshot.snapshot_id if snapshot.HasField("snapshot_id") else None,
        snapshot.log_offset if snapshot.HasField("log_offset") else None,
    )
