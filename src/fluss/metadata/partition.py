# SPDX-License-Identifier: Apache-2.0
"""Partitions: specs, names and the text form of values."""

from __future__ import annotations
