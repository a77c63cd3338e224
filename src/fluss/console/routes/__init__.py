# SPDX-License-Identifier: Apache-2.0
"""The routes of the API, a module per page. Each has a table `ROUTES`: path, handler, and whether it is a POST."""
