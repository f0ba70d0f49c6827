"""Distillation: the losses against loops, and what queries and items are drawn."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from genius.model.decoder_config import DecoderConfig
from genius.networks.decoder import Decoder
from genius.train.batches import Pairs
from genius.train.compute import CPU
from genius.train.config import DecoderStageConfig
from genius.train.distillation import (
    GAIN,
    MODALITY_WEIGHT,
    PATH_WEIGHT,
    REFRESH,
    Candidates,
    Distillation,
    level_errors,
    sum_of_log_probs,
    teacher_logits,
)
from genius.train.loop import step_seed

DIM, SIZES = 6, (3, 4, 5)
CONFIG = DecoderStageConfig(batch=12, items=3, sharpness=5.0)


def make_decoder(layers: int = 1, gain: float = 0.0) -> Decoder:
    torch.manual_seed(0)
    shape = DecoderConfig(
        DIM, SIZES, 8, layers, 2, 4, 8, 2, 0.0, residual_input=layers > 0, residual_gain=gain, query_scale=1.25
    )
    decoder = Decoder(shape)
    decoder.init_codebooks([torch.randn(size, DIM) / 2 for size in SIZES])
    return decoder.eval()


def make_distillation(candidates: int = 40, config: DecoderStageConfig = CONFIG) -> Distillation:
    """One task that asks for every candidate; text and image numbers are the rows of `vectors`."""
    rng = np.random.default_rng(0)
    vectors = F.normalize(torch.from_numpy(rng.standard_normal((2 * candidates, DIM)).astype(np.float32)), dim=1)
    rows = np.arange(candidates)
    modality = rows % 3
    split = SimpleNamespace(text=rows, image=rows, modality=modality)
    pairs = Pairs.__new__(Pairs)
    pairs.text = pairs.image = candidates + rows
    pairs.draw = lambda rng, n: (lambda q: (q, q))(np.sort(rng.permutation(candidates)[:n]))  # type: ignore[method-assign]
    pairs.targets = lambda: rows  # type: ignore[method-assign]
    codes = torch.from_numpy(np.stack([modality, *(rng.integers(size, size=candidates) for size in SIZES[1:])], axis=1))

    def read(text: np.ndarray, image: np.ndarray) -> list[Tensor]:
        return [vectors[text], vectors[image]]

    return Distillation(pairs, split, codes, read, lambda image, text: text, config, DIM, 0)  # type: ignore[arg-type]


def prepare(distillation: Distillation, step: int) -> list[dict[str, Any]]:
    """The batch of a step in one part."""
    rng, seed = step_seed(0, "decoder", step)
    return distillation.prepare(step, rng, torch.Generator().manual_seed(seed), lambda n: [np.arange(n)])


def draw(count: int = 7) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(1)
    codes = np.stack([rng.integers(size, size=count) for size in SIZES], axis=1)
    return F.normalize(torch.from_numpy(rng.standard_normal((count, DIM)).astype(np.float32)), dim=1), torch.from_numpy(
        codes
    )


def test_level_errors_are_weighted_squares_of_centred_differences() -> None:
    decoder, (z, codes) = make_decoder(), draw()
    logits = decoder.logits(z, codes)
    books = [book.double() for book in decoder.codebooks[3:].split(SIZES)]
    total = 0.0
    for row in range(len(z)):
        before = books[0][codes[row, 0]].clone()
        for level in (1, 2):
            scores = [GAIN * float((1.25 * z[row].double() - before) @ code - code @ code / 2) for code in books[level]]
            largest = max(scores)
            likely = [math.exp(score - largest) for score in scores]
            weight = [0.5 / len(scores) + 0.5 * one / sum(likely) for one in likely]
            errors = [float(logits[level][row, code].detach()) - scores[code] for code in range(len(scores))]
            mean = sum(w * e for w, e in zip(weight, errors, strict=True))
            total += sum(w * (e - mean) ** 2 for w, e in zip(weight, errors, strict=True)) / len(z) / 2
            before += books[level][codes[row, level]]
    assert level_errors(logits, teacher_logits(decoder, z, codes)).item() == pytest.approx(total, rel=1e-4)


def test_the_residual_score_itself_has_no_level_errors() -> None:
    decoder, (z, codes) = make_decoder(layers=0, gain=GAIN), draw()
    assert level_errors(decoder.logits(z, codes), teacher_logits(decoder, z, codes)).item() < 1e-9


def test_the_log_probability_of_an_id_leaves_out_its_first_code() -> None:
    decoder, (z, codes) = make_decoder(), draw()
    got = sum_of_log_probs(decoder.logits(z, codes), codes)
    np.testing.assert_allclose(got.detach(), decoder(z, codes)[:, 1:].sum(1).detach(), rtol=1e-5)


def test_the_loss_is_the_sum_of_its_parts() -> None:
    decoder, closed, distillation = make_decoder(), make_decoder(0, GAIN), make_distillation()
    closed.codebooks.copy_(decoder.codebooks)
    (part,) = prepare(distillation, 5)
    loss, parts = distillation.loss(decoder, part, CPU)
    candidates = distillation.candidates(0, None, CPU)
    z, modality = distillation.queries(part, candidates)
    rows = distillation.near(z, modality, candidates, part["uniform"])
    total_path, count = 0.0, 0
    for query in range(len(z)):
        codes = candidates.codes[rows[query]]
        path = decoder(z[query].expand(len(codes), -1), codes)[:, 1:].sum(1)
        teacher = closed(z[query].expand(len(codes), -1), codes)[:, 1:].sum(1)
        error = (path - path.mean()) - (teacher - teacher.mean())
        total_path, count = total_path + error.square().sum().item(), count + len(codes)
    assert parts["paths"].item() == pytest.approx(total_path / count, rel=1e-4)
    first = decoder.logits(z, candidates.codes[rows[:, 0]])[0]
    assert parts["modality"].item() == pytest.approx(F.cross_entropy(first, modality).item(), rel=1e-4)
    expected = parts["levels"] + PATH_WEIGHT * parts["paths"] + MODALITY_WEIGHT * parts["modality"]
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_items_have_the_modality_that_is_asked_for_and_are_near() -> None:
    distillation = make_distillation()
    candidates = distillation.candidates(0, None, CPU)
    z, _ = draw(7)
    modality = torch.arange(7) % 3
    torch.manual_seed(0)
    drawn = torch.stack(
        [distillation.near(z, modality, candidates, torch.rand(7, len(candidates.z))) for _ in range(300)]
    )
    assert (candidates.modality[drawn] == modality[:, None]).all()
    assert all(len(set(row.tolist())) == CONFIG.items for row in drawn.flatten(0, 1))
    similar = (z @ candidates.z.T).masked_fill(candidates.modality != modality[:, None], -math.inf)
    nearest = similar.argmax(1)
    often = (drawn == nearest[:, None]).any(2).float().mean(0)
    assert (often > 0.5).all()  # of 13 or 14 candidates, 3 at random would be 0.22


def test_queries_are_normalised_and_most_of_them_are_no_training_query() -> None:
    distillation = make_distillation(config=replace(CONFIG, batch=90))
    candidates = distillation.candidates(0, None, CPU)
    made = [distillation.queries(prepare(distillation, step)[0], candidates) for step in range(20)]
    z, modality = torch.cat([one[0] for one in made]), torch.cat([one[1] for one in made])
    np.testing.assert_allclose(z.norm(dim=1), 1, rtol=1e-5)
    known = distillation.read(distillation.pairs.text, distillation.pairs.image)[0]
    as_they_are = ((z @ known.T).max(1).values > 1 - 1e-5).float().mean()
    assert 0.3 < as_they_are < 0.5  # QUERY_KINDS: 0.4
    assert set(modality.tolist()) == {0, 1, 2}


def test_candidates_change_every_few_steps_and_are_the_same_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genius.train.distillation.CANDIDATES", 20)
    first, again = make_distillation(), make_distillation()

    def used(distillation: Distillation, step: int) -> Candidates:
        """Those of a step, as `loss` gets them."""
        (part,) = prepare(distillation, step)
        return distillation.candidates(part["block"], part["candidates"], CPU)

    one = used(first, 0)
    assert used(first, REFRESH - 1) is one
    other = used(first, REFRESH)
    assert not torch.equal(one.z, other.z)
    assert torch.equal(other.z, used(again, REFRESH + 1).z)
    torch.testing.assert_close(used(first, 3).z, one.z)  # not the one that was read last
