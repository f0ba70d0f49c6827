"""The LlamaIndex retriever with the real package: nodes, queries with images, query engines."""

import asyncio
import io
import subprocess
import sys
from pathlib import Path

import pytest
from fakes import draw_image, tiny_model
from llama_index.core.base.llms.types import ImageBlock, TextBlock
from llama_index.core.llms import MockLLM
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import ImageNode, MetadataMode, QueryBundle, TextNode
from PIL import Image

from genius.data.items import Item, Modality, Query
from genius.errors import GeniusError
from genius.index.index import Index
from genius.integrations.llamaindex import GeniusRetriever


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llamaindex")
    draw_image("red").save(folder / "red.png")
    return folder


@pytest.fixture(scope="module")
def index(folder: Path) -> Index:
    index = Index.create(folder / "things.genius", tiny_model())
    index.add(
        [
            Item("t1", "the cat sleeps on the sofa", metadata={"lang": "en"}),
            Item("t2", "snow on the mountain", metadata={"lang": "de"}),
            Item("p1", image=str(folder / "red.png")),
            Item("p2", image=draw_image("blue")),
            Item("x1", "a red car", draw_image("red"), {"lang": "en"}),
        ]
    )
    return index


def test_nodes_are_the_hits_in_their_order(index):
    nodes = GeniusRetriever(index, k=5).retrieve("cat on a sofa")
    hits = index.search(Query(text="cat on a sofa"), k=5)
    assert [(node.node_id, node.score) for node in nodes] == [(hit.id, hit.score) for hit in hits]
    for node, hit in zip(nodes, hits, strict=True):
        assert node.text == (hit.item.text or "")
        assert isinstance(node.node, ImageNode) == (hit.modality is not Modality.TEXT)
        assert node.metadata == hit.item.metadata | {
            "id": hit.id,
            "score": hit.score,
            "modality": hit.modality.label,
            "codes": list(hit.codes),
        }


def test_a_image_in_a_file_is_given_as_a_path_and_any_other_as_base64(index, folder):
    nodes = {node.node_id: node.node for node in GeniusRetriever(index, k=5).retrieve("anything")}
    assert nodes["p1"].image_path == str(folder / "red.png")
    assert nodes["p1"].image is None
    assert nodes["p1"].image_mimetype == "image/png"
    resolved = nodes["p2"].resolve_image()
    assert isinstance(resolved, io.BytesIO)
    assert Image.open(resolved).convert("RGB").getpixel((0, 0)) == (0, 0, 255)


def test_settings_reach_query_and_search(index):
    retriever = GeniusRetriever(
        index, k=3, target="text", instruction="Find a sentence.", mode="rerank", where="lang = 'en'"
    )
    expected = index.search(
        Query(text="cat", target="text", instruction="Find a sentence."), k=3, mode="rerank", where="lang = 'en'"
    )
    found = retriever.retrieve("cat")
    assert [(one.node_id, one.score) for one in found] == [(hit.id, hit.score) for hit in expected]
    assert [one.node_id for one in found] == ["t1"]
    with pytest.raises(GeniusError, match="sounds"):
        GeniusRetriever(index, target="sounds")


def test_a_query_can_be_a_image_or_a_image_and_words(index, folder):
    path = str(folder / "red.png")
    for words, text in (("", None), ("at night", "at night")):
        found = GeniusRetriever(index, k=5).retrieve(QueryBundle(words, image_path=path))
        expected = index.search(Query(text=text, image=path), k=5)
        assert [(one.node_id, one.score) for one in found] == [(hit.id, hit.score) for hit in expected]


def test_embeddings_of_others_change_nothing(index):
    bundle = QueryBundle("cat", custom_embedding_strs=["snow on the mountain"], embedding=[1.0, 0.0])
    retriever = GeniusRetriever(index, k=5)
    assert retriever.retrieve(bundle) == retriever.retrieve("cat")


def test_bad_queries_are_told(index, folder):
    with pytest.raises(GeniusError, match="neither text nor an image"):
        GeniusRetriever(index).retrieve("")
    with pytest.raises(GeniusError, match=r"gone\.png: there is no such file"):
        GeniusRetriever(index).retrieve(QueryBundle("", image_path=str(folder / "gone.png")))


def test_an_answer_is_made_from_what_was_found(index):
    """The model that comes with the package answers with its prompt: it must hold the text, and not our numbers."""
    engine = RetrieverQueryEngine.from_args(GeniusRetriever(index, k=1, target="text"), llm=MockLLM())
    response = engine.query("where does the cat sleep")
    assert "the cat sleeps on the sofa" in str(response)
    assert "lang: en" in str(response)
    assert "codes" not in str(response)
    assert [node.node_id for node in response.source_nodes] == ["t1"]
    again = asyncio.run(engine.aquery("where does the cat sleep"))
    assert [node.node_id for node in again.source_nodes] == ["t1"]


def test_postprocessors_see_the_scores(index):
    hits = index.search(Query(text="cat on a sofa"), k=5)
    cutoff = (hits[1].score + hits[2].score) / 2
    engine = RetrieverQueryEngine.from_args(
        GeniusRetriever(index, k=5),
        llm=MockLLM(),
        node_postprocessors=[SimilarityPostprocessor(similarity_cutoff=cutoff)],
    )
    found = engine.query("cat on a sofa").source_nodes
    assert [node.node_id for node in found] == [hit.id for hit in hits[:2]]


def test_a_pair_shows_a_multimodal_model_both_its_words_and_its_image(index):
    (node,) = GeniusRetriever(index, k=1, target="image,text").retrieve("car")
    blocks = node.node.get_content_blocks(MetadataMode.LLM)
    assert any(isinstance(block, TextBlock) and block.text == "a red car" for block in blocks)
    assert any(isinstance(block, ImageBlock) and block.resolve_image().read() for block in blocks)


def test_what_has_no_image_at_hand_is_no_image_node(tmp_path):
    model = tiny_model()
    index = Index.create(tmp_path / "vectors.genius", model)
    index.add_vectors(["v"], model.encode_items([Item("v", image=draw_image("red"))]))
    (node,) = GeniusRetriever(index, k=1).retrieve("red")
    assert type(node.node) is TextNode
    assert node.metadata["modality"] == "image"


def test_asynchronous_retrieval_finds_the_same(index):
    retriever = GeniusRetriever(index, k=3)
    assert asyncio.run(retriever.aretrieve("snow")) == retriever.retrieve("snow")


def test_without_the_package_one_sentence_says_what_to_install():
    code = "import sys; sys.modules['llama_index'] = None\nimport genius.integrations.llamaindex"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("genius.errors.MissingExtra: ")
    assert 'pip install "genius-search[llamaindex]"' in last
