import numpy as np
import pytest
from fakes import tiny_model
from PIL import Image

from genius import Index, Item
from genius.atlas.collection import Collection
from genius.atlas.words import bundled_words, nearest_rows, terms, words_of


def having(index: Index) -> dict[str, set[str]]:
    collection = Collection.read(index)
    words = words_of(collection)
    found: dict[str, set[str]] = {id: set() for id in collection.ids}
    for item, word in zip(words.item.tolist(), words.word.tolist(), strict=True):
        found[collection.ids[item]].add(words.vocabulary[word])
    return found


def test_terms_are_words_and_adjacent_pairs_without_stop_words():
    assert terms("A Cat is on the red sofa, a CAT!") == ["cat", "red", "sofa", "red sofa"]
    assert terms("Ça va? Größe 42") == ["ça", "va", "größe", "ça va"]
    assert terms("the of 12 !") == []


def test_plurals_count_as_their_singular_where_both_occur(index):
    found = having(index)
    assert "square" in found["red-pair-0"]
    assert "squares" not in found["red-pair-0"]


def test_an_image_without_text_gets_the_words_of_the_nearest_texts(index):
    found = having(index)
    assert found["red-text-3"] >= {"red", "square", "red square"}
    own = {word for id, words in found.items() if "image" not in id for word in words}
    borrowed = [found[f"{name}-image-{number}"] for name in ("red", "green", "blue") for number in range(12)]
    assert all(words and words <= own for words in borrowed)


def test_a_collection_without_texts_uses_the_bundled_words(tmp_path):
    index = Index.create(tmp_path / "images.genius", tiny_model())
    index.add([Item(str(n), image=Image.new("RGB", (8, 8), (n * 20, 0, 0))) for n in range(5)])
    known = {term for word in bundled_words() for term in terms(word)}
    found = having(index)
    assert set().union(*found.values()) <= known


def test_bundled_words_are_clean():
    words = bundled_words()
    assert len(words) == len(set(words)) > 300
    assert all(word == word.strip() and word and terms(word) for word in words)


@pytest.mark.parametrize("k", [1, 3, 9])
def test_nearest_rows_are_those_of_a_sort(k):
    random = np.random.default_rng(0)
    queries, vectors = random.normal(size=(700, 5)), random.normal(size=(6, 5))
    expected = np.argsort(-(queries @ vectors.T), axis=1)[:, :k]
    np.testing.assert_array_equal(nearest_rows(queries, vectors, k), expected)
