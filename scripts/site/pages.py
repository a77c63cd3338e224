# SPDX-License-Identifier: Apache-2.0
"""Pages of the site that are not written by hand: the API reference, the examples, the documents of the repository.

A hook of mkdocs (see mkdocs.yml). The pages exist during the build only.
"""

from __future__ import annotations

import posixpath
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluss._exports import COMMON, OWN, homes_of

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[2]

DOCUMENTS = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "examples": "examples/index.md",
    "examples/README.md": "examples/index.md",
}
"""Documents outside of docs/, and their place on the site."""

Group = tuple[str, str, dict[str, str]]


def names(face: str, *modules: str) -> dict[str, str]:
    """Return what `fluss` or `fluss.aio` exports from these modules; the tables of `_exports.py` keep it complete."""
    tables = OWN[face] if face == "fluss.aio" else {**COMMON, **OWN[face]}
    return {face: " ".join(tables[f"fluss.{module}"] for module in modules)}


_ADMIN = (
    "client.admin",
    "client.admin.types",
    "client.admin.balance",
    "client.admin.leases",
    "metadata.acl",
    "metadata.info",
)
REFERENCE: list[Group] = [
    ("connect", "The high-level API", names("fluss", "db.connect", "db.blocking", "db.changes", "db.write_results")),
    ("aio-connect", "The high-level API for asyncio", names("fluss.aio", "db.database", "db.table")),
    (
        "client",
        "The full client",
        {"fluss": "Config FlussConnection FlussTable AppendWriter UpsertWriter PrometheusCollector"},
    ),
    ("admin", "Administration", names("fluss", *_ADMIN)),
    ("write", "Writing", names("fluss", "client.table", "client.write")),
    ("read", "Scanning and looking up", names("fluss", "client.blocking_scanners", "client.scan", "client.lookup")),
    ("multi-table", "Many tables", names("fluss", "client.blocking_multi_table", "client.multi_table")),
    (
        "aio-client",
        "The full client for asyncio",
        names("fluss.aio", "client.connection", "client.write", "client.scan", "client.multi_table"),
    ),
    ("metadata", "Tables, types and filters", names("fluss", "metadata")),
    ("errors", "Errors", names("fluss", "errors")),
    ("server", "The embedded server", names("fluss", "server.local")),
    ("spark", "Spark", {"fluss.spark": "*"}),
    ("lake", "The lake", {"fluss.lake": "*"}),
    ("testing", "Test fixtures", {"fluss.testing": "fluss_server fluss_connection"}),
]
"""The pages of the reference: file, title, and the names on it by the module that users import them from."""

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)#\s]+)(#[^)\s]*)?(?=\))")


def objects_of(module: str, chosen: str) -> dict[str, str]:
    """Map the names that a page shows to where the sources define them; `*` stands for all names of a package."""
    if chosen == "*":
        tables: dict[str, str] = import_module(module).NAMES
        return dict(sorted((name, f"{home}.{name}") for home, table in tables.items() for name in table.split()))
    homes = homes_of(module) if module in OWN else {}
    return {name: f"{homes.get(name, module)}.{name}" for name in chosen.split()}


def check_complete() -> None:
    """Raise unless every public name has its place in the reference."""
    shown = {(module, name) for _, _, modules in REFERENCE for module, text in modules.items() for name in text.split()}
    public = {("fluss", name) for name in homes_of("fluss")}
    public |= {("fluss.aio", name) for table in OWN["fluss.aio"].values() for name in table.split()}
    missing = sorted(f"{module}.{name}" for module, name in public - shown)
    if missing:
        raise ValueError(f"Add these names to REFERENCE in scripts/site/pages.py: {', '.join(missing)}")


def reference_page(title: str, modules: dict[str, str]) -> str:
    """Write one page of the reference."""
    lines = [f"# {title}", ""]
    for module, chosen in modules.items():
        lines += [f"Import these names from `{module}`.", ""]
        for name, path in objects_of(module, chosen).items():
            lines += [f"## `{module}.{name}` {{ #{module}.{name} }}", "", f"::: {path}", ""]
    return "\n".join(lines)


def reference_index() -> str:
    """Write the first page of the reference: all public names."""
    lines = ["# API reference", "", "Every public name, drawn from the docstrings of the sources.", ""]
    lines += ["| page | names |", "| --- | --- |"]
    for file, title, modules in REFERENCE:
        found = [(module, name) for module, chosen in modules.items() for name in objects_of(module, chosen)]
        links = ", ".join(f"[`{name}`]({file}.md#{module}.{name})" for module, name in found)
        lines.append(f"| [{title}]({file}.md) | {links} |")
    return "\n".join([*lines, ""])


def example_page(path: Path) -> str:
    """Show one example."""
    return f"# {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are drawn from elsewhere."""
    from mkdocs.structure.files import File

    check_complete()
    made = {"reference/index.md": reference_index()}
    made |= {f"reference/{file}.md": reference_page(title, modules) for file, title, modules in REFERENCE}
    for path in sorted((ROOT / "examples").glob("*.py")):
        made[f"examples/{path.stem}.md"] = example_page(path)
    for source, target in DOCUMENTS.items():
        if (ROOT / source).is_file():
            text = (ROOT / source).read_text(encoding="utf-8")
            made[target] = (
                relink(text, source, target) if source.endswith(".md") else f"# License\n\n```\n{text}\n```\n"
            )
    for target, text in made.items():
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Lead links that leave docs/ to their place on the site."""
    if page.file.generated_by:
        return markdown
    return relink(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def relink(markdown: str, source: str, target: str) -> str:
    """Change the links of a document at `source` in the repository, which stands at `target` on the site."""

    def change(match: re.Match[str]) -> str:
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        if linked in DOCUMENTS:
            place = DOCUMENTS[linked]
        elif linked.startswith("examples/") and linked.endswith(".py"):
            place = linked.removesuffix(".py") + ".md"
        elif linked.startswith("docs/"):
            place = linked.removeprefix("docs/")
        else:
            return match[0]  # leads nowhere, and the strict build says so
        return posixpath.relpath(place, posixpath.dirname(target) or ".") + (match[2] or "")

    return _LINK.sub(change, markdown)
