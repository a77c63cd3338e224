# SPDX-License-Identifier: Apache-2.0
"""Everything the runs need from outside: the jars, the wheels in their own environments, the compiled Java driver.

All of it lands in ``.cache/interop/`` of the repository, is made once, and may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
CACHE = Path(os.environ.get("FLUSS_INTEROP_CACHE", REPOSITORY / ".cache" / "interop"))

FLUSS_VERSION = "0.9.1-incubating"
FLUSS_NEXT_VERSION = "1.0.0"
# Built from the sources of FLUSS_HEAD_COMMIT: `mvn install` of fluss-server and fluss-client.
FLUSS_HEAD_VERSION = "1.0-SNAPSHOT"
FLUSS_HEAD_COMMIT = "545c5539 of 2026-08-22"
JAVA_CLIENTS = (FLUSS_VERSION, FLUSS_NEXT_VERSION)
WHEELS = ("0.1.0", "1.0.0")

# Arrow reaches into direct buffers; from Java 16 on the JVM must be told that this is allowed.
JAVA_OPENS = ("--add-opens=java.base/java.nio=org.apache.arrow.memory.core,ALL-UNNAMED",)
# Flink's serializers reach into collections as well.
FLINK_OPENS = (*JAVA_OPENS, *(f"--add-opens=java.base/{one}=ALL-UNNAMED" for one in ("java.lang", "java.util")))


class Unavailable(Exception):
    """A part of the environment cannot be had here; the text says which and why."""


class NotPublished(Unavailable):
    """The registry has no such artifact; the text is its name."""


def _run(command: list[str], what: str, timeout_s: float) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=HERE, check=False)
    except FileNotFoundError as missing:
        raise Unavailable(f"{what}: {command[0]} is not installed") from missing
    except subprocess.TimeoutExpired as late:
        raise Unavailable(f"{what}: {command[0]} did not finish within {timeout_s:.0f} s") from late
    if done.returncode != 0:
        text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr).strip().splitlines()
        errors = [line for line in text if "ERROR" in line] or text
        said = errors[0].removeprefix("[ERROR] ") if errors else "failed without a word"
        missing = re.search(r"Could not find artifact ([\w.-]+:[\w.-]+)(?::\w+)*:([\w.-]+)", said)
        if missing:
            raise NotPublished(":".join(missing.groups()))
        # Addresses of registries depend on the machine and say nothing about the artifact.
        raise Unavailable(f"{what}: " + re.sub(r"\s*(in )?\(?https?://\S+|\s*->.*", "", said))


def _retry(command: list[str], what: str) -> None:
    """A registry may hiccup: three tries."""
    for tries_left in (2, 1, 0):
        try:
            _run(command, what, 900)
            return
        except Unavailable:
            if not tries_left:
                raise


def java() -> str:
    """The ``java`` to run: that of JAVA_HOME when set, else the one on the path."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not found or not Path(found).exists():
        raise Unavailable("Java 11 or later is not installed")
    return found


def classpath(version: str = FLUSS_VERSION, pom: Path = HERE / "pom.xml") -> str:
    """The class path of the server and the Java client, or of another pom, resolved by coordinates.

    Checksums are required (``-C``): an artifact without one is an unfinished upload, not a release.
    """
    stamp = hashlib.sha256(pom.read_bytes() + version.encode()).hexdigest()[:12]
    listing = CACHE / f"classpath-{version}-{stamp}.txt"
    if listing.exists():
        text = listing.read_text()
        if all(Path(jar).exists() for jar in text.split(os.pathsep)):
            return text
    CACHE.mkdir(parents=True, exist_ok=True)
    partial = listing.with_suffix(".partial")
    command = ["mvn", "-q", "-B", "-U", "-C", "-f", str(pom), "dependency:build-classpath"]
    command += [f"-Dfluss.version={version}", f"-Dmdep.outputFile={partial}"]
    _run(command, f"Apache Fluss {version} from Maven Central", 900)
    text = partial.read_text().strip()
    listing.write_text(text)
    partial.unlink()
    return text


def jar(artifact: str, version: str) -> Path:
    """One published jar, copied without what its pom names: some releases lack a pom, or its parent."""
    copied = CACHE / f"{artifact}-{version}.jar"
    if not copied.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact=org.apache.fluss:{artifact}:{version}"]
        _run([*command, f"-DoutputDirectory={CACHE}"], f"{artifact} {version} from Maven Central", 600)
    return copied


def lake_plugin(version: str = FLUSS_VERSION) -> Path:
    """The jar that teaches Apache Fluss to write Paimon tables."""
    return jar("fluss-lake-paimon", version)


def wheel_python(version: str) -> Path:
    """The interpreter of a virtual environment that holds exactly ``pyfluss==version``."""
    home = CACHE / f"pyfluss-{version}"
    python = home / "bin" / "python"
    done = home / "installed"
    if done.exists():
        return python
    shutil.rmtree(home, ignore_errors=True)
    # The environment needs no pip of its own: ours installs into it, which is quicker and cannot fail in between.
    _run([sys.executable, "-I", "-m", "venv", "--without-pip", str(home)], f"an environment for pyfluss {version}", 300)
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--disable-pip-version-check"]
    _retry([*install, f"pyfluss=={version}", "pytz"], f"pyfluss {version} from PyPI")
    done.write_text(sys.version)
    return python


def java_driver(version: str = FLUSS_VERSION) -> str:
    """Compiles the Java driver against a published client and returns the class path to run it with.

    The client's jar holds all it needs but the logging, which is the same for each version.
    """
    return compiled(HERE / "driver_java", os.pathsep.join([str(jar("fluss-client", version)), classpath()]), version)


def facts_program(version: str) -> str:
    """The same for the program that prints what a released client knows."""
    return compiled(HERE / "facts_java", os.pathsep.join([str(jar("fluss-client", version)), classpath()]), version)


def flink_driver(version: str = FLUSS_VERSION) -> str:
    """The same for the driver of Flink and the official connector, with the lake plugin beside them."""
    folder = HERE / "driver_flink"
    path = os.pathsep.join([str(lake_plugin(version)), classpath(version, folder / "pom.xml")])
    return compiled(folder, path, version)


def lake_jars(version: str = FLUSS_VERSION) -> str:
    """Paimon and the lake plugin: what a real server needs on its class path to create lake tables."""
    paimon = classpath(version, REPOSITORY / "tests" / "lake" / "java" / "pom.xml")
    return os.pathsep.join([str(lake_plugin(version)), paimon])


def compiled(folder: Path, path: str, version: str) -> str:
    """Compile the Java files of a folder, once, and return the class path to run them with."""
    sources = sorted(folder.glob("*.java"))
    digest = hashlib.sha256(version.encode())
    for source in sources:
        digest.update(source.read_bytes())
    classes = CACHE / f"{folder.name.replace('_', '-')}-{version}-{digest.hexdigest()[:12]}"
    if not (classes / "compiled").exists():
        classes.mkdir(parents=True, exist_ok=True)
        javac = str(Path(java()).parent / "javac") if os.environ.get("JAVA_HOME") else "javac"
        _run(
            [javac, "-nowarn", "-encoding", "UTF-8", "-d", str(classes), "-cp", path, *map(str, sources)],
            f"the program {folder.name}",
            300,
        )
        (classes / "compiled").write_text("")
    return os.pathsep.join([str(classes), str(folder), path])
