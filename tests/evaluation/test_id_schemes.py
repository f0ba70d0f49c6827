"""The ID schemes of earlier work: what is in an ID, and what is not."""

import pytest
import torch
from torch import Tensor

from genius.errors import GeniusError
from genius.evaluation.id_schemes import SCHEMES, ClassifiedCodes, ClusterPaths, PlainCodes, RandomCodes, make_scheme
from genius.model.decoder_config import DecoderConfig
from genius.networks.decoder import Decoder
from genius.networks.quantizer import Quantizer
from genius.search.trie import Trie

DIM, CODES, LEVELS = 16, 8, 3


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    """Normalised vectors of three kinds, each kind around a place of its own."""
    generator = torch.Generator().manual_seed(0)
    modality = torch.arange(300) % 3
    places = torch.randn(3, DIM, generator=generator)
    z = places[modality] + 0.4 * torch.randn(300, DIM, generator=generator)
    return torch.nn.functional.normalize(z, dim=1), modality


def quantizer(z: Tensor, modality: Tensor) -> Quantizer:
    made = Quantizer(DIM, CODES, LEVELS)
    made.initialise(z, modality)
    return made


@pytest.mark.parametrize("name", SCHEMES)
def test_ids_fit_their_sizes_and_do_not_depend_on_the_batch(name: str, data: tuple[Tensor, Tensor]) -> None:
    z, modality = data
    scheme = make_scheme(name, quantizer(z, modality), z, modality, seed=0)
    codes = scheme.encode(z, modality)
    assert codes.shape == (len(z), len(scheme.sizes))
    assert (codes >= 0).all()
    assert (codes < torch.tensor(scheme.sizes)).all()
    assert torch.equal(scheme.encode(z[40:43], modality[40:43]), codes[40:43])
    assert [tuple(book.shape) for book in scheme.codebooks] == [(size, DIM) for size in scheme.sizes]
    assert all(book.isfinite().all() for book in scheme.codebooks)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_decoder_and_a_trie_take_every_scheme(name: str, data: tuple[Tensor, Tensor]) -> None:
    z, modality = data
    scheme = make_scheme(name, quantizer(z, modality), z, modality, seed=0)
    codes = scheme.encode(z, modality)
    config = DecoderConfig(
        DIM, scheme.sizes, d_model=8, layers=1, heads=2, d_kv=4, d_ff=8, prefix=2, residual_gain=10.0
    )
    decoder = Decoder(config).eval()
    decoder.init_codebooks(scheme.codebooks)
    assert decoder(z[:5], codes[:5]).isfinite().all()
    assert Trie(codes.numpy()).levels == len(scheme.sizes)


def test_ours_is_the_quantizer_told_the_modality(data: tuple[Tensor, Tensor]) -> None:
    z, modality = data
    made = quantizer(z, modality)
    codes = make_scheme("modality", made, z, modality, seed=0).encode(z, modality)
    assert torch.equal(codes, made.encode(z, modality))
    assert torch.equal(codes[:, 0], modality)


def test_plain_codes_are_blind_to_what_the_item_has(data: tuple[Tensor, Tensor]) -> None:
    z, modality = data
    one_kind = torch.zeros_like(modality)
    made = quantizer(z, one_kind)
    plain = PlainCodes(made)
    assert plain.sizes == (CODES,) * LEVELS
    assert torch.equal(plain.encode(z, modality), plain.encode(z, one_kind))
    assert torch.equal(plain.encode(z, modality), made.encode(z, one_kind)[:, 1:])


def test_the_classifier_sees_the_vector_not_the_item(data: tuple[Tensor, Tensor]) -> None:
    z, modality = data
    scheme = ClassifiedCodes(quantizer(z, torch.zeros_like(modality)), z, modality)
    assert scheme.sizes == (3, *(CODES,) * LEVELS)
    told_wrong = (modality + 1) % 3
    predicted = scheme.encode(z, told_wrong)[:, 0]
    assert (predicted == modality).float().mean() > 0.95
    torch.testing.assert_close(scheme.codebooks[0][1], z[modality == 1].mean(0))


def test_each_cluster_code_is_the_nearest_child_of_the_one_before(data: tuple[Tensor, Tensor]) -> None:
    z, modality = data
    tree = ClusterPaths(z, seed=0, branches=4, depth=3)
    codes = tree.encode(z, modality)
    for vector, (a, b, c) in zip(z[:50], codes.tolist(), strict=False):
        node = 0
        for level, code in enumerate((a, b, c)):
            distance = ((tree.centres[level][node] - vector) ** 2).sum(1)
            assert distance[code] == distance.min()
            node = node * 4 + code
    near = torch.nn.functional.normalize(z + 1e-4, dim=1)
    assert (tree.encode(near, modality) == codes).all(1).float().mean() > 0.9


def test_clusters_smaller_than_their_branches_are_not_divided_further(data: tuple[Tensor, Tensor]) -> None:
    z, modality = data
    few = ClusterPaths(z[:5], seed=0, branches=4, depth=3)
    codes = few.encode(z, modality)  # also vectors that the tree was not made from
    assert (codes[:5].unique(dim=0).shape[0]) == 5
    assert (codes >= 0).all()
    assert all(book.isfinite().all() for book in few.codebooks)


def test_numbers_are_an_items_own_and_mean_nothing(data: tuple[Tensor, Tensor]) -> None:
    z, modality = data
    numbers = RandomCodes(DIM, seed=0)
    codes = numbers.encode(z, modality)
    assert torch.equal(codes, RandomCodes(DIM, seed=0).encode(z, modality))
    assert codes.unique(dim=0).shape[0] == len(z)
    assert (RandomCodes(DIM, seed=1).encode(z, modality) == codes).all(1).sum() == 0
    near = numbers.encode(torch.nn.functional.normalize(z + 1e-4, dim=1), modality)
    assert (near == codes).float().mean() < 0.05


def test_an_unknown_scheme_is_refused_by_name(data: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(GeniusError, match=r"no ID scheme 'string'.*semantic"):
        make_scheme("string", Quantizer(DIM, CODES, LEVELS), *data, seed=0)
