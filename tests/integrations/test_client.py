"""The client: the same answers as the index itself, through the real service; and what it does when things go wrong."""

import asyncio
import base64
import io
import json
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from PIL import Image
from serving import copy_index, drawn_items, make_app, mini_model, png, running_server, wait_until_ready

from genius.data.items import Item, Modality, Query
from genius.errors import BadImage, BadItem, GeniusError
from genius.index.index import Index
from genius.integrations import client as client_module
from genius.integrations import connection, wire
from genius.integrations.client import Client, NotAllowed, NotFound, ServiceBusy, ServiceError, Unreachable
from genius.integrations.langchain import GeniusRetriever as LangChainRetriever
from genius.integrations.llamaindex import GeniusRetriever as LlamaIndexRetriever
from genius.search.results import Hit, Hits
from genius.serve.keys import digest


@contextmanager
def served(paths: dict[str, Path], **limits: Any) -> Iterator[str]:
    """The address of the real service over these indexes, in a thread of this process."""
    config = uvicorn.Config(make_app(paths, **limits), port=0, log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            with httpx.Client(base_url=url, timeout=10, trust_env=False) as asking:
                wait_until_ready(asking)
            yield url
        finally:
            server.should_exit = True
            thread.join()


def same(found: Hits, expected: list[Hit]) -> None:
    """All but the images, of which the service sends copies; scores are rounded by batches and JSON."""
    assert [hit.id for hit in found] == [hit.id for hit in expected]
    assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected], abs=1e-4)
    for one, other in zip(found, expected, strict=True):
        assert (one.modality, one.codes, one.item.text) == (other.modality, other.codes, other.item.text)
        assert (one.item.metadata, one.item.modality) == (other.item.metadata, other.item.modality)


# The real service


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("client")
    return {"shapes": copy_index(folder, "shapes"), "written": copy_index(folder, "written")}


@pytest.fixture(scope="module")
def url(paths: dict[str, Path]) -> Iterator[str]:
    with served(paths, max_body=4_000_000) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


@pytest.fixture(scope="module")
def writer(url: str) -> Iterator[Client]:
    with Client(url, index="written") as client:
        yield client


@pytest.fixture(scope="module")
def index(paths: dict[str, Path]) -> Index:
    return Index.open(paths["shapes"], mini_model())


RED = png("red circle")


@pytest.mark.parametrize(
    ("query", "options"),
    [
        (Query(text="a red circle"), {}),
        (Query(text="grüne 猫 'quoted' \"text\""), {"k": 3}),
        (Query(image=RED), {"k": 42}),
        (Query(image=RED, text="in blue", target="image,text"), {"mode": "rerank"}),
        (Query(text="star", target=Modality.TEXT, instruction=""), {"mode": "generate", "beam": 5}),
        (Query(text="star", target="images", instruction="Find a drawing."), {"budget": 20}),
        (Query(text="star"), {"where": "shape = 'star' AND number < 10"}),
        (Query(text="star"), {"ids": {"text 1", "pair-red-star", "no such"}}),
    ],
)
def test_a_search_finds_what_the_index_finds(client, index, query, options):
    same(client.search(query, **options), index.search(query, **options))


def test_a_image_can_be_a_path_bytes_or_a_pil_image(client, index, tmp_path):
    (tmp_path / "red.png").write_bytes(RED)
    expected = index.search(Query(image=RED))
    for source in (tmp_path / "red.png", str(tmp_path / "red.png"), RED, Image.open(io.BytesIO(RED))):
        same(client.search(Query(image=source)), expected)


def test_many_queries_are_asked_in_batches(client, index, monkeypatch):
    monkeypatch.setattr(client_module, "BATCH_QUERIES", 3)
    queries = [Query(text=word) for word in ("red", "star", "soup", "sea", "猫", "library", "order")]
    for found, expected in zip(client.search(queries, k=4), index.search(queries, k=4), strict=True):
        same(found, expected)
    assert client.search([]) == []


def test_an_answer_tells_how_it_was_found(client, index):
    query = Query(text="a red circle")
    answer, expected = client.answer(query, k=3, mode="rerank", beam=4), index.answer(query, k=3, mode="rerank", beam=4)
    same(answer.hits, expected.hits)
    assert [branch.codes for branch in answer.branches] == [branch.codes for branch in expected.branches]
    assert len(answer.branches) == 4
    assert answer.candidates == expected.candidates
    assert {"queue", "encode", "generate", "rerank", "total"} <= answer.seconds.keys()
    again = client.answer([query, query], k=3, mode="rerank", beam=4)[1]
    assert [branch.codes for branch in again.branches] == [branch.codes for branch in answer.branches]


def test_an_item_can_be_searched_with(client, index):
    item = index.get("pair-red-circle")
    same(client.search_like(item.id, k=5), index.search(Query(item.text, item.image), k=5))
    expected = index.search(Query("in blue", item.image, target="image"), k=5)
    same(client.search_like(item.id, "in blue", target="image", k=5), expected)
    with pytest.raises(NotFound, match="no such"):
        client.search_like("no such item")


def test_items_are_read_as_they_are(client, index):
    for given in drawn_items():
        found = client.get(given.id)
        assert (found.id, found.text, found.metadata) == (given.id, given.text, given.metadata)
        assert found.modality == given.modality
    assert client.get("no such") is None
    assert client.get(["text 0", "no such"]) == [index.get("text 0"), None]
    assert client.get_coded("text 0") == index.get_coded("text 0")


def test_items_are_counted_and_listed(client, index):
    where = "modality = 'text' AND number >= 103"
    assert client.count() == len(index)
    assert client.count(where) == index.count(where)
    assert client.filter(where, limit=3, offset=2) == index.filter(where, limit=3, offset=2)
    with pytest.raises(ServiceError, match="wings"):
        client.count("wings = 2")


def test_codes_can_be_walked(client, index):
    root = client.browse_codes()
    assert root.total == len(index)
    for pattern in ([], [1], [None, index.get_coded("text 3").codes[1]]):
        found, expected = client.browse_codes(pattern, limit=4), index.browse_codes(pattern, limit=4)
        assert (found.total, found.ids, found.children) == (expected.total, expected.ids, expected.children)
        assert [one.codes for one in found.items] == [one.codes for one in expected.items]
        assert [one.item.id for one in found.items] == [one.item.id for one in expected.items]


def test_images_are_fetched_small_when_asked_for(client):
    data = client.image("images/red-circle.png", size=64)
    assert max(Image.open(io.BytesIO(data)).size) == 64
    assert client.image("text 0") is None
    assert client.image("no such") is None
    hits = client.search(Query(text="red"), k=42)
    with_images = client.with_images(hits, size=64)
    assert [hit.id for hit in with_images] == [hit.id for hit in hits]
    for hit in with_images:
        assert isinstance(hit.item.image, bytes) == (hit.modality is not Modality.TEXT)


def test_a_notebook_shows_hits_with_images_from_the_service(client):
    assert client.search(Query(text="red circle"), k=42)._repr_html_().count("<img") == 32
    lists = client.search(["red circle", "blue star"], k=42)
    assert [list._repr_html_().count("<img") for list in lists] == [32, 32]
    shown = lists._repr_html_()
    assert "Query 1: 42 hits, the first 25 shown" in shown
    assert "Query 2: " in shown
    hits = lists[0][:3]
    assert "3 hits" in hits._repr_html_()


def test_a_notebook_shows_hits_without_images_if_the_service_is_gone(url):
    with Client(url) as client:
        hits = client.search("red circle", k=3)
    assert "3 hits" in hits._repr_html_()
    assert "closed" in hits._repr_html_()


def test_hits_carry_images_that_are_fetched_when_they_are_read(url, monkeypatch):
    fetched: list[str] = []
    fetch = Client.image

    def counting(self: Client, id: str, size: int = 256) -> bytes | None:
        fetched.append(id)
        return fetch(self, id, size)

    monkeypatch.setattr(Client, "image", counting)
    with Client(url) as client:
        image, text = client.search(Query(text="red circle", target="image"), k=1)[0], client.get("text 0")
        again = client.get(image.id)
        assert (again == image.item, hash(again) == hash(image.item), "fetched when" in repr(again)) == (
            True,
            True,
            True,
        )
        assert image.item.modality is Modality.IMAGE
        assert text.image is None
        assert fetched == []
        data = image.item.image
        assert Image.open(io.BytesIO(data)).size[0] > 0
        assert image.item.image is data
        assert fetched == [image.id]
        copy = pickle.loads(pickle.dumps(image))  # noqa: S301
        assert (type(copy.item), copy.item.image) == (Item, data)
        assert client.search(image.item.image, k=1)[0].id == image.id
        LangChainRetriever(source=client, search_kwargs={"k": 5}).invoke("red circle")
        assert fetched == [image.id]


def test_a_client_is_counted_and_iterated_like_an_index(client, index, monkeypatch):
    monkeypatch.setattr(client_module, "_PAGE", 5)
    assert len(client) == len(index)
    assert [item.id for item in client] == [item.id for item in index]
    assert "text 0" in client
    assert "no such" not in client
    assert 5 not in client


def test_strings_paths_bytes_and_images_are_queries(client, index, tmp_path):
    (tmp_path / "red.png").write_bytes(RED)
    same(client.search("a red circle"), index.search(Query(text="a red circle")))
    for source in (tmp_path / "red.png", RED, Image.open(io.BytesIO(RED))):
        same(client.search(source), index.search(Query(image=RED)))
    mixed = ["a red circle", tmp_path / "red.png", Query(text="star", target="text")]
    for found, expected in zip(client.search(mixed), index.search(mixed), strict=True):
        same(found, expected)
    assert client.answer("a red circle", k=1).hits[0].id == index.answer("a red circle", k=1).hits[0].id


def test_items_are_deleted_by_a_filter(writer):
    writer.upsert(Item(f"where/{number}", f"Number {number}.", metadata={"wave": number}) for number in range(6))
    before = len(writer)
    assert writer.delete(where="starts_with(id, 'where/') AND wave >= 2") == 4
    assert len(writer) == before - 4
    assert writer.delete(where="starts_with(id, 'where/') AND wave >= 2") == 0
    for arguments in ({}, {"ids": ["where/0"], "where": "wave = 0"}):
        with pytest.raises(GeniusError, match="either ids or where"):
            writer.delete(**arguments)
    for where in ("", " ", "wings = 2", "wave = two"):
        with pytest.raises(ServiceError) as caught:
            writer.delete(where=where)
        assert (caught.value.status, caught.value.field) == (422, "where")
    assert len(writer) == before - 4


def test_several_indexes_by_name(client, url):
    assert [one.name for one in client.indexes()] == ["shapes", "written"]
    first = client.indexes()[0]
    assert (first.items, first.model, first.writable, first.ready) == (42, "mini", True, True)
    assert first.fields["colour"] == "text"
    assert first.sizes[0] == 3
    unknown = Client(url, index="elsewhere")
    for ask in (
        unknown.count,
        lambda: unknown.get("text 0"),
        lambda: unknown.image("x"),
        lambda: unknown.delete("x"),
    ):
        with pytest.raises(NotFound, match="elsewhere"):
            ask()


def test_the_services_sentence_comes_through(client):
    with pytest.raises(ServiceError, match="must be at most 200") as caught:
        client.search(Query(text="star"), k=999)
    assert (caught.value.status, caught.value.field) == (422, "k")
    with pytest.raises(ServiceError, match="image") as caught:
        client.search(Query(image=b"no image"))
    assert caught.value.status == 422


def test_a_body_that_is_too_large_is_told_although_it_is_not_read(client):
    with pytest.raises(ServiceError, match="bytes") as caught:
        client.search(Query(image=RED + bytes(6_000_000)))
    assert caught.value.status == 413


def test_bad_arguments_are_refused_before_anything_is_sent(tmp_path):
    client = Client("http://127.0.0.1:9")
    for query in (5, None, {"text": "words"}, [["words"]], [5]):
        with pytest.raises(GeniusError, match="cannot be searched with"):
            client.search(query)
    for options, sentence in (
        ({"k": 1.5}, "k is 1.5; it must be a whole number"),
        ({"beam": "3"}, "beam is '3'; it must be a whole number"),
        ({"target": "image"}, "target belongs to the query"),
        ({"size": 3}, "no option 'size'"),
    ):
        with pytest.raises(GeniusError, match=sentence):
            client.search("words", **options)
    with pytest.raises(GeniusError, match="ids is the string"):
        client.search(Query(text="words"), ids="a")
    with pytest.raises(GeniusError, match="Only an Item"):
        client.put({"id": "a"})
    with pytest.raises(GeniusError, match="JSON"):
        client.put(Item("a", "words", metadata={"year": float("nan")}))
    with pytest.raises(BadImage, match=r"gone\.png: there is no such file"):
        client.search(Query(image=tmp_path / "gone.png"))
    with pytest.raises(BadImage, match="this is a folder"):
        client.put(Item("a", image=tmp_path))


# Writing


@pytest.mark.parametrize(
    "id", ["plain", "a/b/c.png", "a/../b", "../up", "..", "x?y#z%2F&=", "ü 猫 🐈", " outer ", "a\nb", "a//b/"]
)
def test_an_item_is_written_found_and_deleted_whatever_its_id(writer, id):
    item = Item(id, "A violet hippopotamus.", None, {"nested": {"list": [1, None, "ü"]}})
    assert writer.put(item) == "created"
    assert writer.put(item) == "unchanged"
    assert writer.put(Item(id, "A violet hippopotamus!", RED)) == "replaced"
    assert writer.get(id).text == "A violet hippopotamus!"
    assert writer.search(Query(text="a violet hippopotamus"), k=1)[0].id == id
    assert writer.image(id) is not None
    assert writer.delete([id, "no such"]) == 1
    assert writer.get(id) is None
    assert writer.delete(id) == 0


def test_a_long_addition_goes_in_jobs_and_what_is_bad_is_listed(writer, monkeypatch, tmp_path):
    """One item that the service refuses out of hand (a text that is too long) does not hold up the others."""
    monkeypatch.setattr(client_module, "JOB_ITEMS", 4)
    (tmp_path / "blue.png").write_bytes(png("blue star"))

    def stream() -> Iterator[Item | BadItem]:
        for number in range(9):
            yield Item(f"bulk/{number}", f"Sentence number {number}.")
        yield BadItem("bulk/source", "the source could not read it.")
        yield Item("bulk/gone", image=tmp_path / "gone.png")
        yield Item("bulk/blue", image=tmp_path / "blue.png")
        yield Item("bulk/broken", image=b"no image")
        yield Item("bulk/long", "word " * 3000)
        yield Item("bulk/last", "The last one.")

    before = len(writer.jobs())
    report = writer.upsert(stream())
    assert (report.added, report.replaced, report.unchanged) == (11, 0, 0)
    assert sorted(bad.id for bad in report.bad) == ["bulk/broken", "bulk/gone", "bulk/long", "bulk/source"]
    reasons = {bad.id: bad.reason for bad in report.bad}
    assert "10,000" in reasons["bulk/long"]
    assert "no such file" in reasons["bulk/gone"]
    assert len(writer.jobs()) - before >= 4
    assert writer.count("starts_with(id, 'bulk/')") == 11

    again = writer.upsert([Item("bulk/0", "Another sentence."), Item("bulk/1", "Sentence number 1.")])
    assert (again.added, again.replaced, again.unchanged, again.bad) == (1, 1, 1, [])


def test_adding_refuses_what_has_a_taken_id(writer):
    report = writer.add([Item("text 0", "Something else."), Item("new one", "Something new.")])
    assert (report.added, report.replaced) == (1, 0)
    assert [bad.id for bad in report.bad] == ["text 0"]
    assert writer.get("text 0") == Item("text 0", drawn_items()[20].text, None, drawn_items()[20].metadata)


def test_a_job_can_be_started_followed_and_not_cancelled_when_it_is_over(writer):
    id = writer.start_job([Item("job/1", "One."), Item("job/2", "Two."), Item("job/3", image=b"none")])
    job = writer.wait(id)
    assert (job.state, job.items, job.done, job.added, job.bad_count, job.index) == ("done", 3, 3, 2, 1, "written")
    assert job.created <= job.started <= job.finished
    assert id in [one.id for one in writer.jobs()]
    with pytest.raises(ServiceError, match="ended") as caught:
        writer.cancel(id)
    assert caught.value.status == 409
    with pytest.raises(NotFound):
        writer.job("no such job")


# Other libraries, over the service


def test_langchain_over_a_client(client):
    retriever = LangChainRetriever(source=client, search_kwargs={"k": 3, "target": "text"})
    hits = client.search(Query(text="how to draw a star", target="text"), k=3)
    for documents in (retriever.invoke("how to draw a star"), asyncio.run(retriever.ainvoke("how to draw a star"))):
        assert [(one.id, one.page_content) for one in documents] == [(hit.id, hit.item.text) for hit in hits]


def test_llamaindex_over_a_client_has_small_images(client):
    (node,) = LlamaIndexRetriever(client, k=1, target="image", image_size=64).retrieve("a red circle")
    assert max(Image.open(io.BytesIO(base64.b64decode(node.node.image))).size) == 64
    (node,) = LlamaIndexRetriever(client, k=1, target="image", image_size=None).retrieve("a red circle")
    assert node.metadata["modality"] == "image"


# A process of its own


def test_a_served_index_in_another_process(tmp_path):
    """Keys, threads that share a client, and a service that dies."""
    keys = tmp_path / "keys"
    reading, writing = "r" * 32, "w" * 32
    keys.write_text(f"read {reading}\nwrite {writing}\n")
    keys.chmod(0o600)
    with running_server(copy_index(tmp_path), options=("--keys", str(keys))) as server:
        with Client(server.url, key=writing) as client, ThreadPoolExecutor(8) as pool:
            assert client.put(Item("new", "A violet hippopotamus.")) == "created"
            words = [f"{colour} {shape}" for colour in ("red", "blue", "green") for shape in ("circle", "star")] * 4
            found = list(pool.map(lambda text: client.search(Query(text=text), k=3), words))
            for text, hits in zip(words, found, strict=True):
                same(hits, client.search(Query(text=text), k=3))
            assert client.upsert(Item(f"b{i}", f"Number {i}.") for i in range(30)).added == 30
            assert client.count() == 42 + 31
        with Client(server.url, key=reading) as client:
            assert client.get("new").text == "A violet hippopotamus."
            with pytest.raises(NotAllowed):
                client.put(Item("more", "words"))
            server.process.kill()
            server.process.wait()
            with pytest.raises(Unreachable, match=r"cannot be reached|broke off"):
                client.count()
        for key in (None, "x" * 32):
            with pytest.raises(Unreachable, match="cannot be reached"):
                Client(server.url, key=key).count()


def test_keys_open_what_they_are_for(paths):
    reading, writing = "r" * 32, "w" * 32
    limits = {"read_keys": frozenset([digest(reading)]), "write_keys": frozenset([digest(writing)])}
    with served({"shapes": paths["shapes"]}, **limits) as url:
        assert Client(url, key=reading).count() == 42
        for key in (None, "x" * 32):
            with pytest.raises(NotAllowed, match="key") as caught:
                Client(url, key=key).count()
            assert caught.value.status == 401
        with pytest.raises(NotAllowed) as caught:
            Client(url, key=reading).delete("text 0")
        assert caught.value.status == 403
        assert Client(url, key=writing).put(drawn_items()[20]) == "unchanged"


# A service that is slow, busy, broken or not there


def talking(*answers: httpx.Response | Exception) -> tuple[Client, list[httpx.Request]]:
    """A client to which these are answered in turn, the last one for ever, and what it asked."""
    asked: list[httpx.Request] = []

    def reply(request: httpx.Request) -> httpx.Response:
        answer = answers[min(len(asked), len(answers) - 1)]
        asked.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Client("http://127.0.0.1:1", timeout=30, transport=httpx.MockTransport(reply)), asked


def problem(status: int, headers: dict[str, str] | None = None, field: str | None = None) -> httpx.Response:
    body = {"error": {"code": "some_code", "message": "A sentence.", "field": field}}
    return httpx.Response(status, json=body, headers=headers)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """No waiting: how long it would have been."""
    made: list[float] = []
    for module in (client_module, connection):
        monkeypatch.setattr(module, "sleep", made.append)
    return made


EMPTY = httpx.Response(200, json={"total": 7, "items": []})


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_service_is_asked_again_when_it_says(status, pauses):
    client, asked = talking(problem(status, {"Retry-After": "3"}), problem(status, {"Retry-After": "2"}), EMPTY)
    assert client.count() == 7
    assert len(asked) == 3
    assert [int(pause) for pause in pauses] == [3, 2]


def test_without_a_word_on_when_pauses_grow_and_end(pauses):
    client, asked = talking(problem(503))
    with pytest.raises(ServiceBusy, match=r"A sentence\."):
        client.count()
    assert len(asked) == connection.RETRIES + 1
    assert pauses == sorted(pauses)
    assert 0 < pauses[0] < sum(pauses) < 30


@pytest.mark.parametrize("after", ["3600", "1e9", "31"])
def test_a_service_that_wants_too_long_a_pause_is_not_waited_for(after, pauses):
    client, asked = talking(problem(429, {"Retry-After": after}))
    with pytest.raises(ServiceBusy):
        client.count()
    assert (len(asked), pauses) == (1, [])


@pytest.mark.parametrize("after", ["-5", "soon", "nan", "Wed, 21 Oct 2099 07:28:00 GMT"])
def test_a_strange_word_on_when_is_no_harm(after, pauses):
    client, _ = talking(problem(503, {"Retry-After": after}), EMPTY)
    assert client.count() == 7
    assert 0 <= pauses[0] < 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, ServiceError), (401, NotAllowed), (403, NotAllowed), (404, NotFound), (500, ServiceError)],
)
def test_other_errors_are_not_asked_again(status, kind, pauses):
    client, asked = talking(problem(status))
    with pytest.raises(kind, match=r"A sentence\.") as caught:
        client.count()
    assert (caught.value.status, caught.value.code, len(asked), pauses) == (status, "some_code", 1, [])


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(200, content=b'{"total": 7, "items": ['),
        httpx.Response(200, content=b"\xff\xfe\x00"),
        httpx.Response(200, text="<html>Welcome to nginx</html>"),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={"total": 7}),
        httpx.Response(200, json={"total": 7, "items": [{"id": 5}]}),
        httpx.Response(200, json={"total": 7, "items": 3}),
        httpx.Response(200, content=b"[" * 100_000),
        httpx.Response(200),
        httpx.Response(301, headers={"Location": "http://example.com/"}),
        httpx.Response(404, text="<html>Not Found</html>"),
        httpx.Response(500, json={"error": "a string"}),
        httpx.Response(502, json={"detail": "Bad Gateway"}),
    ],
)
def test_what_does_not_talk_like_the_service_is_named(answer):
    client, _ = talking(answer)
    with pytest.raises(Unreachable, match="does not respond like genius serve"):
        client.count()


def test_something_else_that_knows_no_such_address_is_not_taken_for_a_missing_item():
    client, _ = talking(httpx.Response(404, text="Not Found"))
    with pytest.raises(Unreachable):
        client.get("a")


def test_an_address_that_the_service_does_not_have_is_not_taken_for_a_missing_item(url):
    """As when the address was given with a path that does not belong there."""
    with Client(f"{url}/v1") as lost:
        for ask in (lambda: lost.get("a"), lambda: lost.image("a"), lambda: lost.delete("a")):
            with pytest.raises(NotFound, match="nothing at this address"):
                ask()


def test_too_few_answers_to_a_batch_are_noticed():
    client, _ = talking(httpx.Response(200, json={"answers": []}))
    with pytest.raises(Unreachable, match="0 answers to 2 queries"):
        client.search([Query(text="a"), Query(text="b")])


def test_a_connection_that_was_idle_too_long_is_opened_anew():
    client, asked = talking(httpx.RemoteProtocolError("gone"), EMPTY)
    assert client.count() == 7
    assert len(asked) == 2
    client, asked = talking(httpx.ReadError("gone"))
    with pytest.raises(Unreachable, match="broke off"):
        client.count()
    assert len(asked) == 2


def job(state: str, **changes: Any) -> httpx.Response:
    body = {"id": "j", "index": "i", "state": state, "items": 2, "done": 1, "added": 1, "replaced": 0, "unchanged": 0}
    body |= {"bad": [], "bad_count": 0, "started": None, "finished": None, "error": None}
    return httpx.Response(200, json=body | {"created": "2030-01-01T00:00:00+00:00"} | changes)


STARTED = httpx.Response(202, json={"job": "j", "items": 2, "location": "/v1/jobs/j"})
TWO = [Item("a", "One."), Item("b", "Two.")]


def test_a_job_that_fails_is_told(pauses):
    client, _ = talking(STARTED, job("running"), job("failed", error="The disk is full."))
    with pytest.raises(ServiceError, match=r"failed after 1 of 2 items. The disk is full\."):
        client.upsert(TWO)


def test_a_job_that_a_new_service_does_not_know_is_told(pauses):
    client, _ = talking(STARTED, job("running"), problem(404))
    with pytest.raises(NotFound, match="Repeat the call"):
        client.upsert(TWO)


def test_refused_items_beyond_those_listed_are_counted(pauses):
    client, _ = talking(STARTED, job("done", bad=[{"id": "a", "reason": "why"}], bad_count=5))
    report = client.upsert(TWO)
    assert str(report.bad[0]) == "a: why"
    assert "4 more" in str(report.bad[1])


def test_items_that_the_service_refuses_by_position_are_left_out(pauses):
    """This service takes no text that holds the word "large"."""
    taken: list[list[str]] = []

    def reply(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return job("done", added=len(taken[-1]))
        items = json.loads(request.content)["items"]
        for position, item in enumerate(items):
            if "large" in item["text"]:
                return problem(422, field=f"items.{position}.text")
        taken.append([item["id"] for item in items])
        return STARTED

    client = Client("http://127.0.0.1:1", transport=httpx.MockTransport(reply))
    items = [Item(str(i), "large" if i in (5, 13) else "small") for i in range(20)]
    report = client.upsert(items)
    assert [bad.id for bad in report.bad] == ["5", "13"]
    assert taken == [[str(i) for i in range(20) if i not in (5, 13)]]


def test_a_single_item_that_is_too_large_is_left_out_and_a_batch_that_is_too_large_is_told(pauses, monkeypatch):
    client, _ = talking(problem(413))
    with pytest.raises(ServiceError, match="A sentence"):
        client.upsert(TWO)
    monkeypatch.setattr(client_module, "JOB_ITEMS", 1)
    client, _ = talking(problem(413), STARTED, job("done"))
    assert [bad.id for bad in client.upsert(TWO).bad] == ["a"]


def test_an_addition_that_is_refused_as_a_whole_is_not_blamed_on_its_items():
    client, asked = talking(problem(422))
    with pytest.raises(ServiceError, match="A sentence"):
        client.upsert(TWO)
    assert len(asked) == 1


def test_no_job_is_larger_than_asked_for(pauses, monkeypatch):
    monkeypatch.setattr(wire, "MAX_BYTES", 1000)
    sizes: list[int] = []

    def reply(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            sizes.append(sum(len(item["text"]) for item in json.loads(request.content)["items"]))
        return STARTED if request.method == "POST" else job("done")

    client = Client("http://127.0.0.1:1", transport=httpx.MockTransport(reply))
    client.upsert(Item(str(i), "x" * length) for i, length in enumerate([300, 300, 300, 300, 5000, 10, 999, 1]))
    assert sizes == [900, 300, 5000, 10, 1000]


@contextmanager
def listening(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that does with each connection what it is told; the address of it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                connection, _ = server.accept()
                with connection:
                    if not stop.is_set():
                        talk(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        address = server.getsockname()
        try:
            yield f"http://127.0.0.1:{address[1]}"
        finally:
            stop.set()
            socket.create_connection(address).close()
            thread.join()


def test_a_service_that_does_not_answer_in_time_is_given_up():
    done = threading.Event()
    with listening(lambda connection: done.wait(10)) as url:
        with pytest.raises(Unreachable, match=r"within 0\.2 seconds"):
            Client(url, timeout=0.2).count()
        done.set()


def test_a_service_that_hangs_up_is_told():
    with listening(lambda connection: None) as url, pytest.raises(Unreachable, match="broke off"):
        Client(url).count()


def test_what_is_no_web_server_is_told():
    def talk(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(b"220 mail.example.com ESMTP\r\n")

    with listening(talk) as url, pytest.raises(Unreachable):
        Client(url).count()


def test_a_dead_service_is_told():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(Unreachable, match="genius serve is running there"):
        Client(f"http://127.0.0.1:{port}").count()


# Addresses, keys, imports


NO_ADDRESSES = ["127.0.0.1:8000", "", "ftp://host", "http://", "photos.genius", "http://[::1", None, "http://h:99999"]


@pytest.mark.parametrize("url", [*NO_ADDRESSES, "http://name:password@host"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(GeniusError, match="Write one like http") as caught:
        Client(url)
    assert "password@" not in str(caught.value)


def test_an_address_may_have_a_path_before_the_service():
    client, asked = talking(EMPTY)
    behind = Client("https://example.com/search/", index="a&b", key="secret", transport=client._http._client._transport)
    behind.count("a = 'b&c'")
    assert asked[0].url.path == "/search/v1/items"
    assert dict(asked[0].url.params) == {"index": "a&b", "limit": "1", "offset": "0", "where": "a = 'b&c'"}
    assert asked[0].headers["Authorization"] == "Bearer secret"
    assert "secret" not in repr(behind)


@pytest.mark.parametrize("key", ["", "two\nlines", "ключ", "\0"])
def test_a_key_that_fits_no_header_is_refused_without_showing_it(key):
    with pytest.raises(GeniusError, match="Copy it again") as caught:
        Client(key=key)
    assert not key or key not in str(caught.value)


def test_a_proxy_is_not_asked_for_this_machine(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    body = json.dumps({"total": 3, "items": []})

    def talk(connection: socket.socket) -> None:
        connection.recv(10_000)
        connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

    with listening(talk) as url, Client(url) as client:
        assert client.count() == 3


def test_it_is_light_to_import():
    heavy = ("torch", "numpy", "lance", "pyarrow", "onnxruntime", "fastapi")
    code = f"import sys, genius.integrations.client; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_without_httpx_one_sentence_says_what_to_install():
    code = "import sys; sys.modules['httpx'] = None\nimport genius.integrations.client"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("genius.errors.MissingExtra: ")
    assert 'pip install "genius-search[client]"' in last
