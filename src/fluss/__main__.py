# SPDX-License-Identifier: Apache-2.0
"""``python -m fluss``: the command ``fluss``, where it is not on the path."""

from fluss.cli import main

if __name__ == "__main__":
    main(prog_name="fluss")
