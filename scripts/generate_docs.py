# SPDX-License-Identifier: Apache-2.0
"""Write the tables of the documentation that are drawn from the sources: options, errors, properties, commands.

A page says where a table goes: everything between `<!-- generated: NAME -->` and `<!-- end generated -->` is replaced.
Run ``python scripts/generate_docs.py`` after a change of a table; ``--check`` only says whether the pages are current.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from fluss import errors
from fluss.cli import main as cli
from fluss.client.metrics import NAMES
from fluss.config import CONFIG_OPTIONS
from fluss.errors import ERROR_CLASSES, ERROR_NAMES
from fluss.metadata.properties import LAKE_PROPERTIES, TABLE_PROPERTIES
from fluss.options import Option
from fluss.protocol.apis import APIS
from fluss.server.config import SERVER_OPTIONS
from fluss.server.exposure import SHOWN
from fluss.server.foreign_options import PASSED_OVER, REFUSED
from fluss.server.handlers.rights import RIGHTS, Effect, Need, Scope
from fluss.server.metric_names import METRICS, full_name
from fluss.spark.options import OPTIONS as SPARK_OPTIONS

REMEDIES: dict[str, tuple[str, str]] = runpy.run_path(str(Path(__file__).with_name("remedies.py")))["REMEDIES"]

DOCS = Path(__file__).resolve().parent.parent / "docs"

_SECTION = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end generated -->)", re.DOTALL)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; a bar inside a cell would end it."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def meaning(option: Option[Any]) -> str:
    """What an option means, the few values it takes, and its other names."""
    words = sentence(option.doc)
    if len(option.choices) > 1:
        words += f" One of {', '.join(code(choice) for choice in option.choices)}."
    if option.aliases:
        words += f" Also {', '.join(code(alias) for alias in option.aliases)}."
    return words


def yes(flag: bool) -> str:
    return "yes" if flag else ""


def client_options() -> str:
    rows = [
        (code(option.key), code(option.property_name), option.kind, code(option.default_text), meaning(option))
        for option in CONFIG_OPTIONS.values()
    ]
    return table(("key", "attribute of `Config`", "type", "default", "meaning"), rows)


def client_refused() -> str:
    return table(("key", "why it is refused"), [(code(key), why) for key, why in CONFIG_OPTIONS.refused.items()])


def spark_options() -> str:
    rows = [
        (
            code(option.key),
            option.kind,
            code(option.default_text),
            " ".join(word for word, flag in (("read", option.reads), ("write", option.writes)) if flag),
            meaning(option),
        )
        for option in SPARK_OPTIONS.values()
    ]
    return table(("option", "type", "default", "of", "meaning"), rows)


def client_metrics() -> str:
    return table(("name", "meaning"), [(code(name), sentence(words)) for name, words in NAMES.items()])


def server_metrics() -> str:
    rows = [
        (code(full_name(name)), metric.kind, ", ".join(map(code, metric.labels)), metric.help)
        for name, metric in METRICS.items()
    ]
    return table(("name", "kind", "labels", "meaning"), rows)


def server_options() -> str:
    rows = [
        (code(option.key), option.kind, code(option.default_text), yes(option.dynamic), meaning(option))
        for option in SERVER_OPTIONS.values()
    ]
    return table(("option", "type", "default", "dynamic", "meaning"), rows)


def _by_reason(options: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    reasons: dict[str, list[str]] = {}
    for key, reason in options.items():
        reasons.setdefault(reason, []).append(code(key))
    return [(", ".join(keys), sentence(reason)) for reason, keys in reasons.items()]


def server_passed_over() -> str:
    return table(("options", "why they have no effect"), _by_reason(PASSED_OVER))


def server_refused() -> str:
    return table(("options", "why they are refused"), _by_reason(REFUSED))


def rights() -> str:
    """One line for all APIs that need the same."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for key, need in sorted(RIGHTS.items(), key=lambda item: APIS[item[0]].name):
        grouped.setdefault(_right(need), []).append(APIS[key].name)
    order = list(Scope)
    rows = sorted(grouped.items(), key=lambda item: ([scope.value for scope in order].index(item[0][1]), item[0]))
    return table(
        ("request", "needs", "on", "without it"),
        [(", ".join(code(name) for name in names), operation, on, effect) for (operation, on, effect), names in rows],
    )


def _right(need: Need) -> tuple[str, str, str]:
    if need.operation is None:
        return "no right", need.scope.value, ""
    operation = code(need.operation.name)
    if need.writing is not None:
        operation += f", {code(need.writing.name)} to insert"
    effect = need.effect.value
    if need.scope is Scope.TABLE_ID and need.effect is not Effect.OMIT:
        effect += "; an id of a hidden table is unknown"
    return operation, need.scope.value, effect


def lake_settings() -> str:
    return table(
        ("format", "settings shown to readers"),
        [(lake_format, ", ".join(code(key) for key in sorted(keys))) for lake_format, keys in SHOWN.items()],
    )


def lake_properties() -> str:
    rows = [
        (code(row.key), row.type.allowed()) for properties in LAKE_PROPERTIES.values() for row in properties.values()
    ]
    return table(("property", "takes"), rows)


def error_codes() -> str:
    rows = [
        (
            str(number),
            code(error.__name__),
            code(ERROR_NAMES[number]),
            yes(error().is_retriable),
            error.__doc__ or "",
        )
        for number, error in ERROR_CLASSES.items()
    ]
    return table(("code", "class", "name in the protocol", "retriable", "meaning"), rows)


def remedies() -> str:
    """Every error with cause and remedy: those of this package first, then those that servers send."""
    rows = [(code(name), *remedy) for name, remedy in REMEDIES.items() if hasattr(errors, name)]
    rows += [(code(error.__name__), *REMEDIES[ERROR_NAMES[number]]) for number, error in ERROR_CLASSES.items()]
    return table(("error", "cause", "what to do"), rows)


def table_properties() -> str:
    rows = [
        (code(row.key), row.kind, code(row.default_text), yes(row.dynamic), meaning(row))
        for row in TABLE_PROPERTIES.values()
    ]
    return table(("property", "type", "default", "alterable", "meaning"), rows)


def _commands(group: click.Group, prefix: str) -> Iterable[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if command.hidden:
            continue
        yield f"{prefix} {name}", command
        if isinstance(command, click.Group):
            yield from _commands(command, f"{prefix} {name}")


def _arguments(command: click.Command) -> str:
    metavars = []
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            name = str(parameter.name).upper() + ("..." if parameter.nargs == -1 else "")
            metavars.append(name if parameter.required else f"[{name}]")
    return " ".join(metavars)


def commands() -> str:
    rows = []
    for name, command in _commands(cli, "fluss"):
        first = (command.help or "").strip().split("\n\n")[0]
        rows.append((code(f"{name} {_arguments(command)}".strip()), " ".join(first.split())))
    return table(("command", "what it does"), rows)


def _option_row(option: click.Option) -> tuple[str, str, str]:
    names = ", ".join(option.opts + option.secondary_opts)
    if not option.is_flag:
        shown = option.metavar
        if shown is None and isinstance(option.type, click.Choice):
            shown = "|".join(str(choice) for choice in option.type.choices)
        names += f" {shown or 'VALUE'}"
    has_default = option.default is not None and option.show_default and not option.is_flag
    words = " ".join((option.help or "").split())
    if isinstance(option.envvar, str):
        words += f" Or the variable `{option.envvar}`."
    return code(names), code(option.default) if has_default else "", words.strip()


def command_options() -> str:
    found = {
        name: [p for p in command.params if isinstance(p, click.Option)] for name, command in _commands(cli, "fluss")
    }
    rows: list[tuple[str, str, str, str]] = []
    seen: dict[tuple[str, str, str], list[str]] = {}
    for name, options in found.items():
        for option in options:
            if not option.hidden:
                seen.setdefault(_option_row(option), []).append(name.removeprefix("fluss "))
    for (option_names, default, words), users in seen.items():
        rows.append((option_names, ", ".join(code(user) for user in users), default, words))
    return table(("option", "of", "default", "meaning"), rows)


SECTIONS: dict[str, Callable[[], str]] = {
    "client-options": client_options,
    "client-options-refused": client_refused,
    "client-metrics": client_metrics,
    "server-metrics": server_metrics,
    "server-options": server_options,
    "rights": rights,
    "lake-settings": lake_settings,
    "lake-properties": lake_properties,
    "server-options-passed-over": server_passed_over,
    "server-options-refused": server_refused,
    "spark-options": spark_options,
    "error-codes": error_codes,
    "remedies": remedies,
    "table-properties": table_properties,
    "commands": commands,
    "command-options": command_options,
}


def fill(text: str) -> str:
    """The page with its generated parts made anew."""
    return _SECTION.sub(lambda match: f"{match[1]}{SECTIONS[match[2]]()}{match[3]}", text)


def main(arguments: list[str]) -> int:
    stale = []
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        filled = fill(text)
        if filled != text:
            stale.append(path.name)
            if "--check" not in arguments:
                path.write_text(filled, encoding="utf-8")
    if "--check" in arguments:
        print(f"out of date: {', '.join(stale)}; run python scripts/generate_docs.py" if stale else "docs are current")
        return 1 if stale else 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
