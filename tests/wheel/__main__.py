# SPDX-License-Identifier: Apache-2.0
"""Check a built wheel and sdist, and use the wheel in empty environments: ``python -m tests.wheel dist``.

The environments are made by the commands of the section "Install" in README.md, as they stand there, and one for each
extra, which has nothing but this extra.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

from tests.docs.blocks import command_lines
from tests.wheel.contents import ROOT, check_sdist, check_wheel

SMOKE = Path(__file__).with_name("smoke.py")
EXTRAS = Path(__file__).with_name("extras.py")


def install_commands() -> list[str]:
    """Return the commands of README that install the package without extras."""
    section = re.split(r"(?m)^## ", (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Install\n")[2])[0]
    blocks = re.findall(r"(?ms)^```bash\n(.*?)^```$", section)
    lines = [line.partition("  #")[0].rstrip() for block in blocks for line in command_lines(block)]
    return [line for line in lines if line.startswith("pip install ") and "[" not in line]


def extras() -> list[str]:
    """Return the names of the extras that users install."""
    section = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[project.optional-dependencies]\n")[2]
    names = re.findall(r"(?m)^(\w+) = \[", section.partition("\n[")[0])
    return [name for name in names if name not in ("dev", "docs", "all")]


def smoke(command: str, *program: str) -> None:
    """Install the package into an empty environment by a command, and run a program there."""
    with tempfile.TemporaryDirectory(prefix="fluss-wheel-") as folder:
        environment = Path(folder) / "venv"
        venv.create(environment, with_pip=True)
        path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        variables = {**os.environ, "PATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        variables.pop("PYTHONPATH", None)
        subprocess.run(["bash", "-c", f"{command} --quiet"], check=True, cwd=ROOT, env=variables)
        python = str(environment / "bin" / "python")
        subprocess.run([python, *program], check=True, cwd=folder, env=variables, timeout=300)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wheel", description=__doc__)
    parser.add_argument("folder", type=Path, help="where wheel and sdist are")
    parser.add_argument("--extras", help="only these, separated by commas")
    parsed = parser.parse_args(arguments)
    folder = parsed.folder
    wheels, sdists = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        print(f"{folder} holds {len(wheels)} wheels and {len(sdists)} sdists instead of one each.", file=sys.stderr)
        return 1
    problems = check_wheel(wheels[0]) + check_sdist(sdists[0])
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        return 1
    for command in install_commands():
        print(f"{command}: ", end="", flush=True)
        smoke(command, str(SMOKE), wheels[0].name.split("-")[1])
        print("works in an empty environment")
    for extra in parsed.extras.split(",") if parsed.extras else extras():
        print(f"[{extra}]: ", end="", flush=True)
        smoke(f"pip install '{wheels[0].resolve()}[{extra}]'", str(EXTRAS), extra)
        print("works with every data type")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
