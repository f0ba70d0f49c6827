"""The HTTP API: every route, JSON and form bodies, every error, and the OpenAPI description."""

import asyncio
import base64
import io
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from serving import (
    PATIENCE,
    copy_index,
    drawn_index,
    drawn_items,
    make_app,
    mini_model,
    png,
    running_server,
    service,
    wait_until_ready,
)

from genius.data.items import Item, Query
from genius.errors import BadIndex, BadItem, GeniusError
from genius.index.index import Index
from genius.serve import bodies
from genius.serve.images import Thumbnails, check_image
from genius.serve.limits import QueryExpired, ServiceUnavailable
from genius.serve.problems import HttpProblem, mask_paths
from genius.serve.threads import Decoders

ITEMS = {item.id: item for item in drawn_items()}
JSON = {"Content-Type": "application/json"}
STAR = base64.b64encode(png("red star")).decode()
CUT = base64.b64encode(png("red star")[:100]).decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("serve app")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    """Three indexes: "shapes" is only read, "scratch" is written to, "files" has images that lie on the disk."""
    for name in ("here.png", "gone.png"):
        (folder / name).write_bytes(png("blue star"))
    (folder / "secret.txt").write_text("password")
    items = [Item(name, image=folder / name) for name in ("here.png", "gone.png")]
    Index.create(folder / "files.genius", mini_model()).add(items)
    (folder / "gone.png").unlink()
    indexes = {"shapes": drawn_index(), "scratch": copy_index(folder), "files": folder / "files.genius"}
    with service(indexes) as client:
        yield client


@pytest.fixture(scope="module")
def index() -> Index:
    return Index.open(drawn_index(), mini_model())


def error(answer: httpx.Response, status: int, field: str | None = None, says: str = "") -> str:
    """The sentence of an error, which must have the one shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert list(found) == ["error"]
    assert list(found["error"]) == ["code", "message", "field"]
    assert found["error"]["field"] == field
    message = found["error"]["message"]
    assert says in message
    assert message[-1] in ".:)`" or message.endswith("...")
    return message


def same(hits: list[dict[str, Any]], expected: list[Any]) -> None:
    assert [hit["id"] for hit in hits] == [hit.id for hit in expected]
    assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in expected], abs=1e-5)
    for hit, other in zip(hits, expected, strict=True):
        assert hit["codes"] == list(other.codes)
        assert hit["modality"] == other.modality.label
        assert hit["text"] == other.item.text
        assert hit["metadata"] == other.item.metadata
        assert (hit["image_url"] is None) == (other.item.image is None)


def finished(client: httpx.Client, location: str) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE
    while True:
        job = client.get(location).json()
        if job["state"] not in ("waiting", "running"):
            return job
        assert time.monotonic() < deadline, job
        time.sleep(0.02)


# Search


@pytest.mark.parametrize("mode", ["fast", "rerank", "generate"])
@pytest.mark.parametrize(
    ("body", "query"),
    [
        ({"text": "a red circle"}, Query("a red circle")),
        ({"text": "a star", "target": "image"}, Query("a star", target="image")),
        ({"image": STAR, "target": "image,text"}, Query(image=png("red star"), target="image,text")),
        (
            {"image": STAR, "text": "in blue", "instruction": "Find the same."},
            Query("in blue", png("red star"), "Find the same."),
        ),
    ],
)
def test_hits_are_those_of_the_index(client, index, body, query, mode):
    answer = client.post("/v1/search", json={**body, "mode": mode, "k": 7, "beam": 20, "budget": 15})
    assert answer.status_code == 200
    same(answer.json()["hits"], index.search(query, k=7, mode=mode, beam=20, budget=15))


def test_filters_are_passed_on(client, index):
    ids = [f"text {n}" for n in range(6)]
    body = {"text": "a star", "where": "number < 105", "ids": ids, "k": 3}
    same(
        client.post("/v1/search", json=body).json()["hits"],
        index.search(Query("a star"), k=3, where="number < 105", ids=ids),
    )
    assert client.post("/v1/search", json={"text": "a star", "ids": []}).json()["hits"] == []


def test_a_form_is_the_same_search_as_json(client):
    form = {"text": "in blue", "k": "3", "explain": "true", "ids": ["text 1", "pair-red-star", "nope"]}
    as_form = client.post("/v1/search", data=form, files={"image": ("c:/star.png", png("red star"), "image/png")})
    as_json = client.post(
        "/v1/search",
        json={"text": "in blue", "k": 3, "explain": True, "ids": form["ids"], "image": STAR},
    )
    assert as_form.status_code == as_json.status_code == 200
    for part in ("hits", "tree", "candidates"):
        assert as_form.json()[part] == as_json.json()[part]
    assert len(as_form.json()["hits"]) == 2


def test_empty_fields_of_a_form_count_as_absent(client):
    files = {"text": (None, "a star"), "where": (None, ""), "image": ("", b""), "target": (None, "")}
    assert client.post("/v1/search", files=files).status_code == 200


def test_an_answer_says_how_it_came_about(client, index):
    answer = client.post("/v1/search", json={"text": "a star", "explain": True, "beam": 7}).json()
    assert (answer["index"], answer["version"], answer["items"]) == ("shapes", index.version, len(index))
    stages = {"queue", "prepare", "encode", "generate", "rerank", "read", "total"}
    assert set(answer["seconds"]) == stages
    assert all(seconds >= 0 for seconds in answer["seconds"].values())
    assert answer["batch"] == 1
    expected = index.answer(Query("a star"), beam=7)
    assert answer["candidates"] == expected.candidates
    tree = answer["tree"]
    assert (tree["levels"], tree["sizes"]) == (len(index.header.sizes), list(index.header.sizes))
    assert [branch["codes"] for branch in tree["branches"]] == [list(branch.codes) for branch in expected.branches]
    assert client.post("/v1/search", json={"text": "a star"}).json()["tree"] is None


def test_like_searches_with_what_an_item_holds(client, index):
    for id in ("text 1", "pair-red-star", "images/red-star.png"):
        item = ITEMS[id]
        hits = client.post("/v1/search", json={"like": id}).json()["hits"]
        same(hits, index.search(Query(item.text, item.image)))
        assert hits[0]["id"] == id


def test_like_with_words_takes_the_image_and_these_words(client, index):
    pair = ITEMS["pair-red-star"]
    same(
        client.post("/v1/search", json={"like": pair.id, "text": "in blue"}).json()["hits"],
        index.search(Query("in blue", pair.image)),
    )
    text = ITEMS["text 1"]
    same(
        client.post("/v1/search", json={"like": text.id, "text": "in blue"}).json()["hits"],
        index.search(Query(f"{text.text} in blue")),
    )


def test_like_reads_a_image_from_where_the_operator_has_it(client, folder):
    hits = client.post("/v1/search?index=files", json={"like": "here.png"}).json()["hits"]
    assert {hit["id"] for hit in hits} == {"here.png", "gone.png"}
    message = error(client.post("/v1/search?index=files", json={"like": "gone.png"}), 404, "like", "cannot be read")
    assert str(folder) not in message


def test_a_batch_gives_each_query_its_own_settings(client, index):
    queries = [
        {"text": "a star", "k": 2},
        {"image": STAR, "mode": "generate", "k": 3, "explain": True},
        {"like": "text 1", "where": "number >= 100"},
    ]
    answers = client.post("/v1/search/batch", json={"queries": queries}).json()["answers"]
    same(answers[0]["hits"], index.search(Query("a star"), k=2))
    same(answers[1]["hits"], index.search(Query(image=png("red star")), k=3, mode="generate"))
    same(answers[2]["hits"], index.search(Query(ITEMS["text 1"].text), where="number >= 100"))
    assert [answer["tree"] is None for answer in answers] == [True, False, True]
    form = client.post("/v1/search/batch", files={"queries": (None, json.dumps(queries))})
    assert [one["hits"] for one in form.json()["answers"]] == [one["hits"] for one in answers]


def test_several_indexes_by_name(client, folder):
    assert client.post("/v1/search", json={"text": "a"}).json()["index"] == "shapes"
    found = client.post("/v1/search?index=files", json={"text": "a"}).json()
    assert (found["index"], found["items"]) == ("files", 2)
    listed = client.get("/v1/indexes")
    assert str(folder) not in listed.text
    shapes, _, files = listed.json()["indexes"]
    assert (shapes["name"], shapes["items"], shapes["model"]) == ("shapes", 42, "mini")
    assert shapes["modalities"] == {"image": 20, "text": 10, "image,text": 12}
    assert shapes["fields"]["number"] == "number"
    assert (shapes["writable"], shapes["ready"], shapes["embeddings"]) == (True, True, True)
    assert files["items"] == 2


WRONG_SEARCHES: list[tuple[bytes | dict[str, Any], int, str | None, str]] = [
    (b"", 400, None, "not valid JSON"),
    (b'{"text": NaN}', 400, None, "not valid JSON"),
    (b'{"text": "a", "k": Infinity}', 400, None, "not valid JSON"),
    (b'{"text": "\\ud800"}', 400, None, "not valid JSON"),
    (b'{"\\udfff": 1}', 400, None, "not valid JSON"),
    (b'{"text": "\xff"}', 400, None, "not valid JSON"),
    (b"[" * 100_000, 400, None, "recursion"),
    (b'{"text": "a", "k": ' + b"9" * 5000 + b"}", 400, None, "range"),
    (b'{"text": "a", "k": ' + b"9" * 4000 + b"}", 422, "k", "at most 200"),
    (b'{"text": "a", "k": 1e400}', 422, "k", "whole number"),
    (b"[]", 422, None, "JSON object"),
    (b"null", 422, None, "JSON object"),
    ({}, 422, "text", "query is empty"),
    ({"text": " "}, 422, "text", "query is empty"),
    ({"text": 5}, 422, "text", "a string"),
    ({"text": "a", "k": 0}, 422, "k", "at least 1"),
    ({"text": "a", "k": 201}, 422, "k", "at most 200"),
    ({"text": "a", "k": "5"}, 422, "k", "whole number"),
    ({"text": "a", "k": True}, 422, "k", "whole number"),
    ({"text": "a", "k": 5.5}, 422, "k", "whole number"),
    ({"text": "a", "beam": 501}, 422, "beam", "at most 500"),
    ({"text": "a", "budget": 10_001}, 422, "budget", "at most 10,000"),
    ({"text": "a", "mode": "slow"}, 422, "mode", "'generate', 'rerank' or 'fast'"),
    ({"text": "a", "target": "sound"}, 422, "target", "'image'"),
    ({"text": "a", "explain": 1}, 422, "explain", "true or false"),
    ({"text": "a", "colour": 1}, 422, "colour", "no field"),
    ({"text": "a", "ids": "x"}, 422, "ids", "a list"),
    ({"text": "a", "ids": [1]}, 422, "ids.0", "a string"),
    ({"text": "a", "ids": ["x"] * 10_001}, 422, "ids", "at most 10,000"),
    ({"text": "a", "ids": ["x" * 513]}, 422, "ids.0", "at most 512"),
    ({"text": "a" * 10_001}, 422, "text", "at most 10,000"),
    ({"text": "a", "instruction": "a" * 10_001}, 422, "instruction", "at most 10,000"),
    ({"text": "a", "where": "x" * 10_001}, 422, "where", "too long"),
    ({"text": "a", "where": "nofield = 1"}, 422, "where", "nofield"),
    ({"text": "a", "where": ""}, 422, "where", "filter"),
    ({"text": "a", "where": "number = read_file('/etc/passwd')"}, 422, "where", "no function"),
    ({"image": "?"}, 422, "image", "not Base64"),
    ({"image": "é"}, 422, "image", "not Base64"),
    ({"image": ""}, 422, "image", "empty"),
    ({"image": 5}, 422, "image", "Base64"),
    ({"image": "data:image/png;base64," + STAR}, 422, "image", "data URL"),
    ({"image": "/etc/passwd"}, 422, "image", "Base64"),
    ({"image": "aHR0cDovL2EuYi9jLnBuZw=="}, 422, "image", "not an image of a supported format"),
    ({"image": CUT}, 422, "image", "truncated"),
    ({"like": "nope"}, 404, "like", "no item"),
    ({"like": "x" * 513}, 422, "like", "at most 512"),
    ({"like": "text 1", "image": STAR}, 400, "like", "both"),
]


@pytest.mark.parametrize(("body", "status", "field", "says"), WRONG_SEARCHES)
def test_wrong_searches_are_refused_with_a_sentence(client, body, status, field, says):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    error(client.post("/v1/search", content=content, headers=JSON), status, field, says)


def test_a_wrong_query_of_a_batch_is_named(client):
    for wrong, status, field in (
        ({"k": 0, "text": "a"}, 422, "queries.1.k"),
        ({}, 422, "queries.1.text"),
        ({"image": CUT}, 422, "queries.1.image"),
        ({"image": "aGFsbG8="}, 422, "queries.1.image"),
        ({"text": "a", "where": "nofield"}, 422, "queries.1.where"),
        ({"like": "nope"}, 404, "queries.1.like"),
        ({"like": "text 1", "image": STAR}, 400, "queries.1.like"),
    ):
        error(client.post("/v1/search/batch", json={"queries": [{"text": "fine"}, wrong]}), status, field)
    error(client.post("/v1/search/batch", json={"queries": []}), 422, "queries", "empty")
    error(client.post("/v1/search/batch", json={"queries": [{"text": "a"}] * 65}), 422, "queries", "at most 64")


FORM = {"Content-Type": "multipart/form-data; boundary=x"}


def form(*parts: tuple[bytes, bytes], end: bytes = b"--x--\r\n") -> bytes:
    lines = (b'--x\r\nContent-Disposition: form-data; name="%s\r\n\r\n%s\r\n' % part for part in parts)
    return b"".join(lines) + end


@pytest.mark.parametrize(
    ("content", "status", "field", "says"),
    [
        (b"", 400, None, "form"),
        (b"garbage", 400, None, "form"),
        (form((b'text"', b"a"), end=b""), 400, None, "incomplete"),
        (b"--x\r\nX: y\r\n\r\na\r\n--x--\r\n", 400, None, "no name"),
        (b"--x\r\nX: " + b"y" * 5000 + b"\r\n\r\na\r\n--x--\r\n", 400, None, "form"),
        (form((b'text"', b"\xff")), 422, "text", "UTF-8"),
        (form((b'\xff"', b"a")), 422, None, "UTF-8"),
        (form((b'text"', b"a"), (b'text"', b"b")), 422, "text", "twice"),
        (form((b'text"; filename="x"', b"a")), 422, "text", "file"),
        (form((b'text"', b"a"), (b'k"', b"five")), 422, "k", "whole number"),
        (form((b'text"', b"a"), (b'k"', "５".encode())), 422, "k", "whole number"),
        (form((b'text"', b"a"), (b'k"', b"NaN")), 422, "k", "number"),
        (form((b'text"', b"a"), (b'explain"', b"yes")), 422, "explain", "true or false"),
        (form((b'text"', b"a"), (b'secret"', b"x")), 422, "secret", "no field"),
        (form((b'image"; filename="x.png"', b"hello")), 422, "image", "not an image of a supported format"),
        (form(*[(b'ids"', b"")] * 10_100), 413, None, "parts"),
    ],
)
def test_wrong_forms_are_refused_with_a_sentence(client, content, status, field, says):
    error(client.post("/v1/search", content=content, headers=FORM), status, field, says)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("", 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data", 400),
        ("multipart/form-data; boundary=", 400),
        (f"multipart/form-data; boundary={'x' * 300}", 400),
    ],
)
def test_other_content_types_are_refused(client, kind, status):
    for method, address in (("POST", "/v1/search"), ("PUT", "/v1/items/a"), ("POST", "/v1/items")):
        content = b'{"text": "a"}'
        error(client.request(method, address, content=content, headers={"Content-Type": kind}), status)


def test_a_body_of_too_many_values_is_refused_before_it_is_read(client, monkeypatch):
    monkeypatch.setattr(bodies, "MAX_VALUES", 100)
    error(client.post("/v1/search", json={"text": "a", "ids": ["x"] * 101}), 413, None, "values")


def test_large_bodies_are_read_in_another_thread(client, monkeypatch):
    threads = []

    def watched(*arguments: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        return parse(*arguments, **options)

    parse = bodies.parse_json
    monkeypatch.setattr(bodies, "parse_json", watched)
    client.post("/v1/search", json={"text": "a"})
    client.post("/v1/search", json={"text": "a", "ids": ["x" * 500] * 1000})
    assert not threads[0].startswith("genius-read")
    assert threads[1].startswith("genius-read")


# Items


def test_an_item_is_what_was_put(client, index):
    for id in ("text 6", "images/red-star.png", "pair-blue-circle"):
        item = ITEMS[id]
        for address in (id, id.replace("/", "%2F")):
            found = client.get(f"/v1/items/{address}").json()
            assert (found["id"], found["text"], found["metadata"]) == (id, item.text, item.metadata)
            assert found["modality"] == item.modality.label
            assert found["codes"] == list(index.get_coded(id).codes)
            assert (found["image_url"] is None) == (item.image is None)
    error(client.get("/v1/items/nope"), 404, "id", "no item 'nope'")


def test_put_replace_and_delete(client):
    def put(**body: Any) -> httpx.Response:
        return client.put("/v1/items/a%2Fnew%20one?index=scratch", json=body)

    before = client.get("/v1/indexes").json()["indexes"][1]["items"]
    made = put(text="A sleeping walrus", metadata={"n": 1})
    assert (made.status_code, made.json()["status"]) == (201, "created")
    assert client.get(made.headers["location"]).json()["text"] == "A sleeping walrus"
    again = put(text="A sleeping walrus", metadata={"n": 1})
    assert (again.status_code, again.json()["status"]) == (200, "unchanged")
    changed = put(text="A sleeping walrus", image=STAR, metadata={"n": 2})
    assert (changed.status_code, changed.json()["status"]) == (200, "replaced")
    assert changed.json()["version"] > made.json()["version"]
    hits = client.post("/v1/search?index=scratch", json={"text": "A sleeping walrus", "where": "n = 2"}).json()["hits"]
    assert [hit["id"] for hit in hits] == ["a/new one"]
    assert hits[0]["modality"] == "image,text"
    gone = client.delete("/v1/items/a/new one?index=scratch")
    assert (gone.status_code, gone.content) == (204, b"")
    error(client.delete("/v1/items/a/new one?index=scratch"), 404, "id")
    assert client.get("/v1/indexes").json()["indexes"][1]["items"] == before


def test_delete_by_a_filter(client):
    def total() -> int:
        return client.get("/v1/items?index=scratch").json()["total"]

    for number in range(4):
        client.put(f"/v1/items/wave{number}?index=scratch", json={"text": "A wave", "metadata": {"wave": number}})
    before = total()
    for params in (
        {},
        {"where": ""},
        {"where": " "},
        {"where": "wave"},
        {"where": "wings = 2"},
        {"where": "x" * 10_001},
    ):
        error(client.delete("/v1/items", params={"index": "scratch"} | params), 422, "where")
    error(client.delete("/v1/items/?index=scratch"), 404)
    assert total() == before
    gone = client.delete("/v1/items", params={"index": "scratch", "where": "wave >= 1"})
    assert (gone.status_code, gone.json()["deleted"], total()) == (200, 3, before - 3)
    again = client.delete("/v1/items", params={"index": "scratch", "where": "wave >= 1"})
    assert again.json() == {"deleted": 0, "version": gone.json()["version"]}
    assert client.delete("/v1/items/wave0?index=scratch").status_code == 204


def test_put_as_a_form(client):
    files = {
        "image": ("../../evil.png", png("blue star"), "image/png"),
        "text": (None, "Ein blauer Stern ★"),
        "metadata": (None, '{"deep": {"er": [1, null]}}'),
    }
    assert client.put("/v1/items/star?index=scratch", files=files).status_code == 201
    found = client.get("/v1/items/star?index=scratch").json()
    assert (found["text"], found["metadata"]) == ("Ein blauer Stern ★", {"deep": {"er": [1, None]}})
    same_as_json = client.put(
        "/v1/items/star?index=scratch",
        json={
            "image": base64.b64encode(png("blue star")).decode(),
            "text": "Ein blauer Stern ★",
            "metadata": {"deep": {"er": [1, None]}},
        },
    )
    assert same_as_json.json()["status"] == "unchanged"


@pytest.mark.parametrize("id", ["../../etc/passwd", "..", "a\nb", "a\0b", "/", "a?b#c", "ü 😀", "x" * 512, "'; --"])
def test_any_text_can_be_an_id(client, id):
    address = f"/v1/items/{''.join(f'%{byte:02X}' for byte in id.encode())}?index=scratch"
    assert client.put(address, json={"text": "something"}).status_code == 201
    assert client.get(address).json()["id"] == id
    assert client.delete(address).status_code == 204
    error(client.get(address), 404, "id")


@pytest.mark.parametrize(
    ("body", "status", "field", "says"),
    [
        (b"{}", 422, None, "neither text nor an image"),
        (b'{"text": "  "}', 422, None, "neither text nor an image"),
        (b'{"text": "a", "metadata": []}', 422, "metadata", "JSON object"),
        (b'{"text": "a", "metadata": {"x": 1e999}}', 422, "metadata", "number"),
        (b'{"text": "a", "metadata": {"x": NaN}}', 400, None, "not valid JSON"),
        (b'{"text": "a", "metadata": {"x": "%s"}}' % (b"y" * 65_536), 422, "metadata", "at most 65,536"),
        (b'{"text": "a", "metadata": {"x": %s1%s}}' % (b"[" * 300, b"]" * 300), 400, None, "recursion"),
        (b'{"text": "a", "id": "b"}', 422, "id", "no field"),
        (b'{"image": "%s"}' % CUT.encode(), 422, "image", "truncated"),
        (b'{"image": "file:///etc/passwd"}', 422, "image", "not Base64"),
    ],
)
def test_wrong_items_are_refused_with_a_sentence(client, body, status, field, says):
    error(client.put("/v1/items/wrong?index=scratch", content=body, headers=JSON), status, field, says)
    error(client.get("/v1/items/wrong?index=scratch"), 404, "id")


def test_wrong_ids_are_refused(client):
    for id, status in (("%20", 422), ("x" * 513, 422), ("", 404)):
        answer = client.put(f"/v1/items/{id}?index=scratch", json={"text": "a"})
        error(answer, status, "id" if status == 422 else None)


def test_items_are_listed_in_order_and_by_condition(client, index):
    first = client.get("/v1/items?limit=20").json()
    second = client.get("/v1/items?limit=200&offset=20").json()
    assert first["total"] == second["total"] == len(ITEMS)
    assert [item["id"] for item in first["items"] + second["items"]] == list(ITEMS)
    assert [item["codes"] for item in first["items"]] == index.codes[:20].tolist()
    where = "colour = 'red' AND modality = 'image'"
    found = client.get("/v1/items", params={"where": where, "limit": 3}).json()
    assert found["total"] == index.count(where) == 4
    assert [item["id"] for item in found["items"]] == [item.id for item in index.filter(where, limit=3)]
    assert client.get("/v1/items?offset=1000").json() == {"total": len(ITEMS), "items": []}


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ("limit=0", 422, "limit"),
        ("limit=201", 422, "limit"),
        ("limit=x", 422, "limit"),
        ("offset=-1", 422, "offset"),
        (f"offset={'9' * 50}", 422, "offset"),
        (f"offset={'9' * 5000}", 422, "offset"),
        ("where=nofield", 422, "where"),
        ("index=nope", 404, "index"),
        (f"index={'x' * 300}", 422, "index"),
    ],
)
def test_wrong_lists_are_refused(client, query, status, field):
    error(client.get(f"/v1/items?{query}"), status, field)


# Many items, and jobs


def test_a_bulk_addition_can_be_followed(client):
    items = [
        {"id": "bulk/1", "text": "A yellow submarine", "metadata": {"bulk": True}},
        {"id": "bulk/2", "image": STAR, "metadata": {"bulk": True}},
        {"id": "bulk/3", "image": CUT},
        {"id": "bulk/4"},
        {"id": "text 1", "text": ITEMS["text 1"].text, "metadata": ITEMS["text 1"].metadata},
        {"id": "text 2", "text": "Something else"},
    ]
    answer = client.post("/v1/items?index=scratch", json={"items": items})
    assert answer.status_code == 202
    assert answer.json()["items"] == 6
    assert answer.headers["location"] == answer.json()["location"] == f"/v1/jobs/{answer.json()['job']}"
    job = finished(client, answer.headers["location"])
    assert (job["index"], job["state"], job["items"], job["done"], job["error"]) == ("scratch", "done", 6, 6, None)
    assert (job["added"], job["replaced"], job["unchanged"], job["bad_count"]) == (2, 1, 1, 2)
    reasons = {bad["id"]: bad["reason"] for bad in job["bad"]}
    assert "truncated" in reasons["bulk/3"]
    assert "neither" in reasons["bulk/4"]
    found = client.get("/v1/items", params={"index": "scratch", "where": "bulk"}).json()["items"]
    assert [item["id"] for item in found] == ["bulk/1", "bulk/2"]
    assert job in client.get("/v1/jobs").json()["jobs"]
    assert job in client.get("/v1/jobs?index=scratch").json()["jobs"]
    assert client.get("/v1/jobs?index=shapes").json()["jobs"] == []
    error(client.delete(answer.headers["location"]), 409, "job", "ended")
    error(client.get(f"{answer.headers['location']}?index=shapes"), 404, "job")


def test_a_bulk_addition_may_be_told_not_to_replace(client):
    before = client.get("/v1/items/text 3?index=scratch").json()
    bodies = (
        {"json": {"items": [{"id": "text 3", "text": "x"}], "replace": False}},
        {"files": [("files", ("text 3", b"x", "text/plain")), ("replace", (None, b"false"))]},
    )
    for body in bodies:
        job = finished(client, client.post("/v1/items?index=scratch", **body).headers["location"])
        assert (job["added"], job["replaced"], job["bad_count"]) == (0, 0, 1)
        assert client.get("/v1/items/text 3?index=scratch").json() == before


def test_files_of_a_form_become_items_under_their_names_and_no_file_is_touched(client, folder):
    name = str(folder / "secret.txt")
    files = [
        ("files", (name, "Grüße".encode())),
        ("files", ("../../star.png", png("red star"))),
        ("files", ("broken.png", b"no image")),
        ("files", ("note", b"a note", "text/plain")),
    ]
    answer = client.post("/v1/items?index=scratch", files=files)
    job = finished(client, answer.headers["location"])
    assert (job["added"], [bad["id"] for bad in job["bad"]]) == (3, ["broken.png"])
    assert client.get("/v1/items/note?index=scratch").json()["text"] == "a note"
    item = client.get(f"/v1/items/{name}?index=scratch").json()
    assert (item["text"], (folder / "secret.txt").read_text()) == ("Grüße", "password")
    assert client.get("/v1/items/..%2F..%2Fstar.png?index=scratch").json()["modality"] == "image"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"items": []}, "items"),
        ({"items": [{"text": "a"}]}, "items.0.id"),
        ({"items": [{"id": "", "text": "a"}]}, "items.0.id"),
        ({"items": [{"id": " ", "text": "a"}]}, "items.0.id"),
        ({"items": [{"id": "x" * 513, "text": "a"}]}, "items.0.id"),
        ({"items": [{"id": "a", "text": "a"}, {"id": "b", "image": "?"}]}, "items.1.image"),
        ({"items": [{"id": "a", "text": "a"}] * 5001}, "items"),
        ({}, "items"),
    ],
)
def test_wrong_bulk_additions_are_refused_as_a_whole(client, body, field):
    before = len(client.get("/v1/jobs").json()["jobs"])
    error(client.post("/v1/items?index=scratch", json=body), 422, field)
    assert len(client.get("/v1/jobs").json()["jobs"]) == before


def test_wrong_bulk_forms_are_refused(client):
    for part, field in (
        (("files", ("a.txt", b"\xff")), "files"),
        (("files", (None, b"a")), "files"),
        (("file", ("a.txt", b"a")), "file"),
        (("replace", (None, b"perhaps")), "items"),
        (("items", (None, b"[]")), "items"),
    ):
        error(client.post("/v1/items?index=scratch", files=[part]), 422, field)


def test_there_is_no_such_job(client):
    for method in ("GET", "DELETE"):
        error(client.request(method, "/v1/jobs/nope"), 404, "job", "no job 'nope'")
        error(client.request(method, "/v1/jobs/nope?index=nope"), 404, "index")


# Codes


def slow_count(index: Index, pattern: list[int | None]) -> tuple[list[str], set[tuple[int, ...]], dict[int, int]]:
    """Ids, distinct codes and next codes of the items that have a pattern, by looking at every item."""
    ids, codes, after = [], set(), {}
    for id, row in zip(ITEMS, index.codes.tolist(), strict=True):
        if all(code is None or code == row[level] for level, code in enumerate(pattern)):
            ids.append(id)
            codes.add(tuple(row))
            if len(pattern) < len(row):
                after[row[len(pattern)]] = after.get(row[len(pattern)], 0) + 1
    return ids, codes, after


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_tree_of_codes_counts_what_is_there(client, index, data):
    row = data.draw(st.sampled_from(index.codes.tolist()))
    level = data.draw(st.integers(0, len(row)))
    strange = data.draw(st.lists(st.integers(0, 2), min_size=level, max_size=level))
    pattern = [None if odd == 2 else code for code, odd in zip(row, strange, strict=False)]
    ids, codes, after = slow_count(index, pattern)
    name = "-".join("*" if code is None else str(code) for code in pattern)
    page = client.get(f"/v1/codes/{name}?limit=200" if name else "/v1/codes?limit=200").json()
    assert (page["pattern"], page["level"], page["levels"]) == (name, level, len(row))
    assert page["sizes"] == list(index.header.sizes)
    assert (page["total"], page["ids"]) == (len(ids), len(codes))
    assert {item["id"] for item in page["items"]} == set(ids)
    counts = [child["items"] for child in page["children"]]
    assert counts == sorted(counts, reverse=True)
    assert {child["code"]: child["items"] for child in page["children"]} == after
    for child in page["children"]:
        assert index.get_coded(child["example"]["id"]).codes[level] == child["code"]


def test_children_and_items_of_a_code_come_in_pages(client):
    whole = client.get("/v1/codes/*?limit=200").json()
    parts = [client.get(f"/v1/codes/*?limit=20&offset={offset}").json()["items"] for offset in (0, 20, 40)]
    assert [item for part in parts for item in part] == whole["items"]
    fewer = client.get("/v1/codes/*?children=3").json()
    assert fewer["children"] == whole["children"][:3]
    assert fewer["more_children"] == len(whole["children"]) - 3


def test_a_code_that_nothing_has_is_empty(client, index):
    unused = next(code for code in range(256) if code not in index.codes[:, 1])
    page = client.get(f"/v1/codes/*-{unused}").json()
    assert (page["total"], page["ids"], page["children"], page["items"]) == (0, 0, [], [])


@pytest.mark.parametrize(
    "pattern", ["x", "0-", "-0", "0--1", "+1", "0-256", "3", "1e1", "9" * 30, "*-" * 13 + "*", "０", "0%0A", "0/1"]
)
def test_what_is_no_pattern_of_codes_is_refused(client, pattern):
    error(client.get(f"/v1/codes/{pattern}"), 422, "pattern")


# Images


def test_a_image_is_made_anew_in_the_size_asked_for(client):
    stored = png("red star", 64)
    for size, longest in ((64, 64), (1024, 64)):  # it does not grow
        answer = client.get(f"/v1/images/images%2Fred-star.png?size={size}")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "image/webp")
        assert answer.content != stored
        image = Image.open(io.BytesIO(answer.content))
        assert max(image.size) == longest
    address = client.get("/v1/items/pair-red-star").json()["image_url"]
    assert client.get(address).status_code == 200
    small = Image.open(io.BytesIO(client.get(f"{address}&size=64").content))
    assert small.size == (64, 64)  # of 96
    red, green, blue = small.convert("RGB").getpixel((32, 32))
    assert (red > 200, green < 60, blue < 60) == (True, True, True)


def test_a_image_has_a_tag_that_changes_with_it(client):
    address = "/v1/images/tagged?index=scratch"
    client.put("/v1/items/tagged?index=scratch", json={"image": STAR})
    first = client.get(address)
    tag = first.headers["etag"]
    again = client.get(address, headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert "private" in first.headers["cache-control"]
    assert client.get(f"{address}&size=64").headers["etag"] != tag
    client.put("/v1/items/tagged?index=scratch", json={"image": base64.b64encode(png("blue star")).decode()})
    changed = client.get(address, headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert changed.content != first.content


def test_images_that_are_not_there(client, folder):
    assert client.get("/v1/images/here.png?index=files").status_code == 200
    message = error(client.get("/v1/images/gone.png?index=files"), 404, "id", "cannot be read")
    assert str(folder) not in message
    error(client.get("/v1/images/text%201"), 404, "id", "no image")
    error(client.get("/v1/images/nope"), 404, "id", "no item")
    error(client.get(f"/v1/images/{folder}/secret.txt"), 404, "id", "no item")
    for size in ("63", "1025", "x"):
        error(client.get(f"/v1/images/pair-red-star?size={size}"), 422, "size")


def test_small_images_that_were_used_last_are_kept():
    item = ITEMS["pair-red-star"]
    each = len(Thumbnails().make("one", item, 64))
    kept = Thumbnails(capacity=3 * each)
    for tag in "abc":
        kept.make(tag, item, 64)
    assert kept.get("a") is not None
    kept.make("d", item, 64)  # in place of b, which was not used for the longest time
    assert [kept.get(tag) is not None for tag in "abcd"] == [True, False, True, True]
    assert kept.used == 3 * each
    nothing = Thumbnails(capacity=each - 1)
    assert nothing.make("a", item, 64)
    assert nothing.used == 0


def test_pixels_are_counted_before_anything_is_decoded(monkeypatch):
    large = io.BytesIO()
    Image.new("1", (3000, 3000)).save(large, "PNG")

    def decode(*_: Any) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decode)
    check_image(large.getvalue(), 9_000_000)
    with pytest.raises(HttpProblem, match="more than the limit of 9 megapixels"):
        check_image(large.getvalue(), 8_999_999)


def test_no_more_images_are_decoded_at_once_than_there_are_decoders():
    async def scene() -> int:
        work, running, most, two = Decoders(2), 0, 0, threading.Barrier(2, timeout=PATIENCE)
        lock = threading.Lock()

        def decode() -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            two.wait()  # so that two there are
            with lock:
                running -= 1

        await asyncio.gather(*(work.run(decode, 0, PATIENCE) for _ in range(8)))
        return most

    assert asyncio.run(scene()) == 2


def test_images_in_too_many_pieces_are_refused():
    good = png("red star")
    piece = b"\0\0\0\0teXt" + b"\x8f\x6b\x4f\x7b"
    for bad in (good[:33] + piece * 30_000 + good[33:], good[:-12] + piece * 30_000 + good[-12:]):
        with pytest.raises(HttpProblem):
            check_image(bad, 1_000_000)
    with pytest.raises(HttpProblem):
        check_image(b"P6\n" + b"#\n" * 100_000 + b"1 1 255\n", 1_000_000)


# Limits


def test_the_limits_of_values_hold(client, description):
    for field, value in (
        *(("text", "a" * 10_001), ("instruction", "a" * 10_001), ("like", "a" * 513), ("ids", ["a"] * 10_001)),
        *(("k", 201), ("beam", 501), ("budget", 10_001)),
    ):
        error(client.post("/v1/search", json={"text": "a", field: value}), 422, field)
    most = {"text": "a" * 10_000, "k": 200, "beam": 500, "budget": 10_000, "ids": ["a"] * 10_000, "image": STAR}
    assert client.post("/v1/search", json=most).status_code == 200
    error(client.post("/v1/search/batch", json={"queries": [{"text": "a"}] * 65}), 422, "queries")
    error(client.put(f"/v1/items/{'1' * 513}", json={"text": "a"}), 422, "id")
    error(client.put("/v1/items/1", json={"text": "a", "metadata": {"x": "y" * 65_536}}), 422, "metadata")
    error(client.get("/v1/items?limit=201"), 422, "limit")
    error(client.get("/v1/codes?limit=201"), 422, "limit")
    error(client.post("/v1/items", json={"items": [{"id": "a", "text": "a"}] * 5_001}), 422, "items")
    described = json.dumps(description["components"]["schemas"]["SearchRequest"])
    assert '"maximum": 200' in described
    assert '"maxLength": 10000' in described


def test_images_of_too_many_pixels_are_refused(client):
    large = io.BytesIO()
    Image.new("1", (8_000, 5_001)).save(large, "PNG")
    encoded = base64.b64encode(large.getvalue()).decode()
    error(client.post("/v1/search", json={"image": encoded}), 422, "image", "pixels")
    error(client.put("/v1/items/large?index=scratch", json={"image": encoded}), 422, "image", "pixels")
    job = client.post("/v1/items?index=scratch", files=[("files", ("large", large.getvalue()))])
    assert "pixels" in finished(client, job.headers["location"])["bad"][0]["reason"]


# When something goes wrong inside


@pytest.mark.parametrize(
    ("raised", "status", "says"),
    [
        (ServiceUnavailable("Too much waits already. Try again later."), 503, "Too much waits"),
        (QueryExpired("The query waited too long."), 503, "waited too long"),
        (BadIndex("/srv/data/x.genius is damaged."), 503, "log of the service"),
        (BadItem("query", "/srv/data/x.png: there is no such file."), 422, "There is no such file"),
        (GeniusError("The condition cannot be used: /srv/data/x.lance failed."), 422, "(a path)"),
        (RuntimeError("/srv/data/x.py line 3"), 500, "log"),
    ],
)
def test_errors_inside_are_told_without_paths_or_traces(client, monkeypatch, raised, status, says):
    async def fail(*_: Any) -> None:
        raise raised

    monkeypatch.setattr(client.app.state.served["shapes"].batcher, "search", fail)
    answer = client.post("/v1/search", json={"text": "a"})
    assert answer.status_code == status
    message = answer.json()["error"]["message"]
    assert says.lower() in message.lower()
    assert "srv" not in answer.text
    assert "Traceback" not in answer.text
    assert ("retry-after" in answer.headers) == (status == 503)


@pytest.mark.parametrize("raised", [ServiceUnavailable("Too much waits."), QueryExpired("Too late.")])
def test_a_batch_is_refused_when_there_is_no_room_for_all_of_it(client, monkeypatch, raised):
    async def fail(queries: Any) -> list[Any]:
        return [raised for _ in queries]

    monkeypatch.setattr(client.app.state.served["shapes"].batcher, "search_many", fail)
    answer = client.post("/v1/search/batch", json={"queries": [{"text": "a"}] * 2})
    error(answer, 503)
    assert "retry-after" in answer.headers


def test_masked_leaves_ordinary_slashes_alone():
    assert mask_paths("/home/me/x.genius/items.lance is damaged") == "(a path) is damaged"
    assert mask_paths("file:///srv/a/b.") == "(a path)"
    for fine in ("`Retry-After` and/or 1/2", "Use GET /docs", "image/png or text/plain", "'a/b' is no id"):
        assert mask_paths(fine) == fine


def test_a_search_is_given_up_when_its_client_has_gone():
    """Over ASGI itself: the client closes the connection while its query waits."""

    async def scene() -> tuple[bool, list[Any]]:
        app = make_app({"shapes": drawn_index()})
        served = app.state.served["shapes"]
        waiting, given_up, sent = asyncio.Event(), asyncio.Event(), []

        async def search(*_: Any) -> None:
            waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                given_up.set()

        served.batcher.search = search
        served.ready = True
        messages = [{"type": "http.request", "body": b'{"text": "a"}', "more_body": False}]

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await waiting.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/search", "raw_path": b"/v1/search", "query_string": b""}
        scope |= {"headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000), "scheme": "http"}
        async with asyncio.timeout(PATIENCE):
            await app({**scope, "app": app, "http_version": "1.1", "root_path": ""}, receive, send)
            await given_up.wait()
        return given_up.is_set(), sent

    given_up, sent = asyncio.run(scene())
    assert given_up
    assert all(message.get("status", 400) == 400 for message in sent)


def test_the_service_answers_before_its_indexes_are_loaded():
    app = make_app({"shapes": drawn_index()})
    loading = threading.Event()
    served = app.state.served["shapes"]
    start = served.start

    def slow_start() -> None:
        assert loading.wait(PATIENCE)
        start()

    served.start = slow_start
    with TestClient(app, base_url="http://127.0.0.1") as client:
        try:
            assert client.get("/healthz").json() == {"status": "ok"}
            ready = client.get("/readyz")
            assert (ready.status_code, ready.json()) == (
                503,
                {"ready": False, "indexes": {"shapes": False}, "failed": []},
            )
            answer = client.post("/v1/search", json={"text": "a"})
            error(answer, 503, None, "loading")
            assert "retry-after" in answer.headers
            assert client.get("/").status_code == 200
        finally:
            loading.set()


@pytest.mark.parametrize("problem", [BadIndex("/srv/x is damaged"), RuntimeError("no idea")])
def test_an_index_that_cannot_be_started_does_not_hold_up_the_others(problem, caplog):
    app = make_app({"broken": drawn_index(), "shapes": drawn_index()})

    def fail() -> None:
        raise problem

    app.state.served["broken"].start = fail
    with caplog.at_level("INFO", "genius.serve"), TestClient(app, base_url="http://127.0.0.1") as client:
        wait_until_ready(client)
        assert client.get("/readyz").json() == {
            "ready": True,
            "indexes": {"broken": False, "shapes": True},
            "failed": ["broken"],
        }
        assert client.post("/v1/search?index=shapes", json={"text": "a"}).status_code == 200
        for address in ("/v1/search", "/v1/search?index=broken"):  # requests that name none do not get another index
            answer = client.post(address, json={"text": "a"})
            error(answer, 503, "index", "'broken' could not be loaded")
            assert "srv" not in answer.text
        assert [one["name"] for one in client.get("/v1/indexes").json()["indexes"]] == ["shapes"]
        assert client.get("/v1/jobs").status_code == 200
        assert client.get("/metrics").status_code == 200
    said = "\n".join(caplog.messages)
    assert "The index broken cannot be served." in said
    assert str(problem) in said
    assert all(record.exc_info is None for record in caplog.records)


# Pages and what is promised


def test_pages_come_from_the_package_and_need_nothing_else(client):
    for address in ("/", "/docs"):
        page = client.get(address)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "//" not in page.text.replace("http://www.w3.org/", "")
        tag = page.headers["etag"]
        assert client.get(address, headers={"If-None-Match": tag}).status_code == 304
    assert client.get("/docs/reference.js").headers["content-type"] == "text/javascript; charset=utf-8"
    assert client.get("/page/icon.svg").headers["content-type"] == "image/svg+xml"
    for address in ("/page/..%2Fapp.py", "/page/app.py", "/page/", "/nothing", "/v1", "/v1/search/"):
        assert client.get(address).status_code in (404, 405), address
    error(client.get("/page/../app.py"), 404)


def test_methods_that_a_route_does_not_take(client):
    for method, address in (("GET", "/v1/search"), ("POST", "/v1/items/a"), ("PUT", "/v1/items"), ("PUT", "/")):
        answer = client.request(method, address, headers={"Origin": "http://127.0.0.1:8000"})
        error(answer, 405)
    for address, methods in (
        ("/v1/search", "POST"),
        ("/v1/items", "DELETE, GET, HEAD, POST"),
        ("/v1/items/a", "DELETE, GET, HEAD, PUT"),
        ("/v1/jobs/a", "DELETE, GET, HEAD"),
        ("/", "GET, HEAD"),
    ):
        assert client.request("PATCH", address).headers["allow"] == methods


def test_head_is_get_without_the_body(client):
    for address in ("/", "/healthz", "/v1/items/text 1", "/v1/images/pair-red-star", "/nothing"):
        got, headed = client.get(address), client.head(address)
        assert (headed.status_code, headed.content) == (got.status_code, b"")
        assert headed.headers["content-length"] == got.headers["content-length"] == str(len(got.content))


def test_metrics_count_requests_by_route(client):
    before = client.get("/metrics").text
    client.get("/v1/items/text 1")
    client.get("/v1/items/nope/nope")
    after = client.get("/metrics").text

    def value(text: str, status: int) -> float:
        start = f'genius_requests_total{{method="GET",route="/v1/items/{{id}}",status="{status}"}}'
        return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(start)), 0)

    assert value(after, 200) == value(before, 200) + 1
    assert value(after, 404) == value(before, 404) + 1
    assert "nope" not in after


@pytest.fixture(scope="module")
def description(client: TestClient) -> dict[str, Any]:
    answer = client.get("/openapi.json")
    assert answer.status_code == 200
    return answer.json()


def operations(description: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def schema_of(description: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "components": description["components"]}


def test_every_operation_is_described(description):
    assert description["openapi"].startswith("3.1")
    names = [operation["operationId"] for *_, operation in operations(description)]
    assert sorted(names) == sorted(set(names))
    assert {"search", "search_batch", "get_item", "put_item", "delete_item", "add_items", "list_items"} < set(names)
    assert {"get_codes", "get_image", "get_job", "cancel_job", "list_indexes", "health", "ready"} < set(names)
    for path, method, operation in operations(description):
        assert operation["summary"].endswith("."), path
        assert operation["description"], path
        assert operation["tags"], path
        statuses = set(operation["responses"])
        assert {"401", "403", "429"} <= statuses, path
        assert any(status.startswith("2") for status in statuses)
        for status, answer in operation["responses"].items():
            if status[0] == "4":
                assert answer["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/ErrorResponse"}
        if method in ("POST", "PUT"):
            assert set(operation["requestBody"]["content"]) == {"application/json", "multipart/form-data"}
    text = json.dumps(description)
    assert "HTTPValidationError" not in text


def test_the_schemas_of_the_description_are_schemas(description):
    def refs(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for one in value.values():
                yield from refs(one)
        elif isinstance(value, list):
            for one in value:
                yield from refs(one)

    schemas = description["components"]["schemas"]
    for ref in refs(description):
        assert ref.removeprefix("#/components/schemas/") in schemas
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_the_examples_of_the_description_work(client, description):
    asked = 0
    for path, method, operation in operations(description):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        for example in (content or {}).get("examples", {}).values():
            jsonschema.validate(example["value"], schema_of(description, content["schema"]))
            address = path.replace("{id}", "an%20example") + "?index=scratch"
            answer = client.request(method, address, json=example["value"])
            assert answer.is_success, answer.text
            asked += 1
    assert asked >= 8


def test_answers_are_as_described(client, description):
    client.put("/v1/items/described?index=scratch", json={"text": "a"})
    job = client.post("/v1/items?index=scratch", json={"items": [{"id": "described", "text": "a"}]}).json()["job"]
    requests: list[tuple[str, str, str, Any]] = [
        ("POST", "/v1/search", "", {"text": "a", "explain": True}),
        ("POST", "/v1/search", "", {"text": "a", "k": 0}),
        ("POST", "/v1/search/batch", "", {"queries": [{"text": "a"}]}),
        ("GET", "/v1/items", "?limit=3", None),
        ("GET", "/v1/items/{id}", "text 1", None),
        ("GET", "/v1/items/{id}", "nope", None),
        ("PUT", "/v1/items/{id}", "described?index=scratch", {"text": "b"}),
        ("POST", "/v1/items", "?index=scratch", {"items": [{"id": "described", "text": "a"}]}),
        ("GET", "/v1/jobs", "", None),
        ("GET", "/v1/jobs/{job}", job, None),
        ("GET", "/v1/codes", "", None),
        ("GET", "/v1/codes/{pattern}", "0", None),
        ("GET", "/v1/indexes", "", None),
        ("GET", "/healthz", "", None),
        ("GET", "/readyz", "", None),
    ]
    for method, path, rest, body in requests:
        address = path.partition("{")[0] + rest if "{" in path else path + rest
        answer = client.request(method, address, json=body)
        described = description["paths"][path][method.lower()]["responses"][str(answer.status_code)]
        schema = schema_of(description, described["content"]["application/json"]["schema"])
        jsonschema.validate(answer.json(), schema)
        if answer.is_success:  # nothing in it that is not described
            strict = json.loads(json.dumps(schema))
            for one in strict["components"]["schemas"].values():
                if "properties" in one and one["title"] != "HitResponse":
                    one["additionalProperties"] = False
            jsonschema.validate(answer.json(), strict)


# A real server


def test_a_real_server_answers(tmp_path):
    with running_server(copy_index(tmp_path)) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        name = client.get("/v1/indexes").json()["indexes"][0]["name"]
        hits = client.post("/v1/search", json={"text": "a red circle", "k": 3}).json()["hits"]
        assert len(hits) == 3
        same(hits, Index.open(drawn_index(), mini_model()).search(Query("a red circle"), k=3))
        as_form = client.post("/v1/search", data={"k": "1"}, files={"image": png("red star")})
        assert as_form.json()["hits"][0]["id"] in ("images/red-star.png", "pair-red-star")
        address = "/v1/items/..%2F%C3%BC%0A%20x?index=" + name
        assert client.put(address, json={"text": "something new"}).status_code == 201
        assert client.get(address).json()["id"] == "../ü\n x"
        assert client.get("/v1/items/%FF%FE").status_code == 404
        assert client.put("/v1/items/a%252Fb", json={"text": "a"}).json()["id"] == "a%2Fb"
        assert client.get(hits[0]["image_url"] or "/").status_code == 200
        assert client.head("/healthz").status_code == 200
        assert client.get("/healthz").json() == {"status": "ok"}  # on the same connection
        assert str(tmp_path) not in client.get("/v1/indexes").text


# Names and branches


@pytest.fixture(scope="module")
def named(client: TestClient) -> TestClient:
    """The client, with names made for the index "shapes"."""
    client.get("/v1/codes")
    client.app.state.served["shapes"].names.wait(PATIENCE)
    assert client.get("/v1/codes").json()["names_ready"]
    return client


def test_codes_come_with_names(named: TestClient, index: Index):
    from genius.serve.names import code_names

    expected = code_names(index)
    page = named.get("/v1/codes/0?limit=5").json()
    shown = {f"0-{child['code']}" for child in page["children"]}
    assert shown & page["names"].keys() == shown & expected.keys() != set()
    assert all(expected[prefix] == name for prefix, name in page["names"].items())
    assert any("-".join(map(str, page["items"][0]["codes"])).startswith(prefix) for prefix in page["names"])
    every = named.get(f"/v1/codes/*-{page['children'][0]['code']}").json()
    assert f"*-{page['children'][0]['code']}" in every["names"]


def test_results_come_with_the_names_of_their_codes_if_they_are_explained(named: TestClient):
    answer = named.post("/v1/search", json={"text": "a red circle", "explain": True}).json()
    ids = ["-".join(map(str, hit["codes"])) + "-" for hit in answer["hits"]]
    assert answer["names"]
    assert all(any(id.startswith(f"{prefix}-") for id in ids) for prefix in answer["names"])
    assert named.post("/v1/search", json={"text": "a red circle"}).json()["names"] is None


@pytest.mark.parametrize("mode", ["fast", "rerank", "generate"])
def test_a_branch_can_be_searched(client: TestClient, index: Index, mode: str):
    code = int(index.codes[0, 1])
    under = {id for id, row in zip(ITEMS, index.codes.tolist(), strict=True) if row[1] == code}
    answer = client.post("/v1/search", json={"text": "a circle", "k": 50, "mode": mode, "branch": f"*-{code}"}).json()
    assert {hit["id"] for hit in answer["hits"]} == under


@pytest.mark.parametrize("branch", ["x", "0-", "1-2-3-4-5-6-7-8-9-10-11-12-13-14"])
def test_a_branch_that_cannot_be_is_refused(client: TestClient, branch: str):
    error(client.post("/v1/search", json={"text": "a circle", "branch": branch}), 422, "branch", says="codes")


def test_an_index_that_changed_gets_new_names(tmp_path: Path):
    from genius.serve import names

    index = Index.open(copy_index(tmp_path), mini_model())
    made = names.CodeNames(index)
    assert not made.ready
    assert made.of([(0, 1)]) == {}
    made.refresh()
    made.wait(PATIENCE)
    assert made.ready
    before = made.of(index.codes.tolist())
    index.add([Item(f"zebra-{n}", text="A zebra in the savannah.") for n in range(8)])
    made.refresh()  # too early
    assert made.of(index.codes.tolist()) == before
    made._next = 0
    made.refresh()
    made.wait(PATIENCE)
    assert any("zebra" in name["name"] for name in made.of(index.codes.tolist()).values())


def test_names_that_cannot_be_made_leave_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog):
    from genius.serve import names

    def fail(index: Index) -> None:
        raise GeniusError("It cannot be read.")

    monkeypatch.setattr(names, "code_names", fail)
    made = names.CodeNames(Index.open(copy_index(tmp_path), mini_model()))
    made.refresh()
    made.wait(PATIENCE)
    assert made.ready
    assert made.of([(0, 1)]) == {}
    assert "It cannot be read." in caplog.text
