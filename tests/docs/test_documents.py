# SPDX-License-Identifier: Apache-2.0
"""What the documents say is true: code runs, commands exist, tables are current, links lead somewhere."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.blocks import NEEDS, ROOT, Block, LazyServer, read_blocks, run_command, run_page

import fluss
from fluss.server.auth import check_users
from fluss.server.config import ServerConfig, load_config_file
from fluss.server.users import UserFile

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if not path.name.startswith(("spark_", "demo")))
LANGUAGES = {"python", "bash", "text", "json", "yaml", "toml", "mermaid", ""}


@pytest.fixture
def server() -> Iterator[LazyServer]:
    server = LazyServer()
    yield server
    server.stop()


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_block_runs(page: Path, server: LazyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in read_blocks(page) if block.needs is None]
    asyncio.run(run_page(blocks, server))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_blocks_are_of_known_kinds(page: Path) -> None:
    for block in read_blocks(page):
        assert block.language in LANGUAGES, f"{block.where}: ```{block.language}"
        assert block.needs is None or block.needs in NEEDS, f"{block.where}: needs {block.needs}"
        if block.language == "python":
            compile(block.text, block.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_settings_start_a_server(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server takes the settings that a page shows: their names, their values, and users where it asks for a login."""
    file = tmp_path / "server.yaml"
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "s3-secret-key").write_text("x")
    monkeypatch.setenv("FLUSS_KEY_PASSWORD", "x")
    for block in read_blocks(page):
        if block.language == "yaml" and "profiles:" not in block.text:
            file.write_text(block.text.replace("/etc/fluss/secrets", str(secrets)), encoding="utf-8")
            users = UserFile(tmp_path / "users.json")
            users.set_password("alice", "secret")
            config = ServerConfig(load_config_file(file)).with_options({"security.users.file": str(users.path)})
            check_users(config)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        if name.startswith("reference/"):
            continue  # made by the site, which checks it
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{page.name}: {target}"
        if anchor and linked.suffix == ".md":
            headings = re.findall(r"(?m)^#+ (.*)$", linked.read_text(encoding="utf-8"))
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{page.name}: {target}; there are {sorted(anchors)}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=_name)
def test_every_page_is_on_the_map(page: Path) -> None:
    if page.name != "index.md":
        assert f"]({page.name})" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert f"- {page.name}\n" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), "the site's nav lacks it"


def test_generated_tables_are_current() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "generate_docs.py"))
    stale = [page.name for page in PAGES if script["fill"](text := page.read_text(encoding="utf-8")) != text]
    assert not stale, "run python scripts/generate_docs.py"
    assert script["main"](["--check"]) == 0


def test_the_tests_of_the_testing_page_pass(tmp_path: Path) -> None:
    """They are run by pytest in a project of its own, as a reader would run them."""
    block = next(block for block in read_blocks(ROOT / "docs" / "testing.md") if "def test_" in block.text)
    (tmp_path / "test_orders.py").write_text(block.text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=_name)
def test_example_is_on_the_list(example: Path) -> None:
    assert f"]({example.name})" in (ROOT / "examples" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("example", EXAMPLES, ids=_name)
def test_example_runs(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if example.name == "vector_search.py":
        pytest.importorskip("lance")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(example), run_name="__main__")
    shown = capsys.readouterr()
    assert shown.out.strip(), "an example shows something"
    assert not shown.err


def test_a_wrong_block_is_found(server: LazyServer) -> None:
    """The checks above can fail."""
    wrong = Block("page.md", 1, "python", "print(await asyncio.sleep(0, 1))", None, "2\n")
    with pytest.raises(AssertionError, match="this was printed\n1"):
        asyncio.run(run_page([Block("page.md", 0, "python", "import asyncio", None, None), wrong], server))
    with pytest.raises(AssertionError, match=r"page\.md:1 failed: NameError"):
        asyncio.run(run_page([Block("page.md", 1, "python", "nothing", None, None)], server))
    with pytest.raises(AssertionError, match="no target"):
        run_command("make coffee", "127.0.0.1:1")
    with pytest.raises(AssertionError, match="on no index"):
        run_command("pip install fluss-python", "127.0.0.1:1")
    with pytest.raises(AssertionError, match="no extra 'coffee'"):
        run_command("pip install '.[sql,coffee]'", "127.0.0.1:1")
    with pytest.raises(AssertionError, match="no command"):
        run_command("fluss coffee", "127.0.0.1:1")
    with pytest.raises(AssertionError, match="there is no table"):
        run_command("fluss describe fluss.coffee", server.address)
    with pytest.raises(fluss.ConfigError, match="unknown"):
        run_command("fluss server -D coffee=hot", "127.0.0.1:1")


def test_the_cookbook_is_short() -> None:
    """Twenty tasks and more, none of which takes more than three lines."""
    text = (ROOT / "docs" / "cookbook.md").read_text(encoding="utf-8")
    recipes = re.split(r"(?m)^## ", text)[1:]
    assert len(recipes) >= 20
    for recipe in recipes:
        lines = [line for code in re.findall(r"(?ms)^```python\n(.*?)^```$", recipe) for line in code.splitlines()]
        assert 1 <= len([line for line in lines if line.strip() and not line.startswith("import ")]) <= 3, recipe


BASE_INSTALL = """
import asyncio, sys
from pathlib import Path

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pandas", "polars", "duckdb", "pydantic", "pypaimon", "pyiceberg", "pyspark"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
from tests.docs.blocks import LazyServer, read_blocks, run_page

server = LazyServer()
asyncio.run(run_page(read_blocks(Path(sys.argv[1])), server))
server.stop()
"""


def test_the_quickstart_needs_no_extra(tmp_path: Path) -> None:
    """Every block of it runs where only the package itself is installed."""
    done = subprocess.run(
        [sys.executable, "-c", BASE_INSTALL, str(ROOT / "docs" / "quickstart.md")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
