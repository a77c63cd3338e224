# SPDX-License-Identifier: Apache-2.0
"""Arrow tables as data frames; the libraries are imported when they are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from fluss.errors import MissingDependencyError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """The table as a pandas DataFrame."""
    try:
        import pandas  # noqa: F401 - only to say clearly that it is missing
    except ImportError:
        raise MissingDependencyError("to_pandas() needs pandas: pip install 'fluss-python[pandas]'") from None
    return table.to_pandas()


def to_polars(table: pa.Table) -> pl.DataFrame:
    """The table as a polars DataFrame."""
    try:
        import polars
    except ImportError:
        raise MissingDependencyError("to_polars() needs polars: pip install 'fluss-python[polars]'") from None
    frame = polars.from_arrow(table)
    assert isinstance(frame, polars.DataFrame)
    return frame
