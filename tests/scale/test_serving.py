import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient
from serving import copy_index, drawn_index

from genius.data.items import Item
from genius.errors import GeniusError
from genius.index.index import Index
from genius.scale.serving import Replicas, application, deployment, replica_app
from genius.serve.settings import Settings

PATIENCE = 120.0  # seconds


def test_a_replica_is_ready_when_it_has_started() -> None:
    settings = Settings(host="0.0.0.0", hosts=("testserver",), read_only=True)
    with TestClient(replica_app({"shapes": str(drawn_index())}, settings)) as client:
        found = client.post("/v1/search", json={"text": "a red circle", "k": 3})
        assert found.status_code == 200
        expected = Index.open(drawn_index()).search("a red circle", k=3)
        assert [hit["id"] for hit in found.json()["hits"]] == [hit.id for hit in expected]
        assert client.put("/v1/items/new", json={"text": "new"}).status_code == 403


def test_a_replica_without_its_index_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(GeniusError, match=r"lost"):
        replica_app({"lost": str(tmp_path / "lost")}, Settings())


def test_arguments_are_checked() -> None:
    pytest.importorskip("ray")
    for arguments, message in (
        ({}, "no index"),
        ({"index": "a.genius", "colour": "red"}, "no argument colour"),
        ({"index": "a.genius", "max_replicas": "many"}, "not a number"),
    ):
        with pytest.raises(GeniusError, match=message):
            application(arguments)


@pytest.mark.slow
def test_replicas_answer_follow_the_index_are_replaced_and_grow_with_the_load(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    from ray import serve

    from genius.scale.build import Workers, _ray

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = copy_index(tmp_path)
    index = Index.open(path)
    with _ray(Workers(2)):
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        try:
            app = deployment(
                {"shapes": path}, replicas=Replicas(min_replicas=2, max_replicas=3, target_ongoing_requests=1, cpus=0.5)
            )
            serve.run(app, name="genius")
            url = f"http://127.0.0.1:{port}"
            expected = [hit.id for hit in index.search("a blue star", k=5)]

            def ask() -> list[str]:
                found = httpx.post(f"{url}/v1/search", json={"text": "a blue star", "k": 5}, timeout=PATIENCE)
                return [hit["id"] for hit in found.raise_for_status().json()["hits"]]

            assert [ask() for _ in range(20)] == [expected] * 20
            assert replica_count(serve) == 2

            index.add([Item("new", "a blue star, a blue star")])
            wait_until(lambda: all("new" in ask() for _ in range(8)))

            victims = [actor for actor in ray.util.list_named_actors(all_namespaces=True) if "genius" in actor["name"]]
            victim = next(one for one in victims if "#" in one["name"])
            ray.kill(ray.get_actor(victim["name"], namespace=victim["namespace"]), no_restart=True)
            wait_until(lambda: answers(ask) and replica_count(serve) == 2)
            assert "new" in ask()

            grown = threading.Event()

            def load() -> bool:
                while not grown.is_set():
                    assert "new" in ask()
                return True

            with ThreadPoolExecutor(8) as pool:
                clients = [pool.submit(load) for _ in range(8)]
                try:
                    wait_until(lambda: replica_count(serve) == 3)
                finally:
                    grown.set()
                assert all(client.result() for client in clients)
        finally:
            serve.shutdown()


def replica_count(serve: object) -> int:
    deployed = serve.status().applications["genius"].deployments["genius"]  # type: ignore[attr-defined]
    return int(deployed.replica_states.get("RUNNING", 0))


def answers(ask: object) -> bool:
    try:
        return bool(ask())  # type: ignore[operator]
    except httpx.HTTPError:
        return False


def wait_until(true: object) -> None:
    end = time.monotonic() + PATIENCE
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.2)
