# SPDX-License-Identifier: Apache-2.0
"""SQL over live tables: ``fluss sql``, with a shell."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

import click

from fluss.cli.common import CliTarget, Failure, connected, failure_of, note, print_names, report
from fluss.cli.rows import print_batches

if TYPE_CHECKING:
    from fluss import Database
    from fluss.tools.sql_session import Answer, SqlSession

_HELP = """Statements end with a semicolon. Commands of the shell:
.tables            list the tables (or \\dt)
.schema TABLE      columns of a table (or \\d TABLE)
.timing on|off     show how long statements take
.watch SECONDS SQL repeat a query until Ctrl-C
.help              this text (or help, \\?)
.quit              leave (or exit, quit, \\q, Ctrl-D)"""
_OTHER_NAMES = {
    "exit": ".quit", ".exit": ".quit", "quit": ".quit", "\\q": ".quit", "help": ".help", "\\?": ".help",
    "\\dt": ".tables", "\\d": ".schema",
}  # fmt: skip
"""Commands as other shells call them: psql, DuckDB, MySQL."""


@click.command()
@click.argument("query", required=False)
@click.option(
    "-f", "--file", "file", type=click.File("r", "utf-8"), help="Run the statements of a file; - is standard input."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--timing", is_flag=True, help="Say how long it took.")
@click.option("--every", type=click.FloatRange(0.1), metavar="SECONDS", help="Repeat the query until Ctrl-C.")
@click.option("--times", type=click.IntRange(1), help="With --every: how often.")
@click.option("-d", "--database", default="fluss", show_default=True, help="Database of names without a dot.")
@connected
def sql(
    link: CliTarget,
    query: str | None,
    file: TextIO | None,
    as_csv: bool,
    timing: bool,
    every: float | None,
    times: int | None,
    database: str,
) -> None:
    """Run SQL over the tables with DuckDB; without QUERY, a shell with history and completion (or standard input).

    QUERY is one or more statements, or - for those of standard input.

    Example: fluss sql "select item, sum(price) from orders group by item"
    """
    from fluss.tools.sql_session import SqlSession

    if times is not None and every is None:
        raise click.UsageError("--times needs --every SECONDS")
    if query is not None and file is not None:
        raise click.UsageError("give a QUERY or --file, not both")
    kind = "csv" if as_csv else "jsonl" if link.as_json else None
    with link.database(database) as db:
        session = SqlSession(db)
        if file is not None:
            query = file.read()
        elif query == "-" or (query is None and not sys.stdin.isatty()):
            query = sys.stdin.read()
        if query is None:
            _Shell(db, session, timing).run()
        elif every is not None:
            _repeat(session, query, kind, every, times)
        else:
            for statement in session.statements(query):
                _show(session.run(statement), kind, timing)


def _show(answer: Answer, kind: str | None, timing: bool) -> None:
    if answer.is_rows:
        print_batches(kind, answer.schema, answer.batches())
    else:
        note(answer.summary)
    if timing:
        note(f"{answer.rows:,} rows in {answer.seconds:.3f} s")


def _repeat(session: SqlSession, query: str, kind: str | None, every: float, times: int | None) -> None:
    done = 0
    try:
        while True:
            if sys.stdout.isatty():
                click.clear()
            note(f"{time.strftime('%H:%M:%S')}, every {every:g} s: {' '.join(query.split())}")
            _show(session.run(query), kind, False)
            done += 1
            if done == times:
                return
            time.sleep(every)
    except KeyboardInterrupt:
        return


def _command_of(line: str) -> str:
    """The command of the shell that a line is; empty if it begins a statement."""
    word, _, rest = line.strip().partition(" ")
    name = _OTHER_NAMES.get(word.rstrip(";").lower(), word)
    if name == ".schema" and not rest.strip():
        name = ".tables"
    return f"{name} {rest.strip().rstrip(';')}".rstrip() if name.startswith((".", "\\")) else ""


class _Shell:
    """Reads statements from the terminal until the user leaves."""

    def __init__(self, db: Database, session: SqlSession, timing: bool) -> None:
        self._db = db
        self._session = session
        self._timing = timing

    def run(self) -> None:
        readline = self._set_up()
        note(f'connected to {self._db.address}; statements end with ";", .help shows more')
        text = ""
        try:
            while True:
                try:
                    line = input("fluss> " if not text else "  ...> ")
                except KeyboardInterrupt:
                    text = ""
                    click.echo()
                    continue
                except EOFError:
                    click.echo()
                    return
                command = "" if text else _command_of(line)
                if command == ".quit":
                    return
                if command:
                    self._guarded(lambda command=command: self._command(command))
                    continue
                text = f"{text}\n{line}" if text else line
                if not text.strip():
                    text = ""
                elif self._session.is_complete(text):
                    query, text = text, ""
                    self._guarded(lambda query=query: self._query(query))
        finally:
            if readline is not None:
                self._save(readline)

    def _guarded(self, work: Any) -> None:
        """A mistake must not end the shell, nor must Ctrl-C while a query runs."""
        try:
            work()
        except KeyboardInterrupt:
            note("interrupted")
        except click.ClickException as error:
            note(f"Error: {error.format_message()}")
        except Exception as error:
            failure = failure_of(error)
            if failure is None:
                raise
            note(f"Error: {failure.format_message()}")

    def _query(self, query: str) -> None:
        for statement in self._session.statements(query):
            _show(self._session.run(statement), None, self._timing)

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        if name == ".help":
            note(_HELP)
        elif name == ".tables":
            print_names(False, self._session.table_names())
        elif name == ".schema" and rest:
            from fluss.tools.drafts import columns_text

            report(columns_text(self._db.table(rest).schema.columns))
        elif name == ".timing":
            self._timing = rest != "off"
        elif name == ".watch":
            seconds, _, query = rest.partition(" ")
            try:
                pause = float(seconds)
            except ValueError:
                raise Failure(
                    ".watch takes seconds and a query, for instance .watch 2 select count(*) from t"
                ) from None
            _repeat(self._session, query.rstrip("; "), None, max(pause, 0.1), None)
        else:
            raise Failure(f"there is no command {line!r}; see .help")

    def _set_up(self) -> Any:
        try:
            import readline
        except ImportError:  # Windows: no history and no completion
            return None
        from fluss.tools.sql_session import history_file

        words: list[str] = []

        def complete(text: str, state: int) -> str | None:
            if state == 0:
                words[:] = self._session.completions(text, readline.get_line_buffer())
            return words[state] if state < len(words) else None

        readline.set_completer(complete)
        readline.set_completer_delims(" \t\n,();=<>+-*/")
        readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")
        path = history_file()
        if path.exists():
            readline.read_history_file(path)
        readline.set_history_length(5_000)
        return readline

    @staticmethod
    def _save(readline: Any) -> None:
        from fluss.tools.sql_session import history_file

        path = history_file()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)
            path.chmod(0o600)  # statements may contain what others must not read
        except OSError as error:
            note(f"the history could not be saved in '{path}': {error.strerror}")
