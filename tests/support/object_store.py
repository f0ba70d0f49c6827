"""An S3 server for tests, moto's, in a process of its own."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from pyarrow import fs

BUCKET = "bucket"

_SERVER = """
import logging, sys
from werkzeug.serving import make_server
from moto.server import DomainDispatcherApplication, create_backend_app
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def s3_server(**variables: str) -> Iterator[dict[str, str]]:
    """Start a server with one bucket. Yields the storage options. variables: of the environment of the server."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
    )
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        _wait_for(url)
        options = {
            "aws_access_key_id": "testing",
            "aws_secret_access_key": "testing",
            "aws_region": "us-east-1",
            "aws_endpoint": url,
            "allow_http": "true",
        }
        s3(options).create_bucket(Bucket=BUCKET)
        yield options
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def object_store() -> Iterator[str]:
    """Start a server whose address and keys are in the environment, as users set them. Yields the URL of a bucket."""
    with s3_server() as options, pytest.MonkeyPatch.context() as patch:
        for name, value in as_environment(options).items():
            patch.setenv(name, value)
        yield f"s3://{BUCKET}"


def upload(folder: Path, url: str) -> None:
    """Copy a file, or a folder with all its files, to a URL."""
    target, path = fs.FileSystem.from_uri(url)
    if folder.is_dir():
        fs.copy_files(str(folder), path, fs.LocalFileSystem(), target)
    else:
        with target.open_output_stream(path) as file:
            file.write(folder.read_bytes())


def s3(options: dict[str, str]) -> Any:
    """A client of the server."""
    return boto3.client(
        "s3",
        endpoint_url=options["aws_endpoint"],
        aws_access_key_id=options["aws_access_key_id"],
        aws_secret_access_key=options["aws_secret_access_key"],
        region_name=options["aws_region"],
    )


def as_environment(options: dict[str, str]) -> dict[str, str]:
    """The same options as environment variables."""
    return {
        "AWS_ACCESS_KEY_ID": options["aws_access_key_id"],
        "AWS_SECRET_ACCESS_KEY": options["aws_secret_access_key"],
        "AWS_REGION": options["aws_region"],
        "AWS_DEFAULT_REGION": options["aws_region"],
        "AWS_ENDPOINT_URL": options["aws_endpoint"],
        "AWS_ALLOW_HTTP": "true",
    }


def _wait_for(url: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"{url}/moto-api/", timeout=5).close()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("moto's server does not answer")
