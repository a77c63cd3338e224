# SPDX-License-Identifier: Apache-2.0
"""Writing: rows are collected, converted to columns, cut into batches and sent to the leaders of their buckets."""

from fluss.client.write.append import AppendWriter
from fluss.client.write.handle import WriteResultHandle
from fluss.client.write.sender import Sender
from fluss.client.write.upsert import UpsertWriter

__all__ = ["AppendWriter", "Sender", "UpsertWriter", "WriteResultHandle"]
