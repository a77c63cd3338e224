# SPDX-License-Identifier: Apache-2.0
"""`FlussAdmin`: administration of a cluster, its databases and its tables."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from fluss.client.admin.balance import BalanceAdmin
from fluss.client.admin.catalog import CatalogAdmin
from fluss.client.admin.lake import LakeAdmin
from fluss.client.admin.leases import LeaseAdmin
from fluss.client.admin.security import SecurityAdmin


class FlussAdmin(CatalogAdmin, SecurityAdmin, LakeAdmin, LeaseAdmin, BalanceAdmin):
    """Administration of a cluster. Obtain it with `conn.get_admin()`, awaited or not: awaiting gives it itself."""

    def __await__(self) -> Generator[Any, None, FlussAdmin]:
        return self
        yield

    def __repr__(self) -> str:
        return f"FlussAdmin(bootstrap_servers={self._runner.cluster.config.bootstrap_servers!r})"
