# SPDX-License-Identifier: Apache-2.0
"""One module of handlers per family of APIs; `registry` lists them all."""
