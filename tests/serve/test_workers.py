"""`genius serve --workers 2`: real processes on one port."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import PATIENCE, RunningServer, copy_index, running_server

from genius.serve.forwarding import merge_metrics
from genius.serve.threads import threads_of_stage

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder for temporary files of the servers."""
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def server(temporary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = copy_index(tmp_path_factory.mktemp("index"))
    with running_server(f"shapes={path}", options=("--workers", "2")) as server:
        eventually(lambda: len(ready_workers(server)) == 2)
        yield server


def request(server: RunningServer, method: str, path: str, **more: Any) -> httpx.Response:
    """Each request has a connection of its own, so that any worker may get it."""
    return httpx.request(method, f"{server.url}{path}", timeout=PATIENCE, trust_env=False, **more)


def eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def workers(parent: int) -> list[int]:
    """Processes of the workers."""
    found = []
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
            found.append(int(child))
    return found


def ready_workers(server: RunningServer) -> set[str]:
    metrics = request(server, "GET", "/metrics").text
    return {number for number in "01" if f'genius_ready{{index="shapes",worker="{number}"}} 1.0' in metrics}


def mapped_by_both(server: RunningServer, temporary: Path) -> set[str]:
    """Names of the files that both workers have mapped: the same inodes."""

    def mapped(process: int) -> set[tuple[str, str]]:
        lines = [line.split(maxsplit=5) for line in Path(f"/proc/{process}/maps").read_text().splitlines()]
        return {(line[4], Path(line[5]).name) for line in lines if len(line) > 5 and line[5].startswith(str(temporary))}

    one, two = (mapped(process) for process in workers(server.process.pid))
    return {name for _, name in one & two}


def test_codes_and_embeddings_are_mapped_once(server: RunningServer, temporary: Path) -> None:
    assert {"embeddings", "codes", "order", "first_diff_level", "halves", "row_ids"} <= mapped_by_both(
        server, temporary
    )


def test_both_workers_answer(server: RunningServer) -> None:
    asked = {"text": "a red circle", "k": 3}
    found = [request(server, "POST", "/v1/search", json=asked) for _ in range(20)]
    assert {one.status_code for one in found} == {200}
    assert len({str([hit["id"] for hit in one.json()["hits"]]) for one in found}) == 1
    metrics = request(server, "GET", "/metrics").text
    for number in "01":
        assert f'genius_requests_total{{method="POST",route="/v1/search",status="200",worker="{number}"}}' in metrics


def test_writes_through_any_worker_are_seen_by_all(server: RunningServer) -> None:
    for number in range(8):
        answer = request(server, "PUT", f"/v1/items/new/{number}", json={"text": f"something new {number}"})
        assert answer.status_code == 201, answer.text
    eventually(lambda: all(request(server, "GET", "/v1/items/new/7").status_code == 200 for _ in range(10)))
    assert request(server, "DELETE", "/v1/items/new/0").status_code == 204
    assert request(server, "DELETE", "/v1/items/new/0").status_code == 404
    eventually(lambda: all(request(server, "GET", "/v1/items/new/0").status_code == 404 for _ in range(10)))


def test_a_client_sees_what_it_wrote_on_its_connection(server: RunningServer) -> None:
    for number in range(6):
        with httpx.Client(base_url=server.url, timeout=PATIENCE, trust_env=False) as client:
            assert client.put(f"/v1/items/mine/{number}", json={"text": "mine"}).status_code == 201
            assert client.get(f"/v1/items/mine/{number}").status_code == 200


def test_jobs_can_be_followed_from_any_worker(server: RunningServer) -> None:
    items = [{"id": f"bulk/{i}", "text": f"one of many {i}"} for i in range(20)]
    for _ in range(3):
        answer = request(server, "POST", "/v1/items", json={"items": items})
        assert answer.status_code == 202
        location = answer.headers["Location"]
        assert {request(server, "GET", location).status_code for _ in range(6)} == {200}
        eventually(lambda location=location: request(server, "GET", location).json()["state"] == "done")


def test_a_large_body_is_forwarded_whole(server: RunningServer) -> None:
    text = "long " * 1900
    items = [{"id": f"long/{i}", "text": text} for i in range(500)]  # about five megabytes
    answers = [request(server, "POST", "/v1/items", json={"items": items}) for _ in range(2)]
    assert {one.status_code for one in answers} == {202}
    assert {one.json()["items"] for one in answers} == {500}
    for one in answers:
        request(server, "DELETE", one.json()["location"])


def test_errors_come_back_as_they_are(server: RunningServer) -> None:
    for _ in range(6):
        answer = request(server, "PUT", "/v1/items/empty", json={})
        assert answer.status_code == 422
        assert answer.json()["error"]["message"]


def test_embeddings_stay_shared_after_writes(server: RunningServer, temporary: Path) -> None:
    assert {"embeddings", "row_ids"} <= mapped_by_both(server, temporary)


def test_a_killed_worker_is_started_again(server: RunningServer) -> None:
    for place in (0, 1):
        before = workers(server.process.pid)
        os.kill(before[place], signal.SIGKILL)
        eventually(lambda before=before: len(set(workers(server.process.pid)) - set(before)) == 1)
        eventually(lambda: len(ready_workers(server)) == 2)
        assert request(server, "PUT", f"/v1/items/after/{place}", json={"text": "after"}).status_code == 201
    assert "It is started again." in server.log


def test_sigterm_stops_all_and_leaves_nothing(server: RunningServer, temporary: Path) -> None:
    running = workers(server.process.pid)
    assert len(running) == 2
    assert list(temporary.glob("genius-serve-*"))
    server.process.terminate()
    assert server.process.wait(PATIENCE) == 0
    assert not any(Path(f"/proc/{process}").exists() for process in running)
    assert not list(temporary.glob("genius-serve-*"))


def test_workers_end_when_their_parent_is_killed(temporary: Path, tmp_path: Path) -> None:
    with running_server(copy_index(tmp_path), options=("--workers", "2")) as server:
        running = workers(server.process.pid)
        server.process.kill()
        server.process.wait()
        eventually(lambda: not any(is_running(process) for process in running))
        eventually(lambda: not list(temporary.glob("genius-serve-*")))


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_index_that_cannot_be_served_ends_the_service(tmp_path: Path, temporary: Path) -> None:
    path = copy_index(tmp_path)
    for file in (path / "items.lance" / "_versions").iterdir():
        file.write_bytes(b"nothing")
    with running_server(path, options=("--workers", "2"), ready=False) as server:
        assert server.process.wait(PATIENCE) == 1
        assert "cannot be served" in server.log


def test_metrics_of_workers_are_merged() -> None:
    one = '# HELP a_total As.\n# TYPE a_total counter\na_total{x="y"} 1.0\n# HELP b Bs.\n# TYPE b gauge\nb 2.0\n'
    two = '# HELP a_total As.\n# TYPE a_total counter\na_total{x="y"} 3.0\n'
    assert merge_metrics({0: one, 1: two}).splitlines() == [
        "# HELP a_total As.",
        "# TYPE a_total counter",
        'a_total{x="y",worker="0"} 1.0',
        'a_total{x="y",worker="1"} 3.0',
        "# HELP b Bs.",
        "# TYPE b gauge",
        'b{worker="0"} 2.0',
    ]


def test_encoding_and_searching_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert [threads_of_stage(workers) for workers in (1, 2, 4, 16)] == [4, 2, 1, 1]
