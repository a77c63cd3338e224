# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.simulation.disk import SimDisk

from fluss.server.catalog.documents import DamagedDocumentError, DocumentStore, decode_document, encode_document

IDENTITY = {"kind": "table", "id": 7, "database": "d", "table": "t"}
CONTENT = {"descriptor": {"comment": "grüße 北京"}, "schemas": {"1": [1, 2, None]}}


def test_round_trip() -> None:
    assert decode_document(encode_document(IDENTITY, CONTENT), Path("x")) == (IDENTITY, CONTENT)


def test_every_flipped_bit_is_noticed() -> None:
    document = encode_document(IDENTITY, CONTENT)
    for position in range(len(document)):
        for bit in range(8):
            damaged = bytearray(document)
            damaged[position] ^= 1 << bit
            with pytest.raises(DamagedDocumentError):
                decode_document(bytes(damaged), Path("x"))


def test_every_cut_is_noticed_and_a_damaged_content_keeps_the_identity() -> None:
    document = encode_document(IDENTITY, CONTENT)
    content_starts = document.index(b"\n") + 1
    for end in range(len(document)):
        with pytest.raises(DamagedDocumentError) as caught:
            decode_document(document[:end], Path("x"))
        if end >= content_starts:
            assert caught.value.damage.identity == IDENTITY
    flipped = document[:content_starts] + b"0" + document[content_starts + 1 :]
    with pytest.raises(DamagedDocumentError) as caught:
        decode_document(flipped, Path("x"))
    assert caught.value.damage.identity == IDENTITY


@given(st.binary(max_size=200))
def test_any_bytes_are_an_error_of_our_own(data: bytes) -> None:
    with pytest.raises(DamagedDocumentError):
        decode_document(data, Path("x"))


def test_a_document_that_was_written_survives_a_loss_of_power(tmp_path: Path) -> None:
    for seed in range(40):
        with SimDisk.of_seed(tmp_path, seed) as (root, sim):
            store = DocumentStore(root)
            store.write(root / "a.doc", IDENTITY, {"n": 1})
            store.write(root / "a.doc", IDENTITY, {"n": 2})
            store.write(root / "b.doc", IDENTITY, {"n": 3})
            store.delete(root / "b.doc")
            sim.lose_power()
            assert store.read(root / "a.doc")[1] == {"n": 2}
            assert not (root / "b.doc").exists()


def test_the_version_before_is_kept(tmp_path: Path) -> None:
    store = DocumentStore(tmp_path)
    path = tmp_path / "a.doc"
    store.write(path, IDENTITY, {"n": 1})
    store.write(path, IDENTITY, {"n": 2})
    assert store.read(path)[1] == {"n": 2}
    assert store.read(tmp_path / "a.doc.prev")[1] == {"n": 1}
    store.write(path, IDENTITY, {"n": 3})
    assert store.read(tmp_path / "a.doc.prev")[1] == {"n": 2}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.doc", "a.doc.prev"]
    store.delete(path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_document_is_damage(tmp_path: Path) -> None:
    with pytest.raises(DamagedDocumentError, match="missing"):
        DocumentStore(tmp_path).read(tmp_path / "a.doc")
