# SPDX-License-Identifier: Apache-2.0
"""Which cases a run of the benchmarks measures."""

from __future__ import annotations

from benchmarks.harness import Settings


def test_a_case_is_wanted_by_any_part_of_a_name() -> None:
    settings = Settings(cases=["over tls", "append dict rows"])
    assert settings.wanted("append over TLS against plain, zstd")
    assert settings.wanted("lookup, 64 at a time", "append dict rows")
    assert not settings.wanted("append tuple rows", "lookup, 64 at a time")


def test_all_cases_are_wanted_where_none_is_named() -> None:
    assert Settings().wanted("append tuple rows")
