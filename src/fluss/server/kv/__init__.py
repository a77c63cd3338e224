# SPDX-License-Identifier: Apache-2.0
"""Primary-key tables: rows by key, the changes that writes make, and the changelog that tells of them."""

from fluss.server.kv.service import Kv
from fluss.server.kv.tablet import KvTablet

__all__ = ["Kv", "KvTablet"]
