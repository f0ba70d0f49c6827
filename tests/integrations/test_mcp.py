"""genius.integrations.mcp and genius.cli.mcp: what an assistant sees, through the reference client and real pipes."""

import base64
import io
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import jsonschema
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, ClientSession, MCPError, StdioServerParameters, stdio_client, types
from PIL import Image
from serving import PATIENCE, copy_index, drawn_index, drawn_items, mini_model, png

from genius.cli.app import main
from genius.cli.console import named_indexes
from genius.data.items import Item, Query
from genius.errors import BadIndex, GeniusError
from genius.index.index import Index
from genius.integrations.mcp import MAX_IMAGES, THUMBNAIL_SIZE, _jpeg

RED = "images/red-circle.png"


def command(*indexes: object) -> list[str]:
    return [sys.executable, "-m", "genius.cli", "mcp", *map(str, indexes)]


class Assistant:
    """The reference client, connected to `genius mcp`."""

    def __init__(self, portal: BlockingPortal, session: ClientSession, greeting: types.InitializeResult) -> None:
        self._portal, self._session, self.greeting = portal, session, greeting

    def tools(self) -> dict[str, types.Tool]:
        return {tool.name: tool for tool in self._portal.call(self._session.list_tools).tools}

    def call(self, name: str, **arguments: Any) -> types.CallToolResult:
        async def call() -> types.CallToolResult:
            result = await self._session.call_tool(name, arguments, PATIENCE)
            assert isinstance(result, types.CallToolResult)
            return result

        return self._portal.call(call)

    def ask(self, name: str, **arguments: Any) -> dict[str, Any]:
        """What a call that succeeds answers, checked against the tool's schema."""
        result = self.call(name, **arguments)
        assert not result.is_error, result.content
        jsonschema.validate(result.structured_content, self.tools()[name].output_schema or {})
        first = result.content[0]
        assert isinstance(first, types.TextContent)
        assert json.loads(first.text) == result.structured_content
        return cast(dict[str, Any], result.structured_content)

    def refused(self, name: str, **arguments: Any) -> str:
        """The sentence with which a call is refused."""
        result = self.call(name, **arguments)
        (sentence,) = result.content
        assert result.is_error
        assert isinstance(sentence, types.TextContent)
        assert "Traceback" not in sentence.text
        return sentence.text

    def read(self, uri: str) -> list[Any]:
        return list(self._portal.call(self._session.read_resource, uri).contents)

    def resources(self) -> list[str]:
        return [str(one.uri) for one in self._portal.call(self._session.list_resources).resources]

    def templates(self) -> list[str]:
        found = self._portal.call(self._session.list_resource_templates)
        return [one.uri_template for one in found.resource_templates]


@asynccontextmanager
async def connected(portal: BlockingPortal, log: Path, *indexes: object) -> AsyncIterator[Assistant]:
    program, *arguments = command(*indexes)
    parameters = StdioServerParameters(command=program, args=arguments, env={"OMP_NUM_THREADS": "1"})
    with log.open("w") as errors:
        async with stdio_client(parameters, errors) as streams, ClientSession(*streams, PATIENCE) as session:
            yield Assistant(portal, session, await session.initialize())


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mcp") / "log"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index that other programs write to while it is served."""
    return copy_index(tmp_path_factory.mktemp("mcp"), "written.genius")


@pytest.fixture(scope="module")
def assistant(log: Path, written: Path) -> Iterator[Assistant]:
    with start_blocking_portal() as portal:
        connection = connected(portal, log, drawn_index(), f"other={written}")
        with portal.wrap_async_context_manager(connection) as one:
            yield one


def images(result: types.CallToolResult) -> list[Image.Image]:
    shown = [block for block in result.content if isinstance(block, types.ImageContent)]
    assert all(block.mime_type == "image/jpeg" for block in shown)
    return [Image.open(io.BytesIO(base64.b64decode(block.data))) for block in shown]


def ids(answer: dict[str, Any]) -> list[str]:
    return [hit["id"] for hit in answer["hits"]]


# The first test is the first to call a tool, while the model is being loaded.


def test_a_first_call_waits_for_the_model(assistant: Assistant) -> None:
    answer = assistant.ask("describe_index", index="shapes")
    assert answer["indexes"][0]["items"] == len(drawn_items())


def test_the_server_says_who_it_is_and_what_it_can_do(assistant: Assistant) -> None:
    assert assistant.greeting.server_info.name == "genius"
    assert "describe_index" in (assistant.greeting.instructions or "")
    assert assistant.greeting.capabilities.tools is not None


def test_every_tool_is_described_and_only_reads(assistant: Assistant) -> None:
    tools = assistant.tools()
    assert set(tools) == {"search", "get_item", "browse_codes", "describe_index"}
    for tool in tools.values():
        assert len(tool.description or "") > 40
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is True
        assert tool.annotations.open_world_hint is False
        jsonschema.Draft202012Validator.check_schema(tool.input_schema)
        jsonschema.Draft202012Validator.check_schema(tool.output_schema or {})
        assert tool.input_schema["additionalProperties"] is False
        assert tool.input_schema["properties"]["index"]["enum"] == ["shapes", "other", None]
        assert all("description" in one for one in tool.input_schema["properties"].values())


# Tools


def test_words_find_what_the_index_itself_finds(assistant: Assistant) -> None:
    index = Index.open(drawn_index(), mini_model())
    for target in ("image", "text", "image,text", None):
        query = Query(text="a red circle", target=target)
        hits = index.search(query, k=5)
        found = assistant.ask("search", text="a red circle", k=5, **({} if target is None else {"target": target}))
        assert ids(found) == [hit.id for hit in hits]
        assert [hit["codes"] for hit in found["hits"]] == [list(hit.codes) for hit in hits]
        assert [hit["score"] for hit in found["hits"]] == pytest.approx([hit.score for hit in hits], abs=1e-3)
        assert found["index"] == "shapes"


def test_a_image_finds_itself_and_comes_back_small(assistant: Assistant) -> None:
    encoded = base64.b64encode(png("red circle")).decode()
    for image in (encoded, f"data:image/png;base64,{encoded}"):
        result = assistant.call("search", image=image, target="image", k=6, images=3)
        found = cast(dict[str, Any], result.structured_content)
        assert ids(found)[0] == RED
        assert [hit["has_image"] for hit in found["hits"]] == [True] * 6
        shown = images(result)
        assert [one.size for one in shown] == [(64, 64)] * 3
        captions = [block.text for block in result.content[1:] if isinstance(block, types.TextContent)]
        assert captions == [f"Image of {id}:" for id in ids(found)[:3]]


def test_no_images_are_sent_to_those_who_want_none(assistant: Assistant) -> None:
    assert images(assistant.call("search", text="a circle", target="image", images=0)) == []
    assert len(images(assistant.call("search", text="a circle", target="image", k=50, images=MAX_IMAGES))) == MAX_IMAGES


def test_an_item_can_be_searched_with_alone_or_changed_by_words(assistant: Assistant) -> None:
    index = Index.open(drawn_index(), mini_model())
    pair = cast(Item, index.get("pair-red-star"))
    assert ids(assistant.ask("search", like=pair.id)) == [hit.id for hit in index.search(Query(pair.text, pair.image))]
    changed = Query("the same in blue", pair.image, "Find the drawing.", "image")
    found = assistant.ask(
        "search", like=pair.id, text="the same in blue", instruction="Find the drawing.", target="image"
    )
    assert ids(found) == [hit.id for hit in index.search(changed)]
    plain = Query("How to draw a star with five points. in blue")
    assert ids(assistant.ask("search", like="text 1", text="in blue")) == [hit.id for hit in index.search(plain)]
    assert "no item 'nobody'" in assistant.refused("search", like="nobody")


def test_filters_narrow_the_search(assistant: Assistant) -> None:
    found = assistant.ask("search", text="a circle", where="colour = 'blue' AND number < 100", k=50)
    assert {hit["metadata"]["colour"] for hit in found["hits"]} == {"blue"}
    assert len(found["hits"]) == 4


def test_an_item_is_shown_whole(assistant: Assistant) -> None:
    result = assistant.call("get_item", id=RED)
    item = assistant.ask("get_item", id=RED)["item"]
    assert item["metadata"] == {"colour": "red", "shape": "circle", "number": 0, "tags": ["red", "circle"]}
    assert item["modality"] == "image"
    assert item["text"] is None
    (image,) = images(result)
    assert image.convert("RGB").getpixel((32, 32)) == pytest.approx((255, 0, 0), abs=12)
    assert assistant.ask("get_item", id="text 7")["item"]["text"] == "猫が寝ています。"


def test_the_tree_of_codes_can_be_walked_from_the_root_to_an_item(assistant: Assistant) -> None:
    wanted = assistant.ask("get_item", id=RED)["item"]["codes"]
    total = len(drawn_items())
    for level in range(len(wanted)):
        page = assistant.ask("browse_codes", codes=wanted[:level], limit=50)
        assert page["total"] <= total
        assert page["total"] == len(page["items"])
        assert all(item["codes"][:level] == wanted[:level] for item in page["items"])
        assert wanted[level] in [child["code"] for child in page["children"]]
        assert sum(child["items"] for child in page["children"]) == page["total"]
        total = page["total"]
    assert RED in [item["id"] for item in assistant.ask("browse_codes", codes=wanted)["items"]]
    any_kind = assistant.ask("browse_codes", codes=[None, wanted[1]], limit=50)
    assert RED in [item["id"] for item in any_kind["items"]]
    first, second = (assistant.ask("browse_codes", limit=10, offset=offset)["items"] for offset in (0, 10))
    assert len({item["id"] for item in first + second}) == 20


def test_an_index_is_described(assistant: Assistant) -> None:
    both = assistant.ask("describe_index")
    assert [one["name"] for one in both["indexes"]] == ["shapes", "other"]
    (one,) = assistant.ask("describe_index", index="shapes")["indexes"]
    assert one["modalities"] == {"image": 20, "text": 10, "image,text": 12}
    assert one["fields"] == {"colour": "text", "shape": "text", "number": "number", "long": "boolean"}
    assert one["model"] == "mini"
    assert one["levels"] == len(one["sizes"]) == len(one["examples"][0]["codes"])
    assert str(drawn_index()) not in json.dumps(both)


def test_what_another_program_writes_is_found(assistant: Assistant, written: Path) -> None:
    Index.open(written, mini_model()).add([Item("new", text="Zebras live in the savannah.")])
    for _ in range(200):
        found = assistant.ask("search", index="other", text="zebras in the savannah", k=1)
        if ids(found) == ["new"]:
            break
    assert ids(found) == ["new"]
    assert "new" not in ids(assistant.ask("search", text="zebras in the savannah", k=50))


# Refusals


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "nothing to search with"),
        ({"text": "   "}, "nothing to search with"),
        ({"text": "x", "k": 0}, "k\n"),
        ({"text": "x", "k": 10_000}, "k\n"),
        ({"text": "x", "k": "many"}, "k\n"),
        ({"text": ["x"]}, "text\n"),
        ({"text": "x" * 10_001}, "text\n"),
        ({"text": "x", "target": "sound"}, "target\n"),
        ({"text": "x", "path": "/etc/passwd"}, "path\n"),
        ({"text": "x", "index": "nowhere"}, "There are: shapes, other."),
        ({"text": "x", "where": "colour ="}, "filter"),
        ({"text": "x", "where": "colour = 'red'; DROP TABLE items"}, "filter"),
        ({"text": "x", "where": "nothing = 1"}, "fields of this index are"),
        ({"image": "%%%"}, "not base64"),
        ({"image": "/etc/passwd"}, "image"),
        ({"image": "https://example.com/cat.png"}, "not base64"),
        ({"image": base64.b64encode(png("red circle")[:100]).decode()}, "image"),
        ({"image": base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg'/>").decode()}, "SVG"),
        ({"image": ""}, "empty"),
        ({"image": base64.b64encode(png("red circle")).decode(), "like": RED}, "cannot be used together"),
    ],
)
def test_a_bad_search_is_refused_with_a_sentence(
    assistant: Assistant, arguments: dict[str, Any], sentence: str
) -> None:
    assert sentence in assistant.refused("search", **arguments)


def test_bad_arguments_of_the_other_tools_are_refused_too(assistant: Assistant) -> None:
    assert "no item '../../etc/passwd'" in assistant.refused("get_item", id="../../etc/passwd")
    assert "id\n" in assistant.refused("get_item")
    assert "id\n" in assistant.refused("get_item", id="")
    assert assistant.ask("browse_codes", codes=[7])["total"] == 0
    assert "codes" in assistant.refused("browse_codes", codes=[-1])
    assert assistant.ask("browse_codes", codes=[0, 65_000])["total"] == 0
    assert "30 codes" in assistant.refused("browse_codes", codes=[None] * 30)
    assert "codes" in assistant.refused("browse_codes", codes="0-17")
    assert "no index 'nowhere'" in assistant.refused("describe_index", index="nowhere")


def test_an_unknown_tool_is_refused(assistant: Assistant) -> None:
    assert "Unknown tool: delete_item" in assistant.refused("delete_item", id=RED)


# Resources


def test_indexes_and_items_are_resources(assistant: Assistant) -> None:
    assert assistant.resources() == ["genius://shapes", "genius://other"]
    assert assistant.templates() == ["genius://{index}/items/{id}", "genius://{index}/images/{id}"]
    (description,) = assistant.read("genius://shapes")
    assert json.loads(description.text)["items"] == len(drawn_items())
    (item,) = assistant.read("genius://shapes/items/images%2Fred-circle.png")
    (image,) = assistant.read("genius://shapes/images/images%2Fred-circle.png")
    assert json.loads(item.text)["item"]["id"] == RED
    assert Image.open(io.BytesIO(base64.b64decode(image.blob))).size == (64, 64)
    with pytest.raises(MCPError, match=r"no item '\.\./nobody'"):
        assistant.read("genius://shapes/items/..%2Fnobody")
    for uri in (
        "genius://shapes/images/text%201",
        "genius://nowhere",
        "genius://nowhere/items/x",
        "genius://shapes/else",
        "file:///etc/passwd",
    ):
        with pytest.raises(MCPError):
            assistant.read(uri)


def test_nothing_but_warnings_was_written_beside_the_protocol(assistant: Assistant, log: Path) -> None:
    assistant.ask("describe_index")
    assert "Traceback" not in log.read_text()


# Thumbnails


def test_a_thumbnail_is_small_whatever_the_image(tmp_path: Path) -> None:
    noise = Image.effect_noise((2000, 1500), 200).convert("RGB")
    file = io.BytesIO()
    noise.save(file, "PNG")
    for size in (THUMBNAIL_SIZE, 2 * THUMBNAIL_SIZE):
        made = _jpeg(Item("noise", image=file.getvalue()), size)
        assert made is not None
        assert len(made) <= 100_000
        assert max(Image.open(io.BytesIO(made)).size) == size
    assert _jpeg(Item("gone", image=str(tmp_path / "gone.png")), THUMBNAIL_SIZE) is None


# The process


def run(*indexes: object, lines: list[dict[str, Any]]) -> tuple[int, list[dict[str, Any]], str]:
    """Exit status, messages and log of a server that is told these lines, after which its input ends."""
    process = subprocess.Popen(
        command(*indexes),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        out, errors = process.communicate("".join(json.dumps(line) + "\n" for line in lines), PATIENCE)
    finally:
        process.kill()
    return process.returncode, [json.loads(line) for line in out.splitlines()], errors


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


def test_the_server_ends_cleanly_when_its_input_ends_even_while_it_loads() -> None:
    status, messages, errors = run(drawn_index(), lines=[INITIALIZE])
    assert status == 0
    assert [message["id"] for message in messages] == [1]
    assert messages[0]["result"]["protocolVersion"] == "2025-06-18"
    assert "Traceback" not in errors


def test_a_client_of_the_newest_protocol_is_told_of_an_index_that_cannot_be_opened(tmp_path: Path) -> None:
    broken = tmp_path / "broken.genius"
    (broken / "items.lance").mkdir(parents=True)

    async def talk() -> tuple[str, types.Tool, types.CallToolResult]:
        program, *arguments = command(broken)
        parameters = StdioServerParameters(command=program, args=arguments, env={"OMP_NUM_THREADS": "1"})
        async with Client(stdio_client(parameters)) as client:
            tools = (await client.list_tools()).tools
            return client.protocol_version, tools[0], await client.call_tool("search", {"text": "anything"})

    version, search, result = anyio.run(talk)
    assert version >= "2026-07-28"
    assert "index" not in search.input_schema["properties"]
    assert result.is_error
    (sentence,) = result.content
    assert isinstance(sentence, types.TextContent)
    assert "broken.genius" in sentence.text


def test_what_is_no_index_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["mcp", str(tmp_path / "nowhere.genius")])
    assert ended.value.code == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "is not an index" in " ".join(shown.err.split())


def test_indexes_have_the_names_they_are_given_or_those_of_their_folders(tmp_path: Path) -> None:
    for folder in ("photos.genius", "a=b.genius", "other"):
        (tmp_path / folder / "items.lance").mkdir(parents=True)
    photos, odd, other = (tmp_path / folder for folder in ("photos.genius", "a=b.genius", "other"))
    assert named_indexes([str(photos), f"news={other}"]) == {"photos": str(photos), "news": str(other)}
    assert named_indexes([str(odd)]) == {"a=b": str(odd)}
    with pytest.raises(GeniusError, match="Two indexes have the name 'photos'"):
        named_indexes([str(photos), f"photos={other}"])
    for wrong in (f"={other}", "name="):
        with pytest.raises(GeniusError, match="NAME=INDEX"):
            named_indexes([wrong])
    with pytest.raises(BadIndex, match="genius index create"):
        named_indexes([str(tmp_path)])


def test_a_missing_package_is_said_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "genius.integrations.mcp")
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    with pytest.raises(SystemExit) as ended:
        main(["mcp", str(drawn_index())])
    assert ended.value.code == 1
    assert 'pip install "genius-search[mcp]"' in " ".join(capsys.readouterr().err.split())
