# SPDX-License-Identifier: Apache-2.0
"""What the command line and the console do beyond the front door. No public API.

Modules
-------
tables        `drafts.py` (descriptions of new tables), `tailing.py`, `sql_session.py`.
files         `files.py` (formats, exports), `row_files.py` (rows that fit, and rows that do not), `loading.py`,
              `copying.py`, `backups.py`.
operation     `status.py` (server, tables, options), `access.py`, `profile_store.py`, `doctor.py`, `bench.py`.
"""
