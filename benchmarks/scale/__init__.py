# SPDX-License-Identifier: Apache-2.0
"""How costs grow: `python -m benchmarks.scale --help`. One module for each thing that grows."""
