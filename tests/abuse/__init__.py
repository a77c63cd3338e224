# SPDX-License-Identifier: Apache-2.0
"""Sends the server what no client should send: it must neither die nor hang nor grow, and serve all other clients."""
