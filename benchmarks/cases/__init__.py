# SPDX-License-Identifier: Apache-2.0
"""The cases, by what they compare: the client with its peer, the server with raw limits and with its peer."""
