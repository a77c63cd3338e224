# SPDX-License-Identifier: Apache-2.0
"""Flips and cuts bytes in every kind of file of a data folder and checks that no wrong row is ever served."""
