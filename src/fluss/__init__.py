# SPDX-License-Identifier: Apache-2.0
"""Fluss for Python people: client, embedded server and Spark pipeline for Apache Fluss tables."""
