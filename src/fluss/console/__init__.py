# SPDX-License-Identifier: Apache-2.0
"""The web console: tables, live changes, SQL and the state of a server, in the browser.

It is a client of the server like any other program, and runs in a process of its own, so that what it does costs the
server no more than its requests. `fluss server --ui` starts it beside the embedded server, `fluss ui` for any cluster.
"""
