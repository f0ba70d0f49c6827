"""Stage 2: the loss of Eq. 8 put together again by hand, and codebooks that start from the training data."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from genius.data.mbeir import Task
from genius.data.splits import SplitData, TaskData
from genius.train.batches import tensor_pair
from genius.train.config import QuantizerStageConfig
from genius.train.data import FrozenVectors
from genius.train.loop import step_rng
from genius.train.losses import contrastive_loss
from genius.train.quantizer import QuantizerStage, purity

DIM, CANDIDATES = 6, 30
CONFIG = QuantizerStageConfig(
    codes_per_level=4, levels=2, fusion_hidden=5, batch=12, contrastive=0.7, beta=3.0, gamma=5.0, temperature=0.2
)


@pytest.fixture
def data() -> SimpleNamespace:
    """Candidates of all kinds in turn, and composed queries for them."""
    rng = np.random.default_rng(0)
    kind = np.arange(CANDIDATES) % 3
    text = np.where(kind == 0, -1, np.arange(CANDIDATES))
    image = np.where(kind == 1, -1, np.arange(CANDIDATES))
    right = [np.array([n, (n + 3) % CANDIDATES]) for n in range(CANDIDATES)]
    asked = rng.integers(0, CANDIDATES, (2, CANDIDATES))
    task = TaskData(Task("d", 8), [str(n) for n in range(CANDIDATES)], *asked, right, np.arange(CANDIDATES))
    split = SplitData([task], [str(n) for n in range(CANDIDATES)], text, image)
    return SimpleNamespace(train=split, val=split)


@pytest.fixture
def vectors() -> FrozenVectors:
    texts, images = np.random.default_rng(1).standard_normal((2, CANDIDATES + 1, DIM)).astype(np.float32)
    texts[-1] = images[-1] = 0
    return FrozenVectors(texts, images)


@pytest.fixture
def stage(data: SimpleNamespace, vectors: FrozenVectors) -> QuantizerStage:
    made = QuantizerStage(data, vectors, CONFIG, seed=3)  # type: ignore[arg-type]
    made.start()
    torch.nn.init.normal_(made.fusion.output_layer.weight)
    return made


def test_what_is_absent_is_a_row_of_zeros(vectors: FrozenVectors) -> None:
    image, text = tensor_pair(vectors, np.array([-1, 2]), np.array([4, -1]))
    np.testing.assert_array_equal(image, np.stack([vectors.images[4], np.zeros(DIM)]))
    np.testing.assert_array_equal(text, np.stack([np.zeros(DIM), vectors.texts[2]]))


def drawn(stage: QuantizerStage, step: int) -> tuple[np.ndarray, np.ndarray, torch.Tensor, torch.Tensor]:
    """Queries and targets of a step, by number, and their fused vectors."""
    queries, targets = stage.pairs.draw(step_rng(3, "quantizer", step), CONFIG.batch)
    train = stage.data.train
    z_q = stage.fusion(*tensor_pair(stage.vectors, stage.pairs.text[queries], stage.pairs.image[queries]))
    z_c = stage.fusion(*tensor_pair(stage.vectors, train.text[targets], train.image[targets]))
    return queries, targets, z_q, z_c


def test_the_loss_is_eq_8(stage: QuantizerStage) -> None:
    """L_cl + beta L_rq + gamma L_mse, L_rq by dimension, for queries and targets with the target's modality."""
    stage.module.eval()
    with torch.no_grad():
        loss, figures = stage.loss(5)
        queries, targets, z_q, z_c = drawn(stage, 5)
        kinds = torch.from_numpy(stage.data.train.modality[targets])
        masked = torch.from_numpy(stage.pairs.false_negatives(queries, targets))
        assert masked.any()
        q, c = (stage.quantizer(z, kinds) for z in (z_q, z_c))
        assert (c.codes[:, 0] == kinds).all()
        contrast = contrastive_loss(z_q, z_c, 0.2, masked)
        rq = (q.loss + c.loss) / 2
        mse = (q.vectors - c.vectors).square().mean()
    assert float(loss) == pytest.approx(float(0.7 * contrast + 3.0 * rq / DIM + 5.0 * mse), rel=1e-5)
    assert {name: value.item() for name, value in figures.items()} == pytest.approx(
        {"contrastive": float(contrast), "rq": float(rq), "mse": float(mse)}, rel=1e-5
    )


def test_the_loss_trains_the_fusion_and_moves_the_codebooks(stage: QuantizerStage) -> None:
    stage.module.train()
    before = [book.clone() for book in stage.quantizer.codebooks]
    loss, _ = stage.loss(0)
    loss.backward()
    for name, parameter in stage.fusion.named_parameters():
        assert parameter.grad is not None, name
    assert any(not torch.equal(a, b) for a, b in zip(before, stage.quantizer.codebooks, strict=True))
    assert {id(p) for group in stage.groups for p in group["params"]} == {id(p) for p in stage.fusion.parameters()}


def test_codebooks_start_from_the_candidates(data: SimpleNamespace, vectors: FrozenVectors) -> None:
    """The modality codes are the mean fused vectors of each kind; what is left is small beside the vectors."""
    stage = QuantizerStage(data, vectors, CONFIG, seed=3)  # type: ignore[arg-type]
    stage.start()
    fused = stage.fuse(data.train)
    kinds = torch.from_numpy(data.train.modality)
    means = torch.stack([fused[kinds == kind].mean(dim=0) for kind in range(3)])
    torch.testing.assert_close(stage.quantizer.codebooks[0], means)
    codes = stage.quantizer.encode(fused, kinds)
    assert (fused - stage.quantizer.decode(codes)).square().sum(1).mean() < 0.5
    assert len(set(codes[:, 1].tolist())) == 4


def test_two_stages_of_one_seed_start_alike_whatever_ran_before(data: SimpleNamespace, vectors: FrozenVectors) -> None:
    """A run resumed between two stages has drawn other random numbers than one that came all the way."""
    states = []
    for noise in (0, 100):
        torch.rand(noise)
        stage = QuantizerStage(data, vectors, CONFIG, seed=3)  # type: ignore[arg-type]
        stage.start()
        states.append(stage.module.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_validation_reports_what_the_codes_still_know(stage: QuantizerStage) -> None:
    stage.module.eval()
    with torch.no_grad():
        figures = stage.validate()
    assert {"score", "d_task8", "fused", "distinct", "utilisation"} == figures.keys()
    assert 0 < figures["distinct"] <= 1
    assert 0 <= figures["score"] <= 100


def test_epochs_take_the_place_of_steps(data: SimpleNamespace, vectors: FrozenVectors) -> None:
    """30 queries in batches of 12: four passes are ten steps."""
    for epochs, steps in ((0.0, CONFIG.steps), (4.0, 10), (0.001, 1)):
        stage = QuantizerStage(data, vectors, replace(CONFIG, epochs=epochs), seed=3)  # type: ignore[arg-type]
        assert stage.steps == steps


@pytest.mark.parametrize("first_code", ["modality", "nearest"])
@pytest.mark.parametrize("rq_mean", [False, True])
def test_l_rq_is_the_sum_of_eq_7_or_its_mean_over_levels(
    data: SimpleNamespace, vectors: FrozenVectors, rq_mean: bool, first_code: str
) -> None:
    """Vector by vector and level by level: the squared distance of the residual to the nearest code."""
    config = replace(CONFIG, contrastive=0.0, gamma=0.0, rq_mean=rq_mean, first_code=first_code)
    stage = QuantizerStage(data, vectors, config, seed=3)  # type: ignore[arg-type]
    stage.start()
    stage.module.eval()
    with torch.no_grad():
        loss, figures = stage.loss(5)
        _, targets, z_q, z_c = drawn(stage, 5)
    distances = []  # (vectors, levels)
    for z in (z_q, z_c):
        for vector, modality in zip(z.double().numpy(), stage.data.train.modality[targets], strict=True):
            residual, found = vector, []
            for level, book in enumerate(stage.quantizer.codebooks):
                away = np.square(residual - book.numpy()).sum(axis=1)
                code = modality if level == 0 and first_code == "modality" else int(away.argmin())
                residual = residual - book[code].numpy()
                found.append(np.square(residual).sum())
            distances.append(found)
    by_level = np.array(distances)
    assert by_level.shape[1] == 3
    expected = by_level.mean() if rq_mean else by_level.sum(axis=1).mean()
    assert figures["rq"] == pytest.approx(expected, rel=1e-5)
    assert float(loss) == pytest.approx(CONFIG.beta * expected / DIM, rel=1e-5)


def test_a_learned_first_code_does_not_look_at_the_modality(data: SimpleNamespace, vectors: FrozenVectors) -> None:
    """All candidates are two clusters and a third: the first codes find them, although the modalities say otherwise."""
    rng = np.random.default_rng(4)
    cluster = np.arange(CANDIDATES) % 5 % 3
    places = np.eye(3, DIM)[cluster]
    texts = np.append(places + 0.02 * rng.standard_normal((CANDIDATES, DIM)), np.zeros((1, DIM)), axis=0)
    made = FrozenVectors(texts.astype(np.float32), texts.astype(np.float32))
    stage = QuantizerStage(data, made, replace(CONFIG, first_code="nearest", sample=CANDIDATES), seed=3)  # type: ignore[arg-type]
    stage.start()
    fused, modality = stage.fuse(data.train), torch.from_numpy(data.train.modality)
    codes = stage.scheme.encode(fused, modality)
    assert purity(codes[:, 0].numpy(), cluster) == 1.0
    assert len(set(codes[:, 0].tolist())) == 3
    assert torch.equal(codes, stage.quantizer.encode(fused, None))
    assert not torch.equal(codes, stage.quantizer.encode(fused, modality))
    assert stage.scheme.sizes == stage.quantizer.sizes
    assert all(map(torch.equal, stage.scheme.codebooks, stage.quantizer.codebooks))
    stage.module.train()
    before = stage.quantizer.codebooks[0].clone()
    loss, _ = stage.loss(0)
    loss.backward()
    assert not torch.equal(before, stage.quantizer.codebooks[0])  # it follows the batch, as the other levels do
    stage.module.eval()
    with torch.no_grad():
        assert 0 < stage.validate()["purity"] < 1


def test_with_the_papers_decay_codebooks_recover_from_a_start_of_one_vector_a_code(
    data: SimpleNamespace, vectors: FrozenVectors
) -> None:
    """The paper's k-means sees one batch. The second semantic level then starts from zeros alone, until its codes are
    revived, and ends as one that started from all candidates does: the mean over seeds, since single runs differ."""
    ends: dict[int, list[float]] = {CONFIG.codes_per_level: [], CANDIDATES: []}
    for sample, errors in ends.items():
        for seed in range(3, 11):
            config = replace(CONFIG, first_code="nearest", sample=sample, decay=0.9)
            stage = QuantizerStage(data, vectors, config, seed)  # type: ignore[arg-type]
            stage.start()
            zeros = stage.quantizer.codebooks[2].abs().max() < 1e-6
            assert zeros == (sample == CONFIG.codes_per_level)
            stage.module.train()
            for step in range(60):
                stage.loss(step)
            stage.module.eval()
            fused = stage.fuse(data.train)
            codes = stage.quantizer.encode(fused, None)
            assert len(set(codes[:, 2].tolist())) == CONFIG.codes_per_level
            errors.append(float((fused - stage.quantizer.decode(codes)).square().sum(1).mean()))
    few, every = (np.mean(errors) for errors in ends.values())
    assert few < 1.1 * every


def test_a_given_first_code_is_the_modality(stage: QuantizerStage) -> None:
    modality = torch.from_numpy(stage.data.train.modality)
    assert torch.equal(stage.scheme.encode(stage.fuse(stage.data.train), modality)[:, 0], modality)


def test_purity_is_the_share_of_the_commonest_modality_of_each_code() -> None:
    assert purity(np.array([0, 0, 0, 1, 1, 2]), np.array([2, 2, 1, 0, 0, 1])) == pytest.approx(5 / 6)
    assert purity(np.zeros(4, int), np.array([0, 1, 2, 2])) == 0.5
