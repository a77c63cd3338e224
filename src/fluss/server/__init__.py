# SPDX-License-Identifier: Apache-2.0
"""The embedded server: coordinator and tablet server in one process, wire compatible with Apache Fluss."""
