# SPDX-License-Identifier: Apache-2.0
"""Proof by strangers: other people's clients on our server, our client on the real Apache Fluss.

``python -m tests.interop.matrix`` prints the whole table and writes ``docs/compatibility.md``.
"""
