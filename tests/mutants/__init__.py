# SPDX-License-Identifier: Apache-2.0
"""Planted bugs, and the tests that must catch each of them."""
