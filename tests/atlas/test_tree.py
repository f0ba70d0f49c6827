from collections import Counter

import numpy as np
import pytest

from genius.atlas.collection import Collection, sampled
from genius.atlas.tree import code_tree, remaining_distances
from genius.atlas.words import words_of
from genius.data.items import Modality


@pytest.fixture(scope="module")
def collection(index):
    return Collection.read(index)


@pytest.fixture(scope="module")
def tree(collection):
    return code_tree(collection, words_of(collection))


def prefixes(collection, length):
    return Counter(tuple(row[:length]) for row in collection.codes.tolist())


def test_counts_are_those_of_the_codes(collection, tree):
    for node in tree.nodes:
        assert node.items == prefixes(collection, len(node.codes))[node.codes]
        assert sum(node.modalities) == node.items
        following = {codes[-1] for codes in prefixes(collection, len(node.codes) + 1) if codes[:-1] == node.codes}
        assert node.children in (len(following), 0)
    assert {node.codes for node in tree.nodes if len(node.codes) == 2} == set(prefixes(collection, 2))


def test_single_codes_collect_all_prefixes(collection, tree):
    for node in tree.codes:
        level = len(node.codes) - 1
        mine = collection.codes[:, level] == node.codes[-1]
        assert node.codes[:-1] == (-1,) * level
        assert node.items == mine.sum()
        assert node.parents == len({tuple(row[:level]) for row in collection.codes[mine].tolist()})
        assert node.modalities == tuple(int((collection.modality[mine] == one).sum()) for one in Modality)


def test_examples_are_the_nearest_items_under_the_prefix(collection, tree):
    quantizer = collection.model.quantizer
    for node in tree.nodes:
        under = np.flatnonzero((collection.codes[:, : len(node.codes)] == node.codes).all(axis=1))
        centre = quantizer.decode(np.array([node.codes]))
        distance = np.linalg.norm(collection.quantized[under] - centre, axis=1)
        assert set(node.examples) <= set(under.tolist())
        worst = max(distance[under.tolist().index(row)] for row in node.examples)
        assert (distance < worst - 1e-4).sum() < len(node.examples)


def test_a_small_tree_keeps_the_largest_nodes_and_their_parents(collection):
    small = code_tree(collection, words_of(collection), max_nodes=9)
    assert len(small.nodes) == 9
    known = {node.codes for node in small.nodes}
    assert all(codes[:-1] in known for codes in known if len(codes) > 1)


def test_distances_fall_to_zero(collection):
    distances = remaining_distances(collection)
    np.testing.assert_allclose(distances[:, -1], 0, atol=1e-4)


def test_a_sample_of_an_index(index):
    some = Collection.read(index, most=10)
    every = Collection.read(index)
    rows = sampled(len(every), 10)
    assert some.ids == [every.ids[row] for row in rows]
    np.testing.assert_array_equal(some.codes, every.codes[rows])


def test_vectors_are_those_of_the_items(index, collection):
    rows = np.array([0, 1, 2, 50, 100])
    items = index.get([collection.ids[row] for row in rows])
    expected = collection.model.encode_items(items)
    found = collection.vectors(index, rows)
    np.testing.assert_allclose(found.image, expected.image, atol=2e-3)
    np.testing.assert_allclose(found.text, expected.text, atol=2e-3)
