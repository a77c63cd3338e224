# SPDX-License-Identifier: Apache-2.0
"""Fluss for asyncio programs: `import fluss.aio as fluss`.

The names are those of `fluss` (see `_exports.py`); every call that waits is a coroutine, and everything runs on the
caller's own event loop.
"""

from fluss import _exports

__getattr__, __dir__, __all__ = _exports.lazy(__name__)
