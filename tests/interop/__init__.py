# SPDX-License-Identifier: Apache-2.0
"""Interoperability: other projects' clients on our server, our client on the real Apache Fluss.

``python -m tests.interop.matrix`` prints the whole table and writes ``docs/compatibility.md``.
"""
