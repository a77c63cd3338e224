# SPDX-License-Identifier: Apache-2.0
"""What the commands share: how to connect, how to fail, how to ask, how to print JSON."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from fluss._text import escaped, json_text, json_value
from fluss.cli.show import grid
from fluss.config import DEFAULT_SERVER, Login
from fluss.errors import (
    AuthenticateError,
    DatabaseNotExistError,
    FlussError,
    LakeSnapshotNotExistError,
    NetworkError,
    PartitionNotExistsError,
    TableAlreadyExistError,
    TableNotExistError,
)

if TYPE_CHECKING:
    from fluss import Config, Database
    from fluss.metadata import TablePath

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

_TIMEOUT_S = 10.0
_NOT_FOUND = (DatabaseNotExistError, TableNotExistError, PartitionNotExistsError, LakeSnapshotNotExistError)
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_LISTED_PORT = re.compile(r":(\d+)$")
_HINTS: dict[type[FlussError], str] = {
    AuthenticateError: "add --user NAME and --password",
    TableNotExistError: 'create it with "fluss create"',
    TableAlreadyExistError: "add --if-not-exists, or drop it first",
}
"""What to do next on the command line, in place of a hint about the Python API."""


class Failure(click.ClickException):
    """A user-visible error: one sentence on standard error, exit code 1."""

    def format_message(self) -> str:
        return escaped(self.message, keep="\n")


class NotFound(Failure):
    """Something that was named does not exist."""

    exit_code = 3


def failure_of(error: BaseException) -> click.ClickException | None:
    """The message for an error that a user can cause; None if it is a defect and needs its traceback."""
    if isinstance(error, FlussError):
        if error.hint is not None and type(error) in _HINTS:
            error = error.replace(hint=_HINTS[type(error)])
        text = " ".join(error.message.split())
        from fluss.db.profiles import UnknownProfileError
        from fluss.metadata.group_rows import UnknownGroupError

        not_found = (*_NOT_FOUND, UnknownProfileError, UnknownGroupError)
        return NotFound(text) if isinstance(error, not_found) else Failure(text)
    if type(error).__module__.split(".")[0] in ("duckdb", "_duckdb"):
        return Failure(" ".join(str(error).split("\n\n")[0].split()))
    if isinstance(error, OSError) and error.strerror:
        # Without a name it is a stream, such as standard output, or a file that is open already.
        place = "" if error.filename is None else f"'{os.fspath(error.filename)}': "
        return Failure(f"{place}{error.strerror}")
    return None


@dataclass
class CliTarget:
    """Where a command connects to, and how it prints."""

    servers: str | None = None
    login: Login = field(default_factory=Login)
    profile: str | None = None
    as_json: bool = False

    @contextlib.contextmanager
    def database(self, name: str = "fluss", *, create: bool = False) -> Iterator[Database]:
        """Connect, and close at the end. With `create`, an empty folder becomes a database."""
        import fluss

        servers, login = self.resolve()
        if not os.path.isdir(servers):
            check_reachable(servers)
        elif not create:
            check_folder(servers)
        try:
            db = fluss.connect(servers, **asdict(login), database=name, timeout=_TIMEOUT_S)
        except NetworkError as error:
            raise error.replace(hint="is this the address of a Fluss server?") from None
        with db:
            yield db

    def resolve(self) -> tuple[str, Login]:
        """The servers, and as whom to connect: from the options, the environment, or a profile."""
        from fluss.tools.profile_store import named_profile

        login = self.login
        if self.servers is not None:
            servers = check_servers(self.servers)
        else:
            found = named_profile(self.profile)
            servers = DEFAULT_SERVER if found is None else found.bootstrap_servers
            if found is not None:
                login = login.or_else(found.login(with_password=login.user is None and login.password is None))
        if login.password is not None and login.user is None:
            raise click.UsageError("a password was given without a user; add --user NAME (or FLUSS_USER)")
        return servers, login

    def other(self, server: str) -> CliTarget:
        """The target for another server, an address or ``@PROFILE``; only that of an address has the same login."""
        if server.startswith("@"):
            return CliTarget(profile=server[1:], as_json=self.as_json)
        return replace(self, servers=server, profile=None)

    def config(self) -> Config:
        """The options of the full client, for what does not go through `connect`."""
        import fluss

        servers, login = self.resolve()
        timeout_ms = int(_TIMEOUT_S * 1000)
        return fluss.Config({"bootstrap.servers": servers, "connect-timeout": timeout_ms, **login.options()})


def check_folder(servers: str) -> None:
    """Refuse a folder that is not the data folder of a server: a connection would make it one."""
    if os.path.isdir(servers) and not os.path.isdir(os.path.join(servers, "catalog")):
        raise Failure(f"'{servers}' is not the data folder of a server; create a table in it with \"fluss create\"")


def check_servers(text: str) -> str:
    """The address as `connect` takes it: host:port, a host alone (port 9123), or a folder that exists."""
    text = text.strip()
    if not text:
        raise click.UsageError("-b needs an address such as 127.0.0.1:9123, not an empty text")
    if os.path.isdir(text):
        return text
    if os.sep in text and "://" not in text:
        raise click.UsageError(f"-b: there is no folder '{text}'; write host:port, or the data folder of a server")
    parts = []
    for part in text.removeprefix("fluss://").split(","):
        part = part.strip()
        if _HOST.fullmatch(part) and not part.isdigit():
            part = f"{part}:9123"
        port = _LISTED_PORT.search(part)
        if port is None or not 0 < int(port[1]) < 65536 or "/" in part or port.start() == 0:
            raise click.UsageError(f"-b: '{part}' is not an address; write host:port, for instance {DEFAULT_SERVER}")
        parts.append(part)
    return ",".join(parts)


def check_reachable(servers: str) -> None:
    """Fail at once if no connection can be opened: the client would retry for seconds."""
    from fluss.tools.doctor import unreachable

    failed = unreachable(servers)
    if failed and all(one.refused for one in failed):
        port = servers.rpartition(":")[2]
        command = "fluss server" if port == "9123" else f"fluss server --port {port}"
        raise Failure(f'nothing listens at {servers}; run "{command}", or name another server with -b')
    if failed:
        raise Failure(f"cannot reach {failed[0].address}: {failed[0].problem}; check the address given with -b")


_OPTIONS = (
    click.option(
        "-b",
        "--bootstrap-servers",
        "servers",
        metavar="HOST:PORT",
        envvar="FLUSS_BOOTSTRAP_SERVERS",
        show_envvar=True,
        help=f"Servers, or the data folder of one.  [default: the active profile, or {DEFAULT_SERVER}]",
    ),
    click.option("--user", envvar="FLUSS_USER", show_envvar=True, help="User to log in as."),
    click.option("--password", envvar="FLUSS_PASSWORD", show_envvar=True, help="Password of that user."),
    click.option("--tls", is_flag=True, envvar="FLUSS_TLS", show_envvar=True, help="Encrypt the connection."),
    click.option(
        "--ca", metavar="FILE", envvar="FLUSS_CA", show_envvar=True, help="Encrypt; who signs the certificate (PEM)."
    ),
    click.option(
        "--fingerprint",
        metavar="SHA256",
        envvar="FLUSS_FINGERPRINT",
        show_envvar=True,
        help="Encrypt; the one certificate to accept.",
    ),
    click.option(
        "--profile", metavar="NAME", envvar="FLUSS_PROFILE", show_envvar=True, help="Profile to connect with."
    ),
)
_LOGIN = ("user", "password", "tls", "ca", "fingerprint")
"""Those of the options that `Login` takes."""
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")


def connected(command: CommandT) -> CommandT:
    """Add the options every command that connects has; the command takes them as one `CliTarget`."""

    @functools.wraps(command)
    def call(*args: Any, servers: str | None, profile: str | None, as_json: bool, **kwargs: Any) -> Any:
        source = click.get_current_context().get_parameter_source
        if profile is not None and source("profile") is ParameterSource.COMMANDLINE:
            if source("servers") is ParameterSource.COMMANDLINE:
                raise click.UsageError("give -b or --profile, not both")
            servers = None  # the variable is a default, and the option says something else
        login = Login(**{name: kwargs.pop(name) for name in _LOGIN})
        return command(CliTarget(servers, login, profile, as_json), *args, **kwargs)

    wrapped: Any = json_option(call)
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[no-any-return]


def complete_tables(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The names of tables that begin with what was typed; none if the server does not answer quickly."""
    import fluss

    given = ctx.params
    login = Login(**{name: given[name] for name in _LOGIN if name in given})
    link = CliTarget(given.get("servers"), login, given.get("profile"))
    database, dot, prefix = incomplete.rpartition(".")
    try:
        servers, login = link.resolve()
        check_folder(servers)
        with fluss.connect(servers, **asdict(login), timeout=1.0) as db:
            if dot:
                return [f"{database}.{name}" for name in db.tables(database) if name.startswith(prefix)]
            names = [name for name in db.tables() if name.startswith(prefix)]
            return names + [f"{name}." for name in db.databases() if name.startswith(prefix) and name != db.name]
    except (FlussError, click.ClickException, OSError):
        return []


def _full_names(ctx: click.Context, param: click.Parameter, given: str | tuple[str, ...]) -> Any:
    return check_table(given) if isinstance(given, str) else tuple(map(check_table, given))


def table_argument(name: str = "table", **options: Any) -> Callable[[CommandT], CommandT]:
    """An argument that names a table, or several, with completion. The command gets names with databases."""
    return click.argument(name, shell_complete=complete_tables, callback=_full_names, **options)


missing_option = click.option(
    "--missing",
    type=click.Choice(["null", "keep"]),
    help="Columns that rows to upsert do not have: make them null, or keep what is there.  [default: refuse]",
)


def _moment(ctx: click.Context, param: click.Parameter, text: str | None) -> datetime | None:
    from fluss.tools.status import parse_time

    found = None if text is None else parse_time(text)
    if text is not None and found is None:
        raise click.UsageError(f"--at: {text!r} is not a time; write 10m (ten minutes ago) or '2026-01-01 14:05'")
    return found


def at_option(text: str) -> Callable[[CommandT], CommandT]:
    """An option that takes a time."""
    return click.option(
        "--at", metavar="TIME", callback=_moment, help=f"{text}, such as 10m (ago) or '2026-01-01 14:05'."
    )


def parse_path(text: str) -> TablePath:
    """``db.table``; a name alone is a table of the database ``fluss``."""
    from fluss.metadata import TablePath

    database, dot, table = text.partition(".")
    if not dot:
        database, table = "fluss", text
    if not database or not table:
        raise click.UsageError(f"{text!r} does not name a table; write TABLE or DATABASE.TABLE")
    return TablePath(database, table)


def check_table(text: str) -> str:
    """The name of a table as the Python API takes it."""
    return str(parse_path(text))


def check_database(db: Database, name: str) -> str:
    """The name of a database that exists."""
    from fluss._text import did_you_mean

    known = db.databases()
    if name not in known:
        raise DatabaseNotExistError(f"there is no database {name!r}{did_you_mean(name, known)}")
    return name


def names_of(text: str | None) -> list[str] | None:
    """Names that are separated by commas; None if none were given."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise click.UsageError("give names separated by commas, for instance id,price")
    return names


def pairs_of(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """``KEY=VALUE`` texts as a dict."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.UsageError(f"{option} takes KEY=VALUE, not {text!r}")
        found[key.strip()] = value
    return found


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something is destroyed. Without a terminal there is no one to ask: `--yes` is needed."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Add --yes to do it without a question.")
    if not click.confirm(escaped(question), default=False, err=True):
        raise Failure("nothing was done")


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(json_text(json_value(value)))


def print_names(as_json: bool, names: Sequence[str]) -> None:
    """Print names as one JSON document, or one a line."""
    if as_json:
        print_json(names)
        return
    for name in names:
        report(name)


def print_rows(
    as_json: bool, rows: Sequence[Mapping[str, Any]], names: Sequence[str], headings: Mapping[str, str] | None = None
) -> None:
    """Print rows as one JSON document, or some of their values as a table; None is an empty cell there."""
    if as_json:
        print_json(rows)
        return
    cells = [["" if row[name] is None else row[name] for name in names] for row in rows]
    grid([(headings or {}).get(name, name) for name in names], cells)


def print_result(as_json: bool, document: Any, text: str) -> None:
    """Report what was done: as one JSON document, or as a text on standard error."""
    if as_json:
        print_json(document)
    else:
        note(text)


@contextlib.contextmanager
def handled_signals(handler: Callable[[], None]) -> Iterator[None]:
    """Call a function for SIGTERM and Ctrl-C meanwhile, unless the caller is a program with its own signal handling."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: handler()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def report(text: str) -> None:
    """Print a text of the server on standard output."""
    click.echo(escaped(text, keep="\n"))


def note(text: str) -> None:
    """Report what was done, on standard error: standard output is for data."""
    click.echo(escaped(text, keep="\n"), err=True)


def count_text(count: int, word: str) -> str:
    """``1 row``, ``2 rows``, ``12,000 rows``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"
