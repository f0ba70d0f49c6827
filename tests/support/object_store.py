"""An S3 server for tests, in a process of its own: its address is in the environment, as users set it."""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PATIENCE = 60.0  # seconds


@contextmanager
def object_store() -> Iterator[str]:
    """A bucket that exists while the block runs. Yields its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    variables = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
    }
    try:
        _wait(url)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            request = urllib.request.Request(f"{url}/bucket", method="PUT")
            urllib.request.urlopen(request).close()
            yield "s3://bucket"
    finally:
        server.kill()
        server.wait()


def _wait(url: str) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            urllib.request.urlopen(url).close()
            return
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < end, "the object store did not start"
            time.sleep(0.1)


def upload(folder: Path, url: str) -> None:
    """Copy a file, or a folder with all its files, to a URL."""
    from pyarrow import fs

    target, path = fs.FileSystem.from_uri(url)
    if folder.is_dir():
        fs.copy_files(str(folder), path, fs.LocalFileSystem(), target)
    else:
        with target.open_output_stream(path) as file:
            file.write(folder.read_bytes())
