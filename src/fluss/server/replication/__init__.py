# SPDX-License-Identifier: Apache-2.0
"""Continuous backup of a server to a folder or an object store, and the way back."""
