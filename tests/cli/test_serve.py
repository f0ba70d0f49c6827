"""The command `genius serve`: what it makes of its arguments, what it says, and how a real one starts and ends."""

import json
import re
import signal
import socket
import stat
import subprocess
import sys
import time
import tomllib
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fakes import tiny_model
from serving import copy_index, running_server

from genius.cli import serve as cli_serve
from genius.cli.app import main
from genius.data.items import Item
from genius.index.index import Index
from genius.model.genius import Genius
from genius.serve import keys, server
from genius.serve.settings import Settings

KEY = "k" * 21 + "-_KEY-234567890"
PUBLIC = ("--host", "0.0.0.0")


@dataclass
class Result:
    status: int
    out: str
    err: str


@pytest.fixture
def path(tmp_path: Path, monkeypatch) -> Path:
    def from_pretrained(name: str, int8: bool = True, device: str = "cpu") -> Genius:
        return tiny_model(seed=0)

    monkeypatch.setattr(Genius, "from_pretrained", from_pretrained)
    index = Index.create(tmp_path / "photos.genius", tiny_model(seed=0))
    index.add([Item(f"t{i}", text=f"text {i}") for i in range(3)])
    return tmp_path / "photos.genius"


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs the command as the shell would; in place of the server, `calls` gets what it would be given."""
    calls: list[SimpleNamespace] = []

    def instead(
        app: Any, settings: Settings, listener: Any, ready: Any, announce: Any, access_log: bool, **more: Any
    ) -> None:
        calls.append(SimpleNamespace(app=app, settings=settings, ready=ready, access_log=access_log))
        announce()

    monkeypatch.setattr(server, "run", instead)
    monkeypatch.setenv("COLUMNS", "200")
    for name in keys.VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: object) -> Result:
        with pytest.raises(SystemExit) as exit:
            main(["serve", *map(str, arguments)])
        shown = capsys.readouterr()
        return Result(int(exit.value.code or 0), shown.out, shown.err)

    call.calls = calls  # type: ignore[attr-defined]
    return call


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "keys.txt"
    file.write_text(f"write {KEY}")
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    return file


def settings_of(run, *arguments: object) -> Settings:
    result = run(*arguments)
    assert result.status == 0, result.err
    return run.calls[-1].settings


def test_it_says_where_it_is_and_what_it_serves(run, path):
    result = run(path, f"news={path}", "--port", 0)
    assert result.status == 0
    assert re.search(r"GENIUS is at http://127\.0\.0\.1:[1-9]\d+\n  photos: 3 items\n  news: 3 items\n", result.out)
    assert "Reading needs no key; writing needs none either, from this machine." in result.out
    assert result.err == ""
    assert list(run.calls[0].app.state.served) == ["photos", "news"]
    assert not run.calls[0].ready()  # nothing has been started here


def test_options_become_settings(run, path):
    settings = settings_of(
        run, path, "--port", 0, "--read-only", "--rate-limit", 5, "--rate-burst", 7, "--max-batch", 9,
        "--allow-host", "a.example", "--allow-host", "b.example", "--allow-origin", "HTTPS://Pages.example/",
    )  # fmt: skip
    assert (settings.read_only, settings.rate_limit, settings.rate_burst, settings.max_batch) == (True, 5.0, 7, 9)
    assert settings.hosts == ("a.example", "b.example")
    assert settings.origins == ("https://pages.example",)
    assert settings.port > 0  # the one that was free


def test_without_options_the_settings_are_the_usual_ones(run, path):
    settings = settings_of(run, path, "--port", 0)
    assert settings == Settings(port=settings.port)


def test_lines_for_requests_can_be_left_out(run, path):
    run(path, "--port", 0)
    run(path, "--port", 0, "--quiet")
    assert [call.access_log for call in run.calls] == [True, False]


def test_keys_come_from_the_file_and_the_environment(run, path, key_file, monkeypatch):
    assert settings_of(run, path, "--port", 0, "--keys", key_file).write_keys == {keys.digest(KEY)}
    monkeypatch.setenv("GENIUS_READ_KEY", KEY[::-1])
    settings = settings_of(run, path, "--port", 0, "--keys", key_file)
    assert (settings.read_keys, settings.write_keys) == ({keys.digest(KEY[::-1])}, {keys.digest(KEY)})


def test_a_key_file_that_others_can_read_is_complained_of(run, path, key_file):
    assert run(path, "--port", 0, "--keys", key_file).err == ""
    key_file.chmod(0o644)
    result = run(path, "--port", 0, "--keys", key_file)
    assert result.status == 0
    assert f"chmod 600 {key_file}" in result.err
    assert KEY not in result.out + result.err


def test_a_bad_key_file_stops_it(run, path, tmp_path):
    (tmp_path / "keys").write_text("read password")
    result = run(path, "--keys", tmp_path / "keys")
    assert result.status == 1
    assert "20 to 200 letters" in result.err
    assert "password" not in result.err
    assert run.calls == []


def test_open_reading_on_a_public_address_is_said_loudly(run, path, key_file):
    result = run(path, "--port", 0, *PUBLIC)
    assert result.status == 0
    assert "WARNING: 0.0.0.0 can be reached from other machines" in result.err
    assert "nobody may write, because there is no write key" in result.out
    assert "WARNING" in run(path, "--port", 0, *PUBLIC, "--keys", key_file).err  # a write key closes no door to readers
    key_file.write_text(f"read {KEY}")
    assert run(path, "--port", 0, *PUBLIC, "--keys", key_file).err == ""


READING, WRITING = frozenset({b"r"}), frozenset({b"w"})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (Settings(), "Reading needs no key; writing needs none either, from this machine."),
        (Settings(read_only=True), "Reading needs no key; it is read-only."),
        (Settings(write_keys=WRITING), "Reading needs no key; writing needs a write key."),
        (Settings(read_keys=READING), "Reading needs a key; nobody may write, because there is no write key."),
        (Settings(host="::"), "Reading needs no key; nobody may write, because there is no write key."),
        (Settings(host="::", read_keys=READING, write_keys=WRITING), "Reading needs a key; writing needs a write key."),
    ],
)
def test_what_it_says_about_keys(settings, sentence):
    assert cli_serve.rights(settings) == sentence


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "http://127.0.0.1:80"), ("0.0.0.0", "http://127.0.0.1:80"), ("::", "http://[::1]:80"),
     ("::1", "http://[::1]:80"), ("box.local", "http://box.local:80")],
)  # fmt: skip
def test_the_address_can_be_opened_in_a_browser(host, address):
    assert cli_serve.address_of(Settings(host=host, port=80)) == address


def test_the_browser_is_opened_if_asked(run, path, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(cli_serve, "Thread", lambda target, args, daemon: SimpleNamespace(start=lambda: target(*args)))
    run(path, "--port", 0)
    assert opened == []
    run(path, "--port", 0, "--open")
    assert opened == [f"http://127.0.0.1:{run.calls[-1].settings.port}"]


def test_a_new_key_is_printed(run, tmp_path):
    first, second = run("--new-key"), run("--new-key")
    assert first.status == 0
    assert first.out != second.out
    file = tmp_path / "keys"
    file.write_text(f"read {first.out.strip()}")
    assert len(keys.read_keys(file, {}).read) == 1


@pytest.mark.parametrize("origin", ["example.org", "ftp://x", "https://", "https://a/b", "*", "https://*.example.org"])
def test_what_is_no_origin_is_refused(run, path, origin):
    result = run(path, "--port", 0, "--allow-origin", origin)
    assert result.status == 1
    assert "is not an origin" in result.err


def test_what_is_no_host_is_refused(run, path):
    """The checks are put together when the app starts; a wrong name must not wait until then."""
    result = run(path, "--port", 0, "--allow-host", "http://x")
    assert result.status == 1
    assert "is not a host name" in result.err


def test_what_cannot_be_served_is_told(run, path, tmp_path):
    assert "is not an index" in run(tmp_path / "none").err
    assert "Two indexes have the name 'photos'" in run(path, path).err
    assert run.calls == []


def test_without_the_packages_it_says_what_to_install(run, path, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "genius.serve.server")
    result = run(path)
    assert result.status == 1
    assert 'pip install "genius-search[serve]"' in result.err


def test_a_real_one_starts_answers_and_ends_well(tmp_path, key_file):
    index = copy_index(tmp_path)
    with running_server(index, options=("--keys", str(key_file))) as running:
        deadline = time.monotonic() + 60
        while "GENIUS is at" not in running.log:  # printed beside the first requests
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with httpx.Client(base_url=running.url, trust_env=False) as client:
            found = client.post("/v1/search", json={"text": "a red circle", "k": 3})
            assert found.status_code == 200
            assert len(found.json()["hits"]) == 3
            assert client.put("/v1/items/new", json={"text": "a new one"}).status_code == 401
            held = {"Authorization": f"Bearer {KEY}"}
            assert client.put("/v1/items/new", json={"text": "a new one"}, headers=held).status_code == 201
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0
        log = running.log
    assert f"GENIUS is at {running.url}\n  shapes: 42 items\n" in log
    assert "writing needs a write key" in log
    assert "POST /v1/search 200" in log
    assert "red circle" not in log
    assert KEY not in log
    assert "Traceback" not in log
    assert Index.open(index).get("new").text == "a new one"


# The container: what can be said of it without building it

ROOT = Path(__file__).parents[2]


def instructions() -> list[tuple[str, str]]:
    """Instruction and arguments of each line of the Dockerfile, lines that go on put together."""
    text = re.sub(r"\\\n\s*", " ", (ROOT / "Dockerfile").read_text())
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def test_the_container_is_made_of_what_there_is():
    """Every file that is copied exists and is let through by .dockerignore; the extra exists; versions are pinned."""
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    copied = {
        source
        for name, rest in instructions()
        if name == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert copied == let_through
    assert all((ROOT / source).exists() for source in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*project["license-files"], project["readme"]} <= copied
    runs = " ".join(rest for name, rest in instructions() if name == "RUN")
    assert set(re.findall(r'"\.\[(\w+)\]"', runs)) == {"serve"} <= set(project["optional-dependencies"])
    assert "--constraint constraints.txt" in runs
    assert "torch" not in runs


def test_the_container_runs_without_rights_and_from_a_version_that_is_named():
    found = instructions()
    image = dict(rest.split("=") for name, rest in found if name == "ARG")["PYTHON"]
    assert re.fullmatch(r"3\.\d+\.\d+-slim-\w+", image)
    assert {rest.removesuffix(" AS build") for name, rest in found if name == "FROM"} == {"python:${PYTHON}"}
    assert [rest for name, rest in found if name == "USER"] == ["10001:10001"]
    names = [name for name, _ in found]
    assert names.index("USER") > max(i for i, name in enumerate(names) if name in ("RUN", "COPY"))


def test_the_container_starts_with_a_command_that_there_is(run, path):
    given = {name: json.loads(rest) for name, rest in instructions() if name in ("ENTRYPOINT", "CMD")}
    command = given["ENTRYPOINT"][1:]
    assert command == ["serve", "--host", "0.0.0.0", "--port", "8000"]
    assert given["CMD"] == ["/data/index.genius"]
    command[command.index("8000")] = "0"
    result = run(*command[1:], path)
    assert result.status == 0
    assert "nobody may write" in result.out


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1), (None, 1)])
def test_the_container_knows_whether_it_is_well(status, code):
    """The health check itself, with the port of a stand-in."""
    check = next(rest for name, rest in instructions() if name == "HEALTHCHECK")
    program = json.loads(check.partition(" CMD ")[2])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        answering = Thread(target=answer_once, args=(listener, status), daemon=True)
        answering.start()
        done = subprocess.run(
            [sys.executable, program[1], program[2].replace("8000", str(port))], capture_output=True, timeout=60
        )
        answering.join(10)
    assert done.returncode == code


def answer_once(listener: socket.socket, status: int | None) -> None:
    connection, _ = listener.accept()
    with connection:
        assert connection.recv(1000).startswith(b"GET /healthz ")
        if status is not None:
            connection.sendall(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode())


def test_the_only_index_cannot_be_loaded(tmp_path):
    """Its data files are cut off, which shows only when they are read."""
    path = copy_index(tmp_path)
    for file in path.glob("items.lance/data/*"):
        file.write_bytes(file.read_bytes()[:100])
    with running_server(path, ready=False) as server:
        assert server.process.wait(120) == 1
        log = server.log
    assert "Traceback" not in log
    assert "The index shapes cannot be served." in log
    assert ".rs:" not in log


def test_one_of_two_indexes_cannot_be_opened(tmp_path):
    good, bad = copy_index(tmp_path), copy_index(tmp_path, "bad.genius")
    for file in bad.glob("items.lance/_versions/*"):
        file.write_bytes(b"damaged")
    with running_server(bad, good) as server:
        ready = httpx.get(f"{server.url}/readyz", trust_env=False)
        assert (ready.status_code, ready.json()["failed"]) == (200, ["bad"])
        for name, status in (("bad", 503), ("shapes", 200)):
            answer = httpx.get(f"{server.url}/v1/items", params={"index": name}, trust_env=False)
            assert answer.status_code == status
        assert "The index bad cannot be served." in server.log
        assert "Traceback" not in server.log


def test_none_of_two_indexes_can_be_opened(tmp_path, run):
    broken = []
    for name in ("a.genius", "b.genius"):
        broken.append(copy_index(tmp_path, name))
        for file in broken[-1].glob("items.lance/_versions/*"):
            file.write_bytes(b"damaged")
    result = run(*map(str, broken))
    assert result.status == 1
    assert "The index a cannot be served." in " ".join(result.err.split())
    assert "The index b cannot be served." in " ".join(result.err.split())
