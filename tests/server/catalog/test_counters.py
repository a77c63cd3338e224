# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import logging
from pathlib import Path

import pytest

from fluss.server.catalog.documents import BLOCK_SIZES, Counters, DocumentStore


def counters(folder: Path, *, fresh: bool = False) -> Counters:
    return Counters(DocumentStore(folder), folder / "counters.doc", fresh=fresh)


def test_numbers_start_at_zero_and_rise(tmp_path: Path) -> None:
    ids = counters(tmp_path, fresh=True)
    assert [ids.take("table_id") for _ in range(100)] == list(range(100))
    assert ids.take("partition_id") == 0


def test_a_clean_restart_goes_on_without_a_gap(tmp_path: Path) -> None:
    ids = counters(tmp_path, fresh=True)
    for _ in range(5):
        ids.take("writer_id")
    ids.close()
    assert counters(tmp_path).take("writer_id") == 5


def test_a_crash_skips_the_rest_of_the_block(tmp_path: Path) -> None:
    ids = counters(tmp_path, fresh=True)
    given = {ids.take("writer_id") for _ in range(5)}
    after = counters(tmp_path)
    assert after.take("writer_id") == BLOCK_SIZES["writer_id"]
    assert after.take("writer_id") not in given


def test_a_block_is_one_write(tmp_path: Path) -> None:
    ids = counters(tmp_path, fresh=True)
    ids.take("writer_id")
    before = (tmp_path / "counters.doc").stat().st_mtime_ns
    for _ in range(BLOCK_SIZES["writer_id"] - 1):
        ids.take("writer_id")
    assert (tmp_path / "counters.doc").stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", ["flip", "cut", "delete", "both"])
def test_a_damaged_document_repeats_no_number(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    ids = counters(tmp_path, fresh=True)
    given = {ids.take("table_id") for _ in range(100)}
    document = tmp_path / "counters.doc"
    if damage == "flip":
        data = bytearray(document.read_bytes())
        data[-5] ^= 1
        document.write_bytes(data)
    elif damage == "cut":
        document.write_bytes(document.read_bytes()[:10])
    else:
        document.unlink()
        if damage == "both":
            (tmp_path / "counters.doc.prev").unlink()
    with caplog.at_level(logging.ERROR):
        after = counters(tmp_path)
    assert after.damage is not None
    assert "counters.doc" in caplog.text
    assert not given & {after.take("table_id") for _ in range(100)}


def test_ids_found_on_disk_are_respected(tmp_path: Path) -> None:
    ids = counters(tmp_path, fresh=True)
    ids.at_least("table_id", 41)
    assert ids.take("table_id") == 41
    assert counters(tmp_path).take("table_id") > 41
