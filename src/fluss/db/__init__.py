# SPDX-License-Identifier: Apache-2.0
"""The high-level API: `fluss.connect()` and what it gives. Synchronous in `fluss`, coroutines in `fluss.aio`."""
