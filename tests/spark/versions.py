# SPDX-License-Identifier: Apache-2.0
"""Run the suite on all supported versions of PySpark, and write what works on each into docs/spark.md.

    python -m tests.spark.versions               # all versions: features, then tests/spark
    python -m tests.spark.versions 4.1 --probe   # one version, features only
    python -m tests.spark.versions 4.0 --slow    # with kills, clusters, pipelines and long rows

The suite runs with the bridge and without it. Each version but that of this interpreter has a virtual environment in
`.cache`, made on demand: PySpark alone, the rest is shared.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
PAGE = ROOT / "docs" / "spark.md"
RESULTS = Path(__file__).parent / "versions.json"
VERSIONS = ("4.0", "4.1", "4.2", "4.3")
_SECTION = re.compile(r"(<!-- spark-versions: begin -->\n).*?(<!-- spark-versions: end -->)", re.DOTALL)


def interpreter(version: str) -> Path:
    """The Python that has this version of PySpark, installed if need be."""
    if metadata.version("pyspark").startswith(f"{version}."):
        return Path(sys.executable)
    folder = CACHE / f"spark-{version}"
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if not ready.exists():
        venv.create(folder, clear=True, with_pip=False)
        packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
        # After its own packages, those of this interpreter.
        (packages / "zz_shared.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
        subprocess.run([*command, f"pyspark~={version}.0"], check=True)
        ready.touch()
    return python


def run(
    version: str, *arguments: str, capture_output: bool = False, bridge: bool = True
) -> subprocess.CompletedProcess[str]:
    # An environment that says where Spark is would win over the one of this version.
    environment = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "PYSPARK_PYTHON")}
    environment["FLUSS_TEST_SPARK_BRIDGE"] = "1" if bridge else "0"
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [str(interpreter(version)), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, text=True, check=False, capture_output=capture_output)


def probe(version: str) -> dict[str, bool]:
    """What works on a version, by the title of the feature."""
    done = run(version, "-m", "tests.spark.version_probe", capture_output=True)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"the probe failed on PySpark {version}:\n{done.stdout}\n{done.stderr[-4000:]}")
    for line in lines:
        print(line["version"], "yes" if line["works"] else "no ", line["feature"], line["reason"] or "", flush=True)
    return {line["feature"]: line["works"] for line in lines}


def write_page(results: dict[str, dict[str, bool]]) -> None:
    versions = sorted(results)
    features = list(dict.fromkeys(title for found in results.values() for title in found))
    rows = [["", *versions], ["---"] * (len(versions) + 1)]
    rows += [[title, *("yes" if results[v].get(title) else "no" for v in versions)] for title in features]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    text = PAGE.read_text("utf-8")
    PAGE.write_text(_SECTION.sub(lambda match: match[1] + table + match[2], text), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark.versions", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"some of {', '.join(VERSIONS)} (default: all)")
    parser.add_argument("--probe", action="store_true", help="features only, not tests/spark")
    parser.add_argument("--slow", action="store_true", help="the slow tests of tests/spark as well")
    options = parser.parse_args()
    if unknown := set(options.versions) - set(VERSIONS):
        parser.error(f"unknown version {min(unknown)}; supported are {', '.join(VERSIONS)}")
    failed = []
    for version in options.versions or VERSIONS:
        results = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
        results[version] = probe(version)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n", "utf-8")
        write_page(results)
        if options.probe:
            continue
        chosen = "not interop" if options.slow else "not slow and not interop"
        tests = ("-m", "pytest", "-q", "-m", chosen, "tests/spark")
        if run(version, *tests).returncode:
            failed.append(version)
        if run(version, *tests, bridge=False).returncode:
            failed.append(f"{version} without the bridge")
    if failed:
        print(f"tests/spark fails on PySpark {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
