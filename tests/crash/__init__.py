# SPDX-License-Identifier: Apache-2.0
"""Kills the server at random moments while clients write, and checks that what was acknowledged is there, once."""
