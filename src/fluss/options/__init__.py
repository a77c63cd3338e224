# SPDX-License-Identifier: Apache-2.0
"""One engine for the options of the client, the server, Spark and tables.

Each of them is a table of rows: key, type, default, meaning, aliases, and whether it can change at run time. Parsing,
error messages, suggestions for misspelt keys and the tables of docs/configuration.md follow from the rows.
"""

from __future__ import annotations

from fluss.options.table import REDACTED, Option, OptionTable
from fluss.options.types import (
    DAY_MS,
    GB,
    HOUR_MS,
    INT_MAX,
    INT_MIN,
    KB,
    LONG_MAX,
    MB,
    MINUTE_MS,
    SECOND_MS,
    Addresses,
    Boolean,
    Choice,
    Duration,
    Names,
    Number,
    OptionType,
    Pairs,
    Size,
    Text,
    Whole,
    parse_duration_ms,
    parse_memory_size,
    split_addresses,
)

__all__ = [
    "DAY_MS",
    "GB",
    "HOUR_MS",
    "INT_MAX",
    "INT_MIN",
    "KB",
    "LONG_MAX",
    "MB",
    "MINUTE_MS",
    "REDACTED",
    "SECOND_MS",
    "Addresses",
    "Boolean",
    "Choice",
    "Duration",
    "Names",
    "Number",
    "Option",
    "OptionTable",
    "OptionType",
    "Pairs",
    "Size",
    "Text",
    "Whole",
    "parse_duration_ms",
    "parse_memory_size",
    "split_addresses",
]
