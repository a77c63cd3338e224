# SPDX-License-Identifier: Apache-2.0
"""The figures: `python -m benchmarks --help`."""
