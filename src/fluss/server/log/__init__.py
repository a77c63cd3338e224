# SPDX-License-Identifier: Apache-2.0
"""Log storage: segments, indexes, writer state, recovery."""
