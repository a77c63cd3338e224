# SPDX-License-Identifier: Apache-2.0
"""Groups of followers: several processes share the buckets of a table."""
