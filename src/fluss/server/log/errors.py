# SPDX-License-Identifier: Apache-2.0
"""Damage on disk."""

from __future__ import annotations

from fluss.errors import UnknownServerError


class DamagedLogError(UnknownServerError):
    """Bytes of a log file are not what was written.

    The code is -1 and not one of the storage codes: clients retry those, and a retry does not repair a file.
    """
