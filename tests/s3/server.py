# SPDX-License-Identifier: Apache-2.0
"""A real S3 server of its own for each test module: MinIO, built once by `make s3` from the Go module proxy."""

from __future__ import annotations

import http.client
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.fs as pafs
from tests.ports import free_port

MODULE = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"
FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "s3"
BINARY = FOLDER / "minio"
MISSING = "there is no S3 server; run `make s3` (needs Go)"
BUCKET = "fluss"
REGION = "eu-central-1"


def build() -> None:
    """Build the server into the cache folder."""
    if BINARY.exists():
        return
    go = shutil.which("go")
    if go is None:
        raise SystemExit("Go is not installed; it is needed once to build the S3 server")
    FOLDER.mkdir(parents=True, exist_ok=True)
    subprocess.run([go, "install", MODULE], check=True, env={**os.environ, "GOBIN": str(FOLDER)})


class S3Server:
    """A server that can be killed and started again on the same data and port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Every server has keys of its own: a key in a log or an error cannot be there by accident.
        self.access_key = f"AK{secrets.token_hex(8)}"
        self.secret_key = f"SK{secrets.token_hex(16)}"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> S3Server:
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder.parent),
            "MINIO_ROOT_USER": self.access_key,
            "MINIO_ROOT_PASSWORD": self.secret_key,
            "MINIO_REGION": REGION,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            "GOMAXPROCS": "2",
        }
        command = [str(BINARY), "server", "--quiet", "--address", f"127.0.0.1:{self.port}", str(self.folder)]
        with (self.folder.parent / "s3.log").open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while not self._is_ready():
            assert self._process.poll() is None, (self.folder.parent / "s3.log").read_text()
            assert time.monotonic() < deadline, "the S3 server did not start"
            time.sleep(0.1)
        return self

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        try:
            connection.request("GET", "/minio/health/cluster")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def kill(self) -> None:
        """End the process as a power failure would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    def filesystem(self) -> pafs.S3FileSystem:
        """A view with all rights, for the tests themselves."""
        return pafs.S3FileSystem(
            access_key=self.access_key,
            secret_key=self.secret_key,
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region=REGION,
            allow_bucket_creation=True,
        )

    def files(self, folder: str) -> list[str]:
        """All objects below a folder."""
        selector = pafs.FileSelector(folder, recursive=True, allow_not_found=True)
        return sorted(i.path for i in self.filesystem().get_file_info(selector) if i.type == pafs.FileType.File)

    def options(self, **more: str) -> dict[str, str]:
        """Options of a Fluss server whose remote segments lie here."""
        return {
            "remote.data.dir": f"s3://{BUCKET}/remote",
            "s3.endpoint": self.endpoint,
            "s3.region": REGION,
            "s3.access-key": self.access_key,
            "s3.secret-key": self.secret_key,
            "s3.path-style-access": "true",
            **more,
        }


if __name__ == "__main__":
    build()
    sys.stdout.write(f"{BINARY}\n")
