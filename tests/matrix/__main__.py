# SPDX-License-Identifier: Apache-2.0
"""Run the tests with other interpreters and other versions of the dependencies: ``python -m tests.matrix``.

Each pair gets an environment of its own in .cache/matrix, made by uv, which is all this program needs. It downloads no
interpreters: one that is not installed is left out and named in the table at the end. Everything is installed from
wheels, so that "lowest" means the lowest version that has one for the interpreter.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "matrix"

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
EXTRAS = ("pandas", "polars", "sql", "console", "metrics")
"""Without `paimon`, which limits pyarrow, and `spark`: `make test` has both."""

SHOWN = ("pyarrow", "numpy", "pandas", "polars", "duckdb", "protobuf")
TESTS = (
    *("tests/test_options.py", "tests/metadata", "tests/rows", "tests/records", "tests/protocol", "tests/client"),
    *("tests/db", "tests/cli", "tests/test_api_surface.py", "tests/test_config.py", "tests/test_errors.py"),
)


def find_interpreter(version: str) -> str | None:
    """Return the path of an installed interpreter: on the path, or one of pyenv's."""
    candidates = [shutil.which(f"python{version}"), sys.executable]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += map(str, sorted(pyenv.glob(f"{version}.*/bin/python")))
    for path in filter(None, candidates):
        shown = subprocess.run([path, "-c", "import sys; print(*sys.version_info[:2], sep='.')"], capture_output=True)
        if shown.returncode == 0 and shown.stdout.decode().strip() == version:
            return path
    return None


def uv_command() -> str:
    """Return the path of uv: beside this interpreter, or on the path."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise SystemExit("There is no uv. Install it: pip install uv")
    return found


def make_environment(interpreter: str, version: str, dependencies: str) -> Path:
    """Create the environment of one pair and return its interpreter."""
    folder = CACHE / f"{version}-{dependencies}"
    python = folder / "bin" / "python"
    uv = uv_command()
    install = [uv, "pip", "install", "--quiet", "--python", str(python), "--only-binary", ":all:"]
    extras = [argument for extra in EXTRAS for argument in ("--extra", extra)]
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", interpreter, str(folder)], check=True)
    subprocess.run(
        [*install, "--resolution", RESOLUTIONS[dependencies], "-r", "pyproject.toml", *extras], check=True, cwd=ROOT
    )
    # The tools come second and leave what is installed as it is: only the dependencies of users are at their lowest.
    frozen = folder / "constraints.txt"
    listed = subprocess.run([uv, "pip", "freeze", "--python", str(python)], check=True, capture_output=True)
    frozen.write_bytes(listed.stdout)
    subprocess.run([*install[:-2], "--constraint", str(frozen), "-e", ".[dev]"], check=True, cwd=ROOT)
    return python


def versions_of(python: Path) -> str:
    """Describe what the environment has."""
    program = f"from importlib.metadata import version as v; print(*(f'{{n}} {{v(n)}}' for n in {SHOWN!r}), sep=', ')"
    return subprocess.run([python, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def run(version: str, dependencies: str, tests: Sequence[str]) -> tuple[str, str]:
    """Run the tests of one pair; return what was installed, and the result."""
    interpreter = find_interpreter(version)
    if interpreter is None:
        return "", "left out: no such interpreter"
    try:
        python = make_environment(interpreter, version, dependencies)
    except subprocess.CalledProcessError:
        return "", "FAILED: the dependencies cannot be installed"
    installed = versions_of(python)
    print(f"== Python {version}, {dependencies}: {installed}", flush=True)
    started = time.monotonic()
    command = [str(python), "-m", "pytest", "-q", "-m", "not slow and not interop and not ui and not spark", "-n", "2"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*command, "--dist", "loadfile", *tests], cwd=ROOT, env=environment)
    result = "passed" if done.returncode == 0 else "FAILED"
    return installed, f"{result} in {time.monotonic() - started:.0f} s"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--python", action="append", choices=PYTHONS, help="only this version; may be repeated")
    parser.add_argument("--dependencies", action="append", choices=RESOLUTIONS, help="only these versions")
    parser.add_argument("tests", nargs="*", help="what to run instead of the default")
    given = parser.parse_args(arguments)
    pairs = [
        (python, resolution) for python in given.python or PYTHONS for resolution in given.dependencies or RESOLUTIONS
    ]
    rows = [(*pair, *run(*pair, given.tests or TESTS)) for pair in pairs]
    print("| Python | dependencies | result | versions |\n| --- | --- | --- | --- |")
    for version, dependencies, installed, result in rows:
        print(f"| {version} | {dependencies} | {result} | {installed} |")
    asked = bool(given.python)  # an interpreter that was asked for by name has to be there
    return int(any(result.startswith("FAILED") or (asked and result.startswith("left out")) for *_, result in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
