# SPDX-License-Identifier: Apache-2.0
"""Completion of commands, options and table names in the user's shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_FLUSS_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands, options and table names in SHELL.

    Bash: eval "$(fluss completion bash)" in ~/.bashrc. Zsh: the same with zsh in ~/.zshrc.
    Fish: fluss completion fish > ~/.config/fish/completions/fluss.fish

    Example: fluss completion bash
    """
    found = get_completion_class(shell)
    assert found is not None
    made = found(ctx.find_root().command, {}, "fluss", _VARIABLE)
    # Not `source()`: that of bash runs the bash of this machine to check its version.
    click.echo(made.source_template % made.source_vars())
