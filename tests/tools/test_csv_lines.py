# SPDX-License-Identifier: Apache-2.0
"""The lines of rejected rows of CSV files, counted as an editor counts them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.metadata import Column
from fluss.metadata import types as t
from fluss.tools import row_files
from fluss.tools.csv_lines import CsvText
from fluss.tools.row_files import RowFile

COLUMNS = [Column("id", t.BigIntType()), Column("item", t.StringType())]
GOOD = ["1,tea", '2,"tea, ""black"""', '"3",', '4,5" pipe', '5,"two\nlines"', '6,"\n\nfour\r\nlines"', '7,"one\rmore"']
BAD = ["x,tea", '"x","two\nlines"', "8", '"9\n\n"', '"x\n","\r\n\n"']
EMPTY = [""]

texts = st.lists(st.sampled_from(GOOD + BAD + EMPTY * 6), max_size=30)


def written(texts: list[str], end: str) -> tuple[str, list[int]]:
    """A file of these rows and empty lines, and the lines of the bad ones."""
    file, bad = f"id,item{end}", []
    for text in texts:
        if text in BAD:
            bad.append(len(file.replace("\r\n", "\n").replace("\r", "\n").split("\n")))
        file += f"{text}{end}"
    return file, bad


@given(texts=texts, end=st.sampled_from(["\n", "\r\n"]), block=st.sampled_from([40, 100, 1 << 20]), data=st.data())
def test_lines_are_those_of_an_editor(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], end: str, block: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("lines") / "rows.csv"
    content, bad = written(texts, end)
    path.write_bytes(content.encode())
    rows = [text for text in texts if text]
    skip = data.draw(st.integers(0, len(rows)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_files, "_CSV_BLOCK_BYTES", block)
        pieces = list(RowFile(str(path), COLUMNS).pieces(skip))
    left = sum(text in BAD for text in rows[skip:])
    assert [one.line for piece in pieces for one in piece.bad] == bad[len(bad) - left :]
    assert sum(piece.batch.num_rows for piece in pieces) == len(rows) - skip - left


def test_an_empty_line_of_a_single_column_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id\n1\n\n\nx\n\ny\n")
    (piece,) = RowFile(str(path), COLUMNS[:1]).pieces()
    assert [(one.line, one.row) for one in piece.bad] == [(5, 3), (7, 5)]
    assert piece.batch.num_rows == 4


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_empty_lines_that_are_rows_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes) -> None:
    texts: list[CsvText] = []

    def kept(*arguments: object) -> CsvText:
        texts.append(CsvText(*arguments))  # type: ignore[arg-type]
        return texts[-1]

    monkeypatch.setattr(row_files, "CsvText", kept)
    path = tmp_path / "rows.csv"
    path.write_bytes(b"id" + end + 50_000 * end)
    assert sum(piece.batch.num_rows for piece in RowFile(str(path), COLUMNS[:1]).pieces()) == 50_000
    assert [len(text.empty_lines) for text in texts] == [0]
