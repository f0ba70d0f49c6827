"""The quantizer against the published codes, slow obvious versions of Eqs. 5-7 and of the EMA, and its invariants."""

import copy
import itertools
from typing import cast

import golden
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from genius.errors import GeniusError
from genius.model.quantizer_runtime import code_report
from genius.networks.fusion import Fusion
from genius.networks.kmeans import kmeans
from genius.networks.quantizer import Codebook, Quantizer

seeds = st.integers(0, 10_000)


def _data(n: int, dim: int, seed: int) -> tuple[Tensor, Tensor]:
    """Clustered unit vectors that depend on their modality, as real ones do."""
    generator = torch.Generator().manual_seed(seed)
    modality = torch.randint(0, 3, (n,), generator=generator)
    kinds, topics = torch.randn(3, dim, generator=generator), torch.randn(12, dim, generator=generator)
    topic = torch.randint(0, 12, (n,), generator=generator)
    z = kinds[modality] + topics[topic] + 0.7 * torch.randn(n, dim, generator=generator)
    return torch.nn.functional.normalize(z, dim=1), modality


def _started(seed: int = 0, n: int = 200, shared: bool = False) -> tuple[Quantizer, Tensor, Tensor]:
    z, modality = _data(n, 8, seed)
    quantizer = Quantizer(8, codes_per_level=10, levels=3, shared=shared)
    quantizer.initialise(z, modality, seed=seed, iterations=5)
    return quantizer, z, modality


def _error(quantizer: Quantizer, z: Tensor, codes: Tensor) -> Tensor:
    return (z.double() - quantizer.decode(codes).double()).square().sum(dim=1)


def _slow_encode(codebooks: list[Tensor], vector: Tensor, modality: int | None) -> list[int]:
    """Eqs. 5 and 6, one vector, one code at a time."""
    residual, codes = vector.clone(), []
    for level, codebook in enumerate(codebooks):
        if level == 0 and modality is not None:
            code = modality
        else:
            distances = [sum((float(a) - float(b)) ** 2 for a, b in zip(residual, e, strict=True)) for e in codebook]
            code = min(range(len(distances)), key=lambda k: (distances[k], k))
        codes.append(code)
        residual = residual - codebook[code]
    return codes


# --- codes -----------------------------------------------------------------------------------------------------------


def test_published_codes() -> None:
    with torch.device("meta"):
        fusion = Fusion(768, hidden=2560)
    published = {name.removeprefix("encoder."): w for name, w in golden.weights("rq", only="encoder.").items()}
    fusion.load_state_dict(published, assign=True)
    quantizer = Quantizer(768, codes_per_level=256, levels=4)
    quantizer.set_codebooks([w[0] for w in golden.weights("rq", only="residual_rq.").values()])
    for side in ("query", "cand"):
        with torch.no_grad():
            fused = fusion.eval()(*golden.masked(side))
        assert torch.equal(quantizer.encode(fused), golden.tensor(f"{side}_codes"))


@settings(deadline=None, max_examples=25)
@given(seed=seeds, shared=st.booleans(), known=st.booleans())
def test_encode_and_decode_equal_the_slow_version(seed: int, shared: bool, known: bool) -> None:
    z, modality = _data(6, 5, seed)
    quantizer = Quantizer(5, codes_per_level=7, levels=3, shared=shared, seed=seed)
    codes = quantizer.encode(z, modality if known else None)
    for row in range(len(z)):
        expected = _slow_encode(quantizer.codebooks, z[row], int(modality[row]) if known else None)
        assert codes[row].tolist() == expected
        vector = sum(quantizer.codebooks[level][code] for level, code in enumerate(expected))
        torch.testing.assert_close(quantizer.decode(codes)[row], vector)


def test_sizes_and_codebooks() -> None:
    own, shared = Quantizer(8, 10, 3), Quantizer(8, 10, 3, shared=True)
    assert own.sizes == shared.sizes == (3, 10, 10, 10)
    assert [tuple(book.shape) for book in own.codebooks] == [(3, 8), (10, 8), (10, 8), (10, 8)]
    assert shared.codebooks[1] is shared.codebooks[3]
    assert own.codebooks[1] is not own.codebooks[3]


@settings(deadline=None, max_examples=20)
@given(seed=seeds, cuts=st.lists(st.integers(0, 3000), max_size=4), length=st.sampled_from([1, 1000]))
def test_codes_do_not_depend_on_the_batch(seed: int, cuts: list[int], length: float) -> None:
    z = _data(3000, 33, seed)[0] * length
    quantizer = Quantizer(33, codes_per_level=300, levels=2, seed=seed)
    quantizer.book(1).codes[50:100] = quantizer.book(1).codes[:50] * (1 + 1e-7)  # differences lost in rounding
    whole = quantizer.encode(z)
    bounds = [0, *sorted(cuts), len(z)]
    parts = [quantizer.encode(z[a:b]) for a, b in itertools.pairwise(bounds)]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(quantizer.encode(z[:1]), whole[:1])


@pytest.mark.parametrize("beams", [1, 3])
def test_codes_do_not_depend_on_the_threads(beams: int) -> None:
    quantizer, _, _ = _started()
    z, modality = _data(5000, 8, 1)
    before, codes = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        codes.append(quantizer.encode(z.clone().requires_grad_(), modality, beams=beams))
    torch.set_num_threads(before)
    assert torch.equal(codes[0], codes[1])
    rows = [0, 1023, 1024, 4999]
    for row in rows if beams == 1 else []:
        assert codes[0][row].tolist() == _slow_encode(quantizer.codebooks, z[row], int(modality[row]))


def test_equally_near_codes_give_the_lowest_index() -> None:
    quantizer = Quantizer(4, codes_per_level=6, levels=1)
    codes = torch.randn(6, 4)
    codes[4] = codes[1]
    codes[5] = codes[1]
    quantizer.set_codebooks([torch.zeros(3, 4), codes])
    found = quantizer.encode(codes[[5, 4, 1, 2]] + 0.001)
    assert found.tolist() == [[0, 1], [0, 1], [0, 1], [0, 2]]


def test_nearest_is_exact_far_from_the_origin() -> None:
    """|e|^2 - 2 r.e loses all digits here; the distances themselves do not."""
    codes = 1000 + torch.arange(8.0)[:, None].expand(8, 64) * 1e-2
    quantizer = Quantizer(64, codes_per_level=8, levels=1)
    quantizer.set_codebooks([torch.zeros(3, 64), codes])
    order = torch.tensor([3, 0, 7, 5, 5, 1])
    assert quantizer.encode(codes[order])[:, 1].tolist() == order.tolist()


def test_modality_is_set_not_guessed() -> None:
    quantizer, z, modality = _started()
    other = (modality + 1) % 3
    assert torch.equal(quantizer.encode(z, other)[:, 0], other)
    assert torch.equal(quantizer.encode(z, other.to(torch.uint8))[:, 0], other)


def test_no_vectors_give_no_codes() -> None:
    quantizer = Quantizer(8, 10, 3)
    codes = quantizer.encode(torch.zeros(0, 8), torch.zeros(0, dtype=torch.int64))
    assert codes.shape == (0, 4)
    assert quantizer.decode(codes).shape == (0, 8)


# --- beams -----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=20)
@given(seed=seeds, beams=st.integers(2, 6), shared=st.booleans())
def test_beams_are_never_worse_than_greedy(seed: int, beams: int, shared: bool) -> None:
    quantizer, z, modality = _started(seed, shared=shared)
    greedy, found = quantizer.encode(z, modality), quantizer.encode(z, modality, beams=beams)
    assert (_error(quantizer, z, found) <= _error(quantizer, z, greedy)).all()
    assert torch.equal(found[:, 0], modality)


def test_beams_lower_the_error() -> None:
    quantizer, z, modality = _started(n=1000)
    errors = [_error(quantizer, z, quantizer.encode(z, modality, beams=b)).mean() for b in (1, 2, 10)]
    assert errors[2] < errors[1] < errors[0]


def test_enough_beams_find_the_best_codes() -> None:
    quantizer = Quantizer(4, codes_per_level=4, levels=3)
    z, modality = _data(20, 4, 1)
    every = torch.tensor(list(itertools.product(range(4), repeat=3)))
    found = quantizer.encode(z, modality, beams=64)
    for row in range(len(z)):
        ids = torch.cat([modality[row].expand(64, 1), every], dim=1)
        errors = _error(quantizer, z[row].expand(64, -1), ids)
        torch.testing.assert_close(_error(quantizer, z[row : row + 1], found[row : row + 1])[0], errors.min())


def test_one_beam_is_greedy() -> None:
    """The search itself, not only the shortcut: a beam of one keeps the nearest code at every level."""
    quantizer, z, modality = _started(n=500)
    lengths = [book.square().sum(dim=1) for book in quantizer.codebooks]
    greedy = quantizer.encode(z, modality, beams=1)
    start = torch.cat([greedy[:, :1], torch.zeros_like(greedy[:, 1:])], dim=1)  # a start that is easy to beat
    found = quantizer._encode_beams(z, start, 1, lengths)
    improved = _error(quantizer, z, greedy) < _error(quantizer, z, start)
    assert improved.float().mean() > 0.9
    assert torch.equal(found[improved], greedy[improved])


# --- start -----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=15)
@given(seed=seeds)
def test_every_level_lowers_the_error_of_the_sample(seed: int) -> None:
    quantizer, z, modality = _started(seed)
    codes = quantizer.encode(z, modality)
    errors = [z.double().square().sum(dim=1).mean()]
    errors += [_error(quantizer, z, codes[:, :levels]).mean() for levels in range(1, 5)]
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(errors))
    assert errors[-1] < 0.5 * errors[1]


def test_shared_codebook_lowers_the_error() -> None:
    quantizer, z, modality = _started(n=1000, shared=True)
    codes = quantizer.encode(z, modality)
    errors = [float(_error(quantizer, z, codes[:, :levels]).mean()) for levels in range(1, 5)]
    assert errors[3] < errors[2] < errors[1] < 0.7 * errors[0]


def test_modality_codes_start_as_means() -> None:
    quantizer, z, modality = _started()
    for kind in range(3):
        torch.testing.assert_close(quantizer.codebooks[0][kind], z[modality == kind].mean(dim=0))
        assert quantizer.book(0).ema_count[kind] == (modality == kind).sum()


def test_absent_modality_gets_the_overall_mean_and_keeps_it() -> None:
    z, modality = _data(100, 8, 0)
    modality = modality.clamp_max(1)
    quantizer = Quantizer(8, codes_per_level=10, levels=2).train()
    quantizer.initialise(z, modality)
    torch.testing.assert_close(quantizer.codebooks[0][2], z.mean(dim=0))
    for _ in range(50):
        quantizer(z, modality)
    torch.testing.assert_close(quantizer.codebooks[0][2], z.mean(dim=0))


def test_start_is_deterministic_under_a_seed() -> None:
    z, modality = _data(300, 8, 0)
    starts = []
    for seed in (1, 1, 2):
        torch.rand(3)  # the global generator plays no part
        quantizer = Quantizer(8, codes_per_level=10, levels=3)
        quantizer.initialise(z, modality, seed=seed)
        starts.append(quantizer.state_dict())
    assert all(torch.equal(starts[0][name], starts[1][name]) for name in starts[0])
    assert not torch.equal(starts[0]["books.1.codes"], starts[2]["books.1.codes"])


def test_start_uses_a_sample_of_limited_size() -> None:
    z, modality = _data(2000, 8, 0)
    quantizer = Quantizer(8, codes_per_level=10, levels=2)
    quantizer.initialise(z, modality, points_per_code=30)
    assert quantizer.book(1).ema_count.sum() == 300


def test_kmeans_finds_separate_clusters() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.eye(6) * 10
    points = truth.repeat(50, 1) + 0.1 * torch.randn(300, 6, generator=generator)
    for seed in range(5):  # random starting points often share a cluster; lost centres must find the others
        centres = kmeans(points, 12, torch.Generator().manual_seed(seed), 20)
        assert torch.cdist(truth, centres).min(dim=1).values.max() < 0.2


def test_kmeans_moves_empty_centres() -> None:
    points = torch.cat([torch.zeros(50, 2), torch.tensor([[5.0, 0.0], [0.0, 5.0]])])
    centres = kmeans(points, 3, torch.Generator().manual_seed(0), 10)
    assert torch.cdist(points, centres).min(dim=1).values.max() < 1e-6


def test_start_survives_fewer_different_vectors_than_codes() -> None:
    z, modality = _data(4, 8, 0)
    quantizer = Quantizer(8, codes_per_level=10, levels=2)
    quantizer.initialise(z.repeat(10, 1), modality.repeat(10))
    assert (_error(quantizer, z, quantizer.encode(z, modality)) < 1e-9).all()


def test_start_needs_as_many_vectors_as_codes() -> None:
    z, modality = _data(9, 8, 0)
    with pytest.raises(GeniusError, match="9 vectors cannot start codebooks of 10 codes"):
        Quantizer(8, 10, 2).initialise(z, modality)


# --- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
def test_loss_is_equation_7(shared: bool) -> None:
    quantizer, z, modality = _started(shared=shared)
    codes, total = quantizer.encode(z, modality), 0.0
    for row in range(len(z)):
        residual = z[row].double().numpy()
        for level, code in enumerate(codes[row]):
            residual = residual - quantizer.codebooks[level][code].double().numpy()
            total += float(residual @ residual)
    assert quantizer.eval()(z, modality).loss.item() == pytest.approx(total / len(z), rel=1e-5)


def test_gradients() -> None:
    quantizer, z, modality = _started()
    z.requires_grad_()
    vectors, codes, loss = quantizer(z, modality)
    weights = torch.randn_like(z)
    (straight,) = torch.autograd.grad((vectors * weights).sum(), z)
    assert torch.equal(straight, weights)  # straight through
    (pull,) = torch.autograd.grad(loss, z)
    before = _started()[0]  # the codebooks have moved on since
    with torch.no_grad():
        expected = torch.stack([2 * (z - before.decode(codes[:, :levels])) for levels in range(1, 5)]).sum(dim=0) / len(
            z
        )
    torch.testing.assert_close(pull, expected, atol=1e-6, rtol=1e-4)


def test_forward_gives_the_sum_of_codes() -> None:
    quantizer, z, modality = _started()
    vectors, codes, _ = quantizer.eval()(z, modality)
    assert torch.equal(codes, quantizer.encode(z, modality))
    torch.testing.assert_close(vectors, quantizer.decode(codes))


@pytest.mark.parametrize("shared", [False, True])
def test_ema_equals_the_slow_version(shared: bool) -> None:
    z, modality = _data(120, 8, 3)
    quantizer = Quantizer(8, codes_per_level=10, levels=3, shared=shared, decay=0.9, revive_below=0)
    quantizer.initialise(z, modality, iterations=3)
    books = [0, 1, 1, 1] if shared else [0, 1, 2, 3]
    code, count, total = (
        [getattr(b, name).double().numpy() for b in quantizer.books] for name in Codebook.__annotations__
    )
    for step in range(3):
        batch, kinds = _data(40 + 30 * step, 8, 100 + step)
        codes = quantizer.train()(batch, kinds).codes
        seen = [np.zeros_like(c) for c in count]
        seen_total = [np.zeros_like(t) for t in total]
        for row in range(len(batch)):
            residual = batch[row].double().numpy()
            for level, book in enumerate(books):
                seen[book][codes[row, level]] += 1
                seen_total[book][codes[row, level]] += residual
                residual = residual - code[book][codes[row, level]]
        for b in range(len(code)):
            scale = seen[b].sum() / count[b].sum() if step == 0 else 1.0
            count[b] = 0.9 * scale * count[b] + 0.1 * seen[b]
            total[b] = 0.9 * scale * total[b] + 0.1 * seen_total[b]
            mass = count[b].sum()
            for k in range(len(code[b])):
                if seen[b][k] > 0:
                    code[b][k] = total[b][k] / ((count[b][k] + 1e-5) / (mass + len(code[b]) * 1e-5) * mass)
            np.testing.assert_allclose(quantizer.book(b).codes.numpy(), code[b], atol=1e-5)


def test_codes_follow_the_data() -> None:
    quantizer, z, modality = _started(n=400)
    moved = z @ torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(5))).Q
    quantizer.train()
    before = float(quantizer(moved, modality).loss)
    for _ in range(300):
        quantizer(moved, modality)
    assert float(quantizer(moved, modality).loss) < 0.8 * before


def test_evaluation_changes_nothing() -> None:
    quantizer, z, modality = _started()
    before = copy.deepcopy(quantizer.state_dict())
    quantizer.eval()(z, modality)
    quantizer.train()(z, modality, update=False)
    assert all(torch.equal(before[name], after) for name, after in quantizer.state_dict().items())
    quantizer(z, modality)
    assert not torch.equal(before["books.1.codes"], quantizer.book(1).codes)


@pytest.mark.parametrize("shared", [False, True])
def test_dead_codes_are_revived(shared: bool) -> None:
    z, modality = _data(400, 8, 0)

    def used_after_training(revive_below: float) -> float:
        quantizer = Quantizer(8, codes_per_level=30, levels=2, shared=shared, decay=0.9, revive_below=revive_below)
        far = [torch.zeros(3, 8), *[100 + torch.randn(30, 8) for _ in range(1 if shared else 2)]]
        far[1][0] = 0
        quantizer.set_codebooks(far)
        quantizer.train()
        for _ in range(100):
            quantizer(z, modality)
        return code_report(quantizer.encode(z, modality).numpy(), quantizer.sizes).utilisation[1]

    assert used_after_training(0) < 0.2
    assert used_after_training(0.05) > 0.9


def test_modality_codes_are_never_revived() -> None:
    quantizer, z, modality = _started()
    quantizer.revive_below = 0.5
    before = quantizer.codebooks[0][2].clone()
    only_images = z[modality == 0]
    quantizer.train()
    for _ in range(200):
        quantizer(only_images, torch.zeros(len(only_images), dtype=torch.int64))
    assert torch.equal(quantizer.codebooks[0][2], before)


@pytest.mark.parametrize("shared", [False, True])
def test_training_resumes_exactly(shared: bool) -> None:
    quantizer, _, _ = _started(shared=shared)
    quantizer.revive_below = 0.6  # revival at every step, so that its random choices matter
    quantizer.train()

    def run(model: Quantizer, steps: range) -> None:
        for step in steps:
            model(*_data(50, 8, step))

    run(quantizer, range(5))
    saved = copy.deepcopy(quantizer.state_dict())
    run(quantizer, range(5, 10))
    resumed = Quantizer(8, codes_per_level=10, levels=3, shared=shared, revive_below=0.6, seed=77).train()
    resumed.load_state_dict(saved)
    torch.rand(5)
    run(resumed, range(5, 10))
    assert all(torch.equal(value, quantizer.state_dict()[name]) for name, value in resumed.state_dict().items())


def test_revival_depends_on_seed_and_step_alone() -> None:
    z, modality = _data(100, 8, 0)
    after = []
    for seed, step in ((1, 1), (1, 1), (2, 1), (1, 2)):
        quantizer = Quantizer(8, codes_per_level=10, levels=1, decay=0.5, revive_below=0.9, seed=seed).train()
        quantizer.set_codebooks([torch.zeros(3, 8), torch.arange(10.0)[:, None].expand(10, 8)])
        quantizer.updates.fill_(step)
        quantizer(z, modality)
        after.append(quantizer.codebooks[1].clone())
    assert torch.equal(after[0], after[1])
    assert not torch.equal(after[0], after[2])
    assert not torch.equal(after[0], after[3])


# --- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_bad_numbers_are_named(value: float) -> None:
    quantizer, z, modality = _started()
    z[7, 3] = value
    for call in (quantizer.encode, quantizer, quantizer.initialise):
        with pytest.raises(GeniusError, match=r"1 of 200 vectors .*row 7"):
            call(z, modality)


def test_wrong_shapes_and_codes_are_named() -> None:
    quantizer, z, modality = _started()
    with pytest.raises(GeniusError, match=r"\(n, 8\).*\(200, 7\)"):
        quantizer.encode(z[:, :7])
    with pytest.raises(GeniusError, match="200 integers"):
        quantizer.encode(z, modality[:5])
    with pytest.raises(GeniusError, match="200 integers"):
        quantizer.encode(z, modality.float())
    with pytest.raises(GeniusError, match="Row 0 has modality code 3, but only 0 to 2"):
        quantizer.encode(z, torch.full((200,), 3))
    with pytest.raises(GeniusError, match="Row 1 has level 2 code 10, but only 0 to 9"):
        quantizer.decode(torch.tensor([[0, 0, 0, 0], [2, 9, 10, 0]]))
    with pytest.raises(GeniusError, match="Row 0 has level 1 code -1"):
        quantizer.decode(torch.tensor([[0, -1, 0, 0]]))
    with pytest.raises(GeniusError, match=r"shape \(1, 5\)"):
        quantizer.decode(torch.zeros(1, 5, dtype=torch.int64))
    with pytest.raises(GeniusError, match="codebooks of shapes"):
        quantizer.set_codebooks(cast(list[Tensor], [torch.zeros(3, 8)]))
