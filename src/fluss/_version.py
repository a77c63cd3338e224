# SPDX-License-Identifier: Apache-2.0
"""The version of this package: here, and nowhere else."""

VERSION = "0.2.0"
