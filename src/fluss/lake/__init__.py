# SPDX-License-Identifier: Apache-2.0
"""The lake: tables of Paimon, Iceberg, Lance or Delta behind one small interface, filled from Fluss, read with it."""

from fluss._lazy import lazy_names

# Loaded at first use: a server that only creates lake tables needs no client.
NAMES = {
    "fluss.lake.api": "LakeTableChangedError",
    "fluss.lake.layout": "LakeConfig lake_config",
    "fluss.lake.registry": "open_lake",
    "fluss.lake.service": "TieringService",
    "fluss.lake.union": "plan_union read_union_split union_read",
}

__getattr__, __all__ = lazy_names(__name__, NAMES)
