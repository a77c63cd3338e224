# SPDX-License-Identifier: Apache-2.0
"""Fluss for Python people: client, embedded server and Spark pipeline for Apache Fluss tables.

The public names stand in `_exports.py`.
"""

from fluss import _exports, _plugins

_plugins.provide("client.lake", "fluss.lake.union")
_plugins.provide("server.lake", "fluss.lake.registry")

__getattr__, __dir__, __all__ = _exports.lazy(__name__)
