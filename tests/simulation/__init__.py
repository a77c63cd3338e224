# SPDX-License-Identifier: Apache-2.0
"""Deterministic simulation: server and clients in one process, with a virtual clock, network and disk.

Everything that happens derives from one seed. The code under test is the production code; only the event loop, the
executor, the listening socket and the file operations are replaced, through the interfaces that production uses too.
"""
