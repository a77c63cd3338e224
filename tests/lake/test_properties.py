# SPDX-License-Identifier: Apache-2.0
"""Properties of a table reach the library of its lake only if they are on the list of the format."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.lake.support import PACKAGES, ROW, LakeHarness, every_format, row
from tests.lake.test_hook import PATH, create, hook

from fluss import Schema, TableDescriptor, TablePath
from fluss.errors import ConfigError, FlussError, InvalidConfigError
from fluss.lake.api import LakeTableChangedError
from fluss.lake.layout import LakeConfig
from fluss.lake.registry import open_lake
from fluss.lake.tasks import LakeSession
from fluss.metadata import TableInfo

FORBIDDEN = [
    ("iceberg", "write.py-location-provider.impl", "planted.run"),
    ("iceberg", "py-io-impl", "planted.run"),
    ("iceberg", "s3.retry-strategy-impl", "planted.run"),
    ("iceberg", "s3.endpoint", "http://127.0.0.1:1"),
    ("iceberg", "write.data.path", "{outside}"),
    ("iceberg", "write.metadata.path", "{outside}"),
    ("iceberg", "write.object-storage.path", "{outside}"),
    ("paimon", "data-file.external-paths", "file://{outside}"),
    ("paimon", "data-file.path-directory", "../../../outside"),
    ("paimon", "data-file.prefix", "../../../../outside/data-"),
    ("paimon", "path", "{outside}"),
    ("paimon", "branch", "../../../outside"),
    ("paimon", "local-cache.dir", "{outside}"),
    ("paimon", "commit.callbacks", "planted.run"),
    ("paimon", "file.format", "planted.run"),
    ("lance", "endpoint", "http://127.0.0.1:1"),
    ("delta", "endpoint_url", "http://127.0.0.1:1"),
    ("delta", "constraints.c", "id > 0"),
]
ALLOWED = {
    "paimon": {"target-file-size": "64 mb", "file.compression": "zstd"},
    "iceberg": {"write.target-file-size-bytes": "1048576", "write.parquet.compression-codec": "snappy"},
    "lance": {"max_row_per_file": "1000"},
    "delta": {"checkpointInterval": "5", "logRetentionDuration": "interval 30 days"},
}


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that a library can import; the test sees whether it did."""
    (tmp_path / "planted.py").write_text("def run(*arguments, **more):\n    raise SystemExit('planted code ran')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("planted", None)
    return "planted"


def descriptor(**custom_properties: str) -> TableDescriptor:
    return TableDescriptor(
        Schema(ROW), bucket_count=1, properties={"table.datalake.enabled": "true"}, custom_properties=custom_properties
    )


@pytest.mark.parametrize(("lake_format", "name", "value"), FORBIDDEN, ids=lambda text: str(text)[:40])
def test_the_lake_gets_no_other_property(lake_format: str, name: str, value: str, tmp_path: Path, planted: str) -> None:
    pytest.importorskip(PACKAGES[lake_format])
    key, outside = f"{lake_format}.{name}", tmp_path / "outside"
    forbidden = descriptor(**{key: value.format(outside=outside)})
    with pytest.raises(InvalidConfigError) as caught:
        create(hook(lake_format, warehouse=str(tmp_path / "warehouse")), forbidden)
    assert key in caught.value.message
    assert planted not in sys.modules
    assert not outside.exists()


@every_format
def test_a_table_cannot_be_created_or_altered_with_them(lake: LakeHarness) -> None:
    lake_format = lake.lake_format
    name, value = next((name, value) for one, name, value in FORBIDDEN if one == lake_format)
    with pytest.raises(InvalidConfigError, match=rf"{lake_format}\.{name}"):
        lake.create("refused", **{f"{lake_format}.{name}": value})
    allowed = {f"{lake_format}.{name}": value for name, value in ALLOWED[lake_format].items()}
    path = lake.create("t", **allowed)
    for key, text in ((f"{lake_format}.{name}", value), (next(iter(allowed)), "-7")):
        with pytest.raises(InvalidConfigError, match=key):
            lake.session.run(lake.session.admin.alter_table(path, set_properties={key: text}))
    lake.append(path, [row(i) for i in range(10)])
    assert lake.tier(path).rows == 10
    assert lake.alone(path).num_rows == 10


def test_a_misspelt_property_is_answered_with_the_nearest(lake: LakeHarness) -> None:
    near = next(iter(ALLOWED[lake.lake_format]))
    with pytest.raises(InvalidConfigError, match=f"did you mean '{lake.lake_format}.{near}'"):
        lake.create("t", **{f"{lake.lake_format}.{near}s": "64"})


class OldServer(LakeSession):
    """A session that finds a property on every table, as one of a server that took any."""

    extra: dict[str, str]

    def info(self, path: TablePath) -> TableInfo:
        info = super().info(path)
        return replace(info, descriptor=info.descriptor.replace(custom_properties=self.extra))


@every_format
def test_tiering_refuses_tables_that_have_them_already(lake: LakeHarness) -> None:
    path = lake.create("t")
    lake.append(path, [row(1)])
    name, value = next((name, value) for one, name, value in FORBIDDEN if one == lake.lake_format)
    session = OldServer(lake.client)
    session.extra = {f"{lake.lake_format}.{name}": value}
    try:
        lake.session.close()
        lake.session = session
        with pytest.raises(FlussError, match=rf"{lake.lake_format}\.{name}") as caught:
            lake.tier(path)
        assert caught.value.table == str(path)
        assert "alter" in (caught.value.hint or "")
        with pytest.raises(FlussError, match=name):
            lake.union(path, lake_only=True, snapshot_id=1)
    finally:
        session.extra = {}
    assert lake.tier(path).rows == 1


@pytest.mark.parametrize("name", ["py-catalog-impl", "py-io-impl", "s3.retry-strategy-impl"])
def test_options_of_a_catalog_name_no_python_to_import(name: str, tmp_path: Path, planted: str) -> None:
    pytest.importorskip("pyiceberg")
    with pytest.raises(ConfigError, match=name):
        open_lake(LakeConfig("iceberg", {"warehouse": str(tmp_path), name: f"{planted}.run"}))
    assert planted not in sys.modules


def test_a_file_io_of_the_library_itself_may_be_chosen(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    options = {"warehouse": str(tmp_path), "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
    with open_lake(LakeConfig("iceberg", options)) as lake:
        lake.create_table(PATH, descriptor(), must_be_empty=True)


def _iceberg_path(warehouse: Path, outside: Path) -> None:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("fluss", type="sql", uri=f"sqlite:///{warehouse}/catalog.db", warehouse=str(warehouse))
    with catalog.load_table(("d", "t")).transaction() as change:
        change.set_properties({"write.data.path": str(outside)})
    catalog.close()


def _paimon_path(warehouse: Path, outside: Path) -> None:
    from pypaimon import CatalogFactory
    from pypaimon.schema.schema_change import SchemaChange

    catalog = CatalogFactory.create({"warehouse": str(warehouse)})
    paths = SchemaChange.set_option("data-file.external-paths", f"file://{outside}")
    strategy = SchemaChange.set_option("data-file.external-paths.strategy", "round-robin")
    catalog.alter_table("d.t", [paths, strategy])


@pytest.mark.parametrize(("lake_format", "alter"), [("iceberg", _iceberg_path), ("paimon", _paimon_path)])
def test_a_lake_elsewhere_is_not_written(lake_format: str, alter: Callable[[Path, Path], None], tmp_path: Path) -> None:
    pytest.importorskip(PACKAGES[lake_format])
    opened: AbstractContextManager = open_lake(LakeConfig(lake_format, {"warehouse": str(tmp_path)}))
    with opened as lake:
        lake.create_table(PATH, descriptor(), must_be_empty=True)
        alter(tmp_path, tmp_path / "outside")
        info = TableInfo(PATH, 1, 1, descriptor(), 0, 0)
        with pytest.raises(LakeTableChangedError, match=r"path.*not safe"):
            lake.table(PATH).check(info)
