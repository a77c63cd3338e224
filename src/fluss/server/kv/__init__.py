# SPDX-License-Identifier: Apache-2.0
"""Primary-key tables: rows by key, the changes that writes make, and the changelog that reports them."""
