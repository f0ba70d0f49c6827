"""The LangChain retriever with the real package: documents, settings, chains, async calls."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import draw_image, tiny_model
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import ConfigurableField, RunnableLambda, RunnablePassthrough

from genius.data.items import Item, Query
from genius.errors import GeniusError
from genius.index.index import Index
from genius.integrations.langchain import GeniusRetriever


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("langchain")
    draw_image("red").save(folder / "red.png")
    index = Index.create(folder / "things.genius", tiny_model())
    index.add(
        [
            Item("t1", "the cat sleeps on the sofa", metadata={"lang": "en", "tags": ["a"]}),
            Item("t2", "snow on the mountain", metadata={"lang": "de", "score": "mine"}),
            Item("p1", image=str(folder / "red.png")),
            Item("p2", image=draw_image("blue")),
            Item("x1", "a red car", draw_image("red"), {"lang": "en"}),
        ]
    )
    return index


def test_documents_are_the_hits_in_their_order(index):
    query = "cat on a sofa"
    documents = GeniusRetriever(source=index, search_kwargs={"k": 5}).invoke(query)
    hits = index.search(Query(text=query), k=5)
    assert [document.id for document in documents] == [hit.id for hit in hits]
    for document, hit in zip(documents, hits, strict=True):
        assert isinstance(document, Document)
        assert document.page_content == (hit.item.text or "")
        assert document.metadata["id"] == hit.id
        assert document.metadata["score"] == hit.score
        assert document.metadata["modality"] == hit.modality.label
        assert document.metadata["codes"] == list(hit.codes)
        json.dumps(document.metadata)


def test_metadata_of_items_come_along_and_ours_lie_over_them(index):
    found = {one.id: one for one in GeniusRetriever(source=index, search_kwargs={"k": 5}).invoke("anything")}
    assert found["t1"].metadata["tags"] == ["a"]
    assert isinstance(found["t2"].metadata["score"], float)
    assert index.get("t2").metadata["score"] == "mine"


def test_a_image_in_a_file_is_named_and_bytes_are_not_put_into_metadata(index):
    found = {one.id: one for one in GeniusRetriever(source=index, search_kwargs={"k": 5}).invoke("anything")}
    assert Path(found["p1"].metadata["image"]).name == "red.png"
    assert "image" not in found["p2"].metadata
    assert found["p2"].page_content == ""


def test_settings_reach_query_and_search(index):
    settings = {"k": 3, "target": "text", "instruction": "Find a sentence.", "mode": "rerank", "where": "lang = 'en'"}
    found = GeniusRetriever(source=index, search_kwargs=settings).invoke("cat")
    expected = index.search(
        Query(text="cat", target="text", instruction="Find a sentence."), k=3, mode="rerank", where="lang = 'en'"
    )
    assert [(one.id, one.metadata["score"]) for one in found] == [(hit.id, hit.score) for hit in expected]
    assert [one.id for one in found] == ["t1"]


def test_a_call_overrides_settings_and_leaves_them_as_they_were(index):
    retriever = GeniusRetriever(source=index, search_kwargs={"k": 5, "target": "image"})
    assert {one.id for one in retriever.invoke("cat", k=1, target="image,text")} == {"x1"}
    assert {one.id for one in asyncio.run(retriever.ainvoke("cat", k=1, target="image,text"))} == {"x1"}
    assert {one.id for one in retriever.invoke("cat")} == {"p1", "p2"}


def test_an_unknown_setting_is_named(index):
    with pytest.raises(GeniusError, match="no setting 'top_k'"):
        GeniusRetriever(source=index, search_kwargs={"top_k": 3})
    with pytest.raises(GeniusError, match="no setting 'filter'"):
        GeniusRetriever(source=index).invoke("cat", filter={})


def test_only_what_can_search_is_a_source():
    with pytest.raises(ValueError, match="SearchSource"):
        GeniusRetriever(source="photos.genius")


def test_it_is_a_link_in_a_chain(index):
    """Retriever, prompt, model and parser: what the model is asked holds what was found."""
    asked: list[str] = []

    def note(prompt: Any) -> Any:
        asked.append(prompt.to_string())
        return prompt

    model = GenericFakeChatModel(messages=iter([AIMessage("On the sofa."), AIMessage("On the sofa.")]))
    retriever = GeniusRetriever(source=index, search_kwargs={"k": 1, "target": "text"})
    prompt = ChatPromptTemplate.from_template("Context: {context}\nQuestion: {question}")
    chain = (
        {"context": retriever | _joined, "question": RunnablePassthrough()}
        | prompt
        | RunnableLambda(note)
        | model
        | StrOutputParser()
    )
    assert chain.invoke("where does the cat sleep") == "On the sofa."
    assert asyncio.run(chain.ainvoke("where does the cat sleep")) == "On the sofa."
    assert asked == ["Human: Context: the cat sleeps on the sofa\nQuestion: where does the cat sleep"] * 2


def test_many_questions_at_once_and_asynchronously(index):
    retriever = GeniusRetriever(source=index, search_kwargs={"k": 2})
    questions = ["cat", "snow", "car"]
    expected = [[hit.id for hit in index.search(Query(text=one), k=2)] for one in questions]
    assert [[one.id for one in found] for found in retriever.batch(questions)] == expected
    assert [[one.id for one in found] for found in asyncio.run(retriever.abatch(questions))] == expected


def test_settings_can_be_configured_in_a_chain(index):
    retriever = GeniusRetriever(source=index).configurable_fields(search_kwargs=ConfigurableField(id="search"))
    found = retriever.invoke("cat", config={"configurable": {"search": {"k": 1, "target": "text"}}})
    assert [one.id for one in found] == ["t1"]


def test_callbacks_hear_of_answers_and_of_errors(index):
    class Ears(BaseCallbackHandler):
        heard: list[Any] = []  # noqa: RUF012

        def on_retriever_end(self, documents, **kwargs):
            self.heard.append([one.id for one in documents])

        def on_retriever_error(self, error, **kwargs):
            self.heard.append(type(error))

    retriever = GeniusRetriever(source=index, search_kwargs={"k": 1, "target": "text"})
    retriever.invoke("cat", config={"callbacks": [Ears()]})
    with pytest.raises(GeniusError, match="wings"):
        retriever.invoke("cat", config={"callbacks": [Ears()]}, where="wings = 2")
    assert Ears.heard[0] == ["t1"]
    assert issubclass(Ears.heard[1], GeniusError)


def test_without_the_package_one_sentence_says_what_to_install():
    code = "import sys; sys.modules['langchain_core'] = None\nimport genius.integrations.langchain"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("genius.errors.MissingExtra: ")
    assert 'pip install "genius-search[langchain]"' in last


def test_it_needs_no_model_to_be_imported():
    code = "import sys, genius.langchain; print([name for name in ('torch', 'lance') if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def _joined(documents: list[Document]) -> str:
    return "\n\n".join(document.page_content for document in documents)
