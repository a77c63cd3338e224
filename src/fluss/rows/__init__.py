# SPDX-License-Identifier: Apache-2.0
"""One row, and many rows column by column: row formats, keys and buckets."""
