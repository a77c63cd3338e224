# SPDX-License-Identifier: Apache-2.0
"""How the server reaches the lake: by name, in a thread, and what becomes of errors."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.lake.support import ROW

from fluss import Schema, TableDescriptor, TablePath
from fluss.errors import InvalidTableError, LakeTableAlreadyExistError, UnknownServerError
from fluss.metadata import Column, DataTypes
from fluss.server.catalog.lake_hook import LakeHook

PATH = TablePath("d", "t")
DESCRIPTOR = TableDescriptor(Schema(ROW), bucket_count=1)


def hook(lake_format: str | None, **options: str) -> LakeHook:
    current = SimpleNamespace(with_prefix=lambda prefix: {prefix + name: value for name, value in options.items()})
    configs: Any = SimpleNamespace(lake_format=lake_format, current=current)
    return LakeHook(configs)


def create(one: LakeHook, descriptor: TableDescriptor = DESCRIPTOR) -> None:
    asyncio.run(one.create_table(PATH, descriptor, must_be_empty=True))


def test_unknown_formats_and_missing_options_create_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    create(hook(None, warehouse=str(tmp_path)))
    create(hook("paimon"))
    create(hook("hudi", warehouse=str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lake_format", ["paimon", "iceberg"])
def test_tables_and_columns(lake_format: str, tmp_path: Path) -> None:
    one = hook(lake_format, warehouse=str(tmp_path))
    column = Column("extra", DataTypes.int())
    asyncio.run(one.add_columns(PATH, [column]))  # no table yet: left to the tiering service
    create(one)
    create(one)
    asyncio.run(one.add_columns(PATH, [column]))
    asyncio.run(one.add_columns(PATH, [column]))
    other = TableDescriptor(Schema(ROW, primary_keys=["id"]), bucket_count=1, bucket_keys=["id"])
    with pytest.raises(LakeTableAlreadyExistError, match="does not fit"):
        asyncio.run(one.create_table(PATH, other, must_be_empty=False))


def test_errors_stop_the_table(tmp_path: Path) -> None:
    with pytest.raises(InvalidTableError, match="hadoop"):
        create(hook("iceberg", type="hadoop", warehouse=str(tmp_path)))
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(UnknownServerError, match="The lake failed"):
        create(hook("paimon", warehouse=str(blocked)))


def test_a_server_without_the_packages_leaves_it_to_the_tiering_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "fluss.lake.paimon", None)
    one = hook("paimon", warehouse=str(tmp_path))
    with caplog.at_level(logging.WARNING):
        create(one)
        create(one)
    assert [record.message for record in caplog.records if "tiering service" in record.message] != []
    assert len(caplog.records) == 1, "said once"
    assert list(tmp_path.iterdir()) == []
