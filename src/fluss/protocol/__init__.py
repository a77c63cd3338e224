# SPDX-License-Identifier: Apache-2.0
"""The wire protocol without any I/O: messages, the API table, frames, codecs for messages with records."""

from __future__ import annotations

from fluss.protocol import fluss_pb2 as messages
from fluss.protocol.apis import APIS, Api, ServerType, api_name

__all__ = ["APIS", "Api", "ServerType", "api_name", "messages"]
