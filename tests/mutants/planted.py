# SPDX-License-Identifier: Apache-2.0
"""The planted bugs: each replaces a text that stands exactly once in a file, and names the tests that must fail.

A refactoring that moves such a text shows up as "no longer applies": move the bug with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """One planted bug."""

    name: str
    file: str
    """Below the root of the repository."""
    search: str
    replace: str
    tests: tuple[str, ...]
    """Arguments of pytest; the shorter they run, the better."""
    not_simulated: str = ""
    """Why the simulation cannot bring this bug out."""

    def applied_to(self, source: str) -> str:
        return source.replace(self.search, self.replace)

    def problem(self, root: Path) -> str | None:
        """Return why the bug cannot be planted; None if it can."""
        path = root / self.file
        count = path.read_text(encoding="utf-8").count(self.search) if path.is_file() else 0
        if count != 1:
            return f"mutant '{self.name}' no longer applies: its text stands {count} times in {self.file}"
        missing = [test for test in self.tests if not (root / test.partition("::")[0]).exists()]
        return f"mutant '{self.name}' names tests that do not exist: {missing}" if missing else None


_SERVER = "src/fluss/server"
_LOG = f"{_SERVER}/log"
_KV = f"{_SERVER}/kv"
_CATALOG = f"{_SERVER}/catalog"

_NAMES = ("tests/server/test_durable_names.py",)
_SIMULATION = ("tests/simulation/test_simulation.py",)
_COMMIT = ("tests/server/test_commit.py",)
_TABLET = ("tests/server/test_log_tablet.py",)
_RECOVERY = ("tests/server/test_log_recovery.py",)
_READER = ("tests/server/test_log_reader.py",)
_RETENTION = ("tests/server/test_retention.py",)
_REMOTE = ("tests/server/test_log_remote.py",)
_HANDLERS_LOG = ("tests/server/test_log_handlers.py",)
_HANDLERS_LAKE = ("tests/server/test_handlers_lake.py",)
_SNAPSHOTS = ("tests/server/kv/test_snapshots.py",)
_STATE = ("tests/server/kv/test_state.py",)
_CHANGELOG = ("tests/server/kv/test_changelog.py",)
_LEASES = ("tests/server/kv/test_leases.py",)
_CATALOG_CRASH = ("tests/server/catalog/test_crash.py",)
_DOCUMENTS = ("tests/server/catalog/test_documents.py",)
_RIGHTS = ("tests/server/test_rights.py",)
_ACLS = ("tests/server/test_handlers_acl.py",)
_MEMORY = ("tests/server/test_memory.py",)
_THROTTLE = ("tests/server/test_auth.py",)
_BUCKETING = ("tests/rows/test_bucketing.py",)
_UNCOMMITTED = ("tests/server/kv/test_uncommitted.py",)
_QUOTAS = ("tests/server/test_quotas.py",)
_SCHEDULER = ("tests/server/test_scheduler.py",)
_LEDGER = ("tests/spark/test_written_rows.py", "tests/spark/test_exactly_once.py")

DURABILITY: tuple[Mutant, ...] = (
    # -- durability -------------------------------------------------------------------------------------------------
    Mutant("log-file-not-flushed", f"{_SERVER}/commit.py", "        file.sync()\n", "", _COMMIT),
    Mutant(
        "log-folder-not-flushed",
        f"{_SERVER}/commit.py",
        "        plan.tablet.open_files.unsynced.sync(plan.folders)\n",
        "        pass\n",
        _NAMES,
    ),
    Mutant(
        "failed-write-not-cut",
        f"{_LOG}/tablet.py",
        "            self.segments[-1].cut()\n",
        "            pass\n",
        _TABLET,
    ),
    Mutant(
        "segments-taken-away-during-a-repair",
        f"{_LOG}/tablet.py",
        "        if self.failure is not None:\n            return  # its repair may",
        "        if False:\n            return  # its repair may",
        _TABLET,
    ),
    Mutant(
        "names-of-new-folders-not-noted",
        f"{_LOG}/tablet.py",
        "            unsynced.add(self.ancestors)\n",
        "",
        _NAMES,
    ),
    Mutant(
        "folder-flush-does-nothing",
        f"{_SERVER}/disk.py",
        "    sync_file(path)\n\n\ndef unlink",
        "\n\ndef unlink",
        _NAMES,
    ),
    Mutant("flush-does-nothing", f"{_SERVER}/disk.py", "        if durable:\n            sync(fd)\n", "", _SIMULATION),
    Mutant(
        "acknowledged-before-the-flush",
        f"{_LOG}/tablet.py",
        "        elif offset <= self.high_watermark:\n            done(None)",
        "        elif offset <= self.end_offset:\n            done(None)",
        _COMMIT,
    ),
    Mutant(
        "acknowledged-after-a-failed-flush",
        f"{_SERVER}/commit.py",
        "        is_cut = error is not None or plan.tablet.failure is not None\n",
        "        is_cut = plan.tablet.failure is not None\n",
        _COMMIT,
    ),
    Mutant(
        "replaced-file-not-noticed",
        f"{_LOG}/files.py",
        "        if disk.inode_of(self.path) != self.inode:",
        "        if False:",
        ("tests/server/test_containment.py",),
        not_simulated="nobody but the server touches its files",
    ),
    Mutant(
        "snapshot-complete-before-its-files",
        f"{_KV}/snapshots.py",
        "        self._files.sync_folder(shared_folder)\n        self._files.sync_folder(location)\n",
        "",
        _NAMES,
    ),
    Mutant(
        "snapshot-not-flushed",
        f"{_KV}/snapshots.py",
        '        self._files.write(f"{location}/{METADATA_NAME}", snapshot.to_json())\n'
        "        self._files.sync_folder(location)\n",
        '        self._files.write(f"{location}/{METADATA_NAME}", snapshot.to_json())\n',
        _NAMES,
    ),
    Mutant(
        "number-block-not-flushed",
        f"{_KV}/sequence.py",
        "                disk.sync_folder(self._path.parent)\n",
        "",
        ("tests/server/kv/test_parts.py",),
    ),
    Mutant(
        "catalog-document-not-flushed",
        f"{_CATALOG}/documents.py",
        "disk.write_file(temporary, data)",
        "disk.write_file(temporary, data, durable=False)",
        _DOCUMENTS,
    ),
    Mutant(
        "catalog-folder-not-flushed",
        f"{_CATALOG}/documents.py",
        "            disk.sync_folder(path.parent)",
        "            pass",
        _CATALOG_CRASH,
    ),
    Mutant(
        "catalog-keeps-what-failed",
        f"{_CATALOG}/documents.py",
        "            self._take_back(step, error, path.parent)\n",
        "",
        _CATALOG_CRASH,
    ),
    # -- recovery ---------------------------------------------------------------------------------------------------
    Mutant(
        "writers-lost-at-recovery",
        f"{_LOG}/recovery.py",
        "        segments, scan.writers, scan.max_timestamp",
        "        segments, WriterStates(), scan.max_timestamp",
        _RECOVERY,
    ),
    Mutant(
        "writers-of-the-scan-not-recorded",
        f"{_LOG}/recovery.py",
        "                self.writers.record_span(span)\n",
        "",
        _RECOVERY,
    ),
    Mutant(
        "duplicate-batch-applied-twice",
        f"{_LOG}/writers.py",
        "            if batch.sequence == sequence:\n                return batch",
        "            if batch.sequence == sequence:\n                return None",
        _TABLET,
    ),
    Mutant(
        "gap-of-a-writer-accepted",
        f"{_LOG}/writers.py",
        "        if sequence != expected:",
        "        if sequence < expected:",
        _TABLET,
    ),
    Mutant(
        "evicted-writer-accepted",
        f"{_LOG}/writers.py",
        "        if last is None and writer_id <= self._evicted_max:",
        "        if False:",
        ("tests/server/test_writer_limits.py", "tests/server/test_log_tablet.py"),
    ),
    Mutant(
        "one-batch-of-a-writer-remembered",
        f"{_LOG}/writers.py",
        "BATCHES_REMEMBERED = 5",
        "BATCHES_REMEMBERED = 1",
        _TABLET,
    ),
    Mutant(
        "recovery-point-ahead",
        f"{_LOG}/tablet.py",
        "            segment.base_offset, segment.size_bytes, self.end_offset, self.max_timestamp",
        "            segment.base_offset, segment.size_bytes, self.end_offset + 1, self.max_timestamp",
        _RECOVERY,
    ),
    Mutant(
        "torn-tail-kept",
        f"{_LOG}/recovery.py",
        "    segment.file.truncate(bad.position)\n",
        "",
        _RECOVERY,
    ),
    Mutant(
        "acknowledged-rows-cut",
        f"{_LOG}/recovery.py",
        "            if scan.next_offset < committed:\n                raise DamagedLogError(\n",
        "            if False:\n                raise DamagedLogError(\n",
        _RECOVERY,
    ),
    Mutant(
        "short-log-accepted",
        f"{_LOG}/recovery.py",
        "    if scan.next_offset < committed:\n        raise",
        "    if False:\n        raise",
        _RECOVERY,
    ),
    Mutant(
        "checksum-not-checked-at-recovery",
        f"{_LOG}/recovery.py",
        "        if not crc_fits(view, span):",
        "        if False:",
        _RECOVERY,
    ),
    Mutant(
        "replay-keeps-deleted-rows",
        f"{_KV}/tablet.py",
        "        if len(removed):\n",
        "        if False:\n",
        _STATE,
    ),
    Mutant(
        "replay-ignores-the-last-batch",
        f"{_KV}/tablet.py",
        "        while offset < self.log.high_watermark:\n            plan",
        "        while offset < self.log.high_watermark - 1:\n            plan",
        _STATE,
    ),
    Mutant(
        "store-ahead-of-the-log-used",
        f"{_KV}/tablet.py",
        "            is_usable = is_usable and self.store.reaches_offset <= self.log.high_watermark\n",
        "",
        _STATE,
    ),
    Mutant(
        "snapshots-beyond-the-log-kept",
        f"{_KV}/snapshots.py",
        "        if end is None:\n            return ()\n",
        "        if True:\n            return ()\n",
        _SNAPSHOTS,
    ),
    Mutant(
        "damaged-snapshot-restored",
        f"{_KV}/snapshots.py",
        "                if copied != (file.size_bytes, file.checksum):",
        "                if False:",
        _SNAPSHOTS,
    ),
    Mutant(
        "numbers-given-twice-after-a-start",
        f"{_KV}/sequence.py",
        "max(first, highest_used + 1)",
        "first",
        ("tests/server/kv/test_parts.py",),
    ),
    Mutant(
        "uncommitted-changes-kept-after-a-cut",
        f"{_KV}/tablet.py",
        "        while self._pending and self._pending[-1].end_offset > end_offset:\n"
        "            self.store.budget.count_uncommitted(-self._pending.pop().size_bytes)\n",
        "",
        _UNCOMMITTED,
    ),
)
"""Bugs in what is on disk, and in what a start makes of it: the simulation must find most of them by itself."""

MUTANTS: tuple[Mutant, ...] = (
    *DURABILITY,
    Mutant(
        "clock-believed-at-a-start",
        "src/fluss/server/server.py",
        "            self.clock.resume(*(self._data_dir.clock_state() or (newest, newest, 0)))\n",
        "",
        ("tests/server/test_clock.py",),
    ),
    Mutant(
        "time-falls-within-a-segment",
        f"{_LOG}/tablet.py",
        "falls=timestamp < self.max_timestamp",
        "falls=False",
        ("tests/server/test_clock.py",),
    ),
    Mutant(
        "disk-waited-for-while-sending",
        "src/fluss/server/channel.py",
        "not first.is_cached(_SEND_BYTES_MAX)",
        "False",
        ("tests/server/test_cold_reads.py",),
    ),
    # -- retention --------------------------------------------------------------------------------------------------
    Mutant(
        "expired-file-deleted-before-the-recovery-point",
        f"{_LOG}/segment.py",
        "        while self._segments and self._segments[0].end_offset <= self.recorded_start:",
        "        while self._segments:",
        _RETENTION,
    ),
    Mutant(
        "changelog-expires-beyond-the-snapshot",
        f"{_SERVER}/tablets.py",
        "            limit = min(limit, self.snapshot_offset_of(log.bucket))\n",
        "            pass\n",
        _SNAPSHOTS,
    ),
    Mutant(
        "log-expires-before-it-is-tiered",
        f"{_SERVER}/tablets.py",
        "            limit = min(limit, self._catalog.lake_end_offset(log.bucket) or 0)\n",
        "            pass\n",
        _RETENTION,
    ),
    Mutant(
        "log-expires-before-it-is-copied",
        f"{_SERVER}/tablets.py",
        "            limit = min(limit, max(log.remote.copied_end, log.start_offset))\n",
        "            pass\n",
        _REMOTE,
    ),
    Mutant(
        "leased-snapshot-removed",
        f"{_KV}/snapshotter.py",
        "if not self.leases.is_leased(snapshots.bucket, found.snapshot_id)]",
        "if True]",
        (*_LEASES, *_SNAPSHOTS),
    ),
    Mutant(
        "leases-not-saved",
        f"{_KV}/snapshotter.py",
        "        disk.write_atomically(self._path,",
        "        (self._path,",
        _LEASES,
    ),
    Mutant(
        "lease-of-too-many-snapshots",
        f"{_KV}/snapshotter.py",
        "                if count >= limit:",
        "                if False:",
        _LEASES,
    ),
    Mutant(
        "shared-file-of-a-kept-snapshot-removed",
        f"{_KV}/snapshots.py",
        "                    if file.path not in needed:\n                        self._files.remove_file(file.path)",
        "                    if True:\n                        self._files.remove_file(file.path)",
        _SNAPSHOTS,
    ),
    # -- reads ------------------------------------------------------------------------------------------------------
    Mutant(
        "uncommitted-rows-are-read",
        f"{_LOG}/tablet.py",
        "        return self.committed_position if segment is committed else segment.size_bytes",
        "        return segment.size_bytes",
        (*_TABLET, *_READER),
    ),
    Mutant(
        "high-watermark-one-behind",
        f"{_LOG}/tablet.py",
        "        self.high_watermark = plan.offset\n",
        "        self.high_watermark = plan.offset - 1\n",
        _COMMIT,
    ),
    Mutant(
        "segment-search-off-by-one",
        f"{_LOG}/tablet.py",
        "segments[bisect_right(segments, offset,",
        "segments[bisect_right(segments, offset - 1,",
        (*_READER, *_TABLET),
    ),
    Mutant(
        "fetch-beyond-the-end-accepted",
        f"{_LOG}/reader.py",
        " or offset > tablet.end_offset:",
        ":",
        (*_READER, *_HANDLERS_LOG),
    ),
    Mutant(
        "damaged-batch-served",
        f"{_LOG}/reader.py",
        "                    _check_crc(segment, view, span, position)\n",
        "                    pass\n",
        (*_READER, "tests/server/test_log_tablet.py"),
    ),
    Mutant(
        "fetches-not-woken",
        f"{_LOG}/tablet.py",
        "        self.commit_waiters.serve(plan.offset)\n        self.wake_fetches()\n",
        "        self.commit_waiters.serve(plan.offset)\n",
        _HANDLERS_LOG,
    ),
    Mutant(
        "lookup-sees-uncommitted-rows",
        f"{_KV}/tablet.py",
        "        while self._pending and self._pending[0].end_offset <= offset:",
        "        while self._pending:",
        _UNCOMMITTED,
    ),
    Mutant(
        "changes-in-flight-not-seen-by-writes",
        f"{_KV}/tablet.py",
        "                if key in changes:\n                    found[i] = changes[key]",
        "                if False:\n                    found[i] = changes[key]",
        _UNCOMMITTED,
    ),
    Mutant(
        "delete-leaves-the-row",
        f"{_KV}/changes.py",
        "    for i in np.flatnonzero(deletes).tolist():\n        values[i] = None\n",
        "",
        _CHANGELOG,
    ),
    Mutant(
        "delete-not-in-the-changelog",
        f"{_KV}/changes.py",
        "np.where(deletes[records_old], DELETE, UPDATE_BEFORE)",
        "np.where(deletes[records_old], UPDATE_BEFORE, UPDATE_BEFORE)",
        _CHANGELOG,
    ),
    Mutant(
        "changelog-rows-swapped",
        f"{_KV}/changes.py",
        "    old_at = (ends - 1 - records_new)[records_old]\n    new_at = (ends - 1)[records_new]\n",
        "    old_at = (ends - 1)[records_old]\n    new_at = (ends - 1 - (records_old & records_new))[records_new]\n",
        ("tests/server/kv/test_changelog_order.py",),
    ),
    Mutant(
        "older-version-wins",
        f"{_KV}/merge.py",
        "(after is not None and after >= before)",
        "(after is not None and after <= before)",
        _CHANGELOG,
    ),
    Mutant(
        "partial-update-clears-other-columns",
        f"{_KV}/merge.py",
        "        row = list(old)\n        for index in chosen:\n            row[index] = new[index]\n",
        "        row = list(new)\n        for index in chosen:\n            row[index] = new[index]\n",
        _CHANGELOG,
    ),
    # -- routing ----------------------------------------------------------------------------------------------------
    Mutant(
        "bucket-of-a-key-shifted",
        "src/fluss/rows/bucketing.py",
        "    return bucket_hash(key, lake_format, variant) % num_buckets",
        "    return (bucket_hash(key, lake_format, variant) + 1) % num_buckets",
        _BUCKETING,
    ),
    Mutant(
        "buckets-of-columns-not-scrambled",
        "src/fluss/rows/bucketing.py",
        "scrambles(fluss_hashes(keys, variant)).astype(np.int64)",
        "np.abs(fluss_hashes(keys, variant).astype(np.int64))",
        _BUCKETING,
    ),
    Mutant(
        "iceberg-bucket-keeps-the-sign",
        "src/fluss/rows/bucketing.py",
        "    return murmur3_32(key) & 0x7FFF_FFFF\n",
        "    return abs(murmur3_32(key))\n",
        _BUCKETING,
    ),
    # -- authorization ----------------------------------------------------------------------------------------------
    Mutant(
        "produce-needs-only-read",
        f"{_SERVER}/handlers/rights.py",
        "(apis.PRODUCE_LOG, Need(Scope.TABLE_ID, _WRITE, Effect.PART))",
        "(apis.PRODUCE_LOG, Need(Scope.TABLE_ID, _READ, Effect.PART))",
        _RIGHTS,
    ),
    Mutant(
        "lookup-needs-nothing-to-insert",
        f"{_SERVER}/handlers/rights.py",
        "Effect.PART, writing=_WRITE)",
        "Effect.PART, writing=_READ)",
        _RIGHTS,
    ),
    Mutant(
        "drop-table-needs-only-describe",
        f"{_SERVER}/handlers/rights.py",
        "(apis.DROP_TABLE, Need(Scope.TABLE, _DROP))",
        "(apis.DROP_TABLE, Need(Scope.TABLE, _DESCRIBE))",
        _RIGHTS,
    ),
    Mutant(
        "rules-of-other-hosts-apply",
        f"{_CATALOG}/acl.py",
        " or acl.host not in (WILDCARD, host):",
        ":",
        (*_ACLS, *_RIGHTS),
    ),
    Mutant(
        "any-right-includes-all",
        f"{_CATALOG}/acl.py",
        "or operation is OperationType.DESCRIBE",
        "or operation is not OperationType.ALTER",
        (*_ACLS, *_RIGHTS),
    ),
    Mutant(
        "damaged-rules-open-the-door",
        f"{_CATALOG}/acl.py",
        '        self.enabled = bool(config.boolean("authorizer.enabled"))',
        '        self.enabled = bool(config.boolean("authorizer.enabled")) and store.damage is None',
        ("tests/server/catalog/test_damage.py",),
    ),
    Mutant(
        "rule-change-needs-the-table-only",
        f"{_CATALOG}/acl.py",
        "        if resource.type is ResourceType.TABLE:\n            resource = ",
        "        if False:\n            resource = ",
        (*_ACLS, *_RIGHTS),
    ),
    # -- limits -----------------------------------------------------------------------------------------------------
    Mutant(
        "request-memory-without-limit",
        f"{_SERVER}/memory.py",
        "        return self.taken_bytes + size_bytes <= self.limit_bytes or not self.large_bytes",
        "        return True",
        _MEMORY,
    ),
    Mutant(
        "answers-without-limit",
        f"{_SERVER}/memory.py",
        "        return not self.reserved_bytes or self.held_bytes",
        "        return True or self.held_bytes",
        _MEMORY,
    ),
    Mutant(
        "waiting-frame-overtaken",
        f"{_SERVER}/memory.py",
        "        wanted = self._next()[1]",
        "        wanted = 0",
        _MEMORY,
    ),
    Mutant(
        "guessing-passwords-is-free",
        f"{_SERVER}/auth.py",
        "        excess = failures - _FREE_FAILURES",
        "        excess = 0",
        _THROTTLE,
    ),
    Mutant(
        "answer-of-any-size",
        f"{_KV}/tablet.py",
        "        if size_bytes > bytes_max:",
        "        if False:",
        _SCHEDULER,
    ),
    Mutant(
        "memory-of-one-user-without-limit",
        f"{_SERVER}/memory.py",
        "        return user is None or not held or held + size_bytes <= self.limit_bytes * USER_SHARE",
        "        return True",
        _QUOTAS,
    ),
    Mutant(
        "connections-of-a-user-without-limit",
        f"{_SERVER}/connections.py",
        "        if limit is None or held < limit or",
        "        if True or held < limit or",
        _QUOTAS,
    ),
    Mutant(
        "quota-paid-by-a-new-connection",
        f"{_SERVER}/scheduler.py",
        "        found = self._usages.get(owner)\n",
        "        found = None\n",
        _QUOTAS,
    ),
    Mutant(
        "threads-are-free",
        f"{_SERVER}/scheduler.py",
        "            self.charge(sum(spent))",
        "            self.charge(0.0)",
        _SCHEDULER,
    ),
    Mutant(
        "a-user-without-time-is-read-from",
        f"{_SERVER}/channel.py",
        "        if self.share.may_run:\n            self._do(self._read)",
        "        if True:\n            self._do(self._read)",
        ("tests/server/test_channel.py",),
    ),
    # -- tiering ----------------------------------------------------------------------------------------------------
    Mutant(
        "lake-offset-ahead-of-the-log",
        f"{_CATALOG}/lake.py",
        "            if end is not None and offset > end:",
        "            if False:",
        _RIGHTS,
    ),
    Mutant(
        "lake-offsets-of-other-buckets-lost",
        f"{_CATALOG}/lake.py",
        "        merged = {**known, **offsets}",
        "        merged = dict(offsets)",
        _HANDLERS_LAKE,
    ),
    Mutant(
        "lake-end-falls-back",
        f"{_CATALOG}/lake_snapshots.py",
        "            ends[bucket] = max(offset, ends.get(bucket, offset))",
        "            ends[bucket] = offset",
        _HANDLERS_LAKE,
    ),
    Mutant(
        "offsets-file-of-another-table",
        f"{_CATALOG}/lake_snapshots.py",
        '    if document.get("table_id") != table_id:',
        "    if False:",
        _HANDLERS_LAKE,
    ),
    # -- the ledger of Spark ----------------------------------------------------------------------------------------
    Mutant(
        "ledger-forgets-attempts",
        "src/fluss/spark/ledger.py",
        'if row["batch"] == batch:\n                state',
        "if False:\n                state",
        _LEDGER,
    ),
    Mutant(
        "ledger-batch-not-complete",
        "src/fluss/spark/ledger.py",
        "        self._client.run(self._note(Delivery(query, COMMITTED, COMMITTED), COMMITTED, str(batch)).wait())\n",
        "",
        _LEDGER,
    ),
    Mutant(
        "rows-of-other-writers-left-out",
        "src/fluss/spark/written_rows.py",
        "            if found.writer_id in writers:",
        "            if True:",
        _LEDGER,
    ),
    Mutant(
        "equal-rows-left-out-too-often",
        "src/fluss/spark/written_rows.py",
        "        found[order] = enough\n",
        "",
        _LEDGER,
    ),
)
