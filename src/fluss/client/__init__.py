# SPDX-License-Identifier: Apache-2.0
"""The client. Its core is asynchronous; `fluss.aio` exposes it as it is, `fluss` runs it on a background loop.

A `Cluster` (nodes, connections, metadata, the one retry policy) lives on one event loop. What users touch from other
threads goes through `Promise` and `Inbox` (promise.py). Classes whose waiting calls are all awaited, such as the admin
and lookups, hold a `Runner` and are the same on both faces. Writers and scanners are bound to the loop: those of
`fluss`, `blocking_*.py`, are generated from them by scripts/generate_blocking.py.

docs/architecture.md has the glossary, and the sequences of append, lookup and fetch.
"""
