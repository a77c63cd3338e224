# SPDX-License-Identifier: Apache-2.0
"""Named clusters and shell completion: ``fluss profile``, ``fluss completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from fluss.cli.common import check_servers, json_option, note, print_json, print_result
from fluss.cli.show import grid


@click.group()
def profile() -> None:
    """Manage named clusters in the user's configuration folder."""


@profile.command(name="ls")
@json_option
def profile_ls(as_json: bool) -> None:
    """List the profiles; the active one has a star.

    Example: fluss profile ls
    """
    from fluss.db.profiles import load_profiles

    profiles, active = load_profiles()
    if as_json:
        print_json(
            [
                {"name": one.name, "active": one.name == active, "servers": one.bootstrap_servers, "user": one.user}
                for one in profiles.values()
            ]
        )
        return
    if not profiles:
        note('no profiles; add one with "fluss profile add NAME HOST:PORT"')
        return
    grid(
        ["", "profile", "servers", "user"],
        [
            ["*" if one.name == active else "", one.name, one.bootstrap_servers, one.user or ""]
            for one in profiles.values()
        ],
    )


@profile.command(name="add")
@click.argument("name")
@click.argument("servers")
@click.option("--user", help="User to log in as.")
@click.option("--password-env", metavar="VARIABLE", help="Environment variable that holds the password.")
@click.option("--password-file", metavar="FILE", help="File with the password, readable by you only (chmod 600).")
@click.option("--password-command", metavar="COMMAND", help="Command that prints the password.")
@click.option("--tls", is_flag=True, help="Encrypt connections.")
@click.option("--ca", metavar="FILE", help="Encrypt; who signs the certificates of the servers (PEM).")
@click.option("--fingerprint", metavar="SHA256", help="Encrypt; the one certificate to accept.")
@click.option("--replace", is_flag=True, help="Replace the profile of this name.")
@json_option
def profile_add(
    name: str,
    servers: str,
    user: str | None,
    password_env: str | None,
    password_file: str | None,
    password_command: str | None,
    tls: bool,
    ca: str | None,
    fingerprint: str | None,
    replace: bool,
    as_json: bool,
) -> None:
    """Add the profile NAME for SERVERS (host:port, comma separated). Passwords are never stored in it.

    Example: fluss profile add staging fluss-1:9123 --user alice --password-env STAGING_PASSWORD
    """
    from fluss.db.profiles import Profile
    from fluss.tools.profile_store import ProfileExistsError, save_profile

    sources = [one for one in (password_env, password_file, password_command) if one is not None]
    if len(sources) > 1:
        raise click.UsageError("name one source of the password, not several")
    if sources and user is None:
        raise click.UsageError("a password needs a user: add --user NAME")
    made = Profile(
        name, check_servers(servers), user, password_env, password_file, password_command, tls, ca, fingerprint
    )
    try:
        active = save_profile(made, replace=replace)
    except ProfileExistsError as error:
        raise error.replace(hint="add --replace, or choose another name") from None
    print_result(
        as_json,
        {"name": name, "active": active},
        f"profile {name} added{' and active' if active else f'; use it with: fluss profile use {name}'}",
    )


@profile.command(name="use")
@click.argument("name")
@json_option
def profile_use(name: str, as_json: bool) -> None:
    """Make the profile NAME the one that commands connect with.

    Example: fluss profile use staging
    """
    from fluss.tools.profile_store import use_profile

    use_profile(name)
    print_result(as_json, {"name": name, "active": True}, f"profile {name} is active")


@profile.command(name="rm")
@click.argument("name")
@json_option
def profile_rm(name: str, as_json: bool) -> None:
    """Remove the profile NAME.

    Example: fluss profile rm staging
    """
    from fluss.tools.profile_store import remove_profile

    remove_profile(name)
    print_result(as_json, {"name": name, "removed": True}, f"profile {name} removed")


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
    made = found(ctx.find_root().command, {}, "fluss", "_FLUSS_COMPLETE")
    # Not `source()`: that of bash runs the bash of this machine to check its version.
    click.echo(made.source_template % made.source_vars())
