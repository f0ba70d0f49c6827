"""Query augmentation, Eq. 11, and its published variant; IDs and vectors of the pairs that are trained on."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from genius.data.mbeir import Task
from genius.data.splits import SplitData, TaskData
from genius.train import decoder, quantizer
from genius.train.batches import tensor_pair
from genius.train.config import DecoderStageConfig, QuantizerStageConfig
from genius.train.data import FrozenVectors
from genius.train.decoder import DecoderStage
from genius.train.distillation import MODALITY_WEIGHT, PATH_WEIGHT
from genius.train.loop import run_stage, step_rng
from genius.train.losses import augment, draw_weights
from genius.train.quantizer import QuantizerStage


@pytest.fixture
def pairs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(F.normalize(torch.randn(200, 6, generator=generator), dim=1) for _ in range(2))  # type: ignore[return-value]


def augmented(z_q: Tensor, z_c: Tensor, variant: str, alpha: float, rng: np.random.Generator) -> Tensor:
    return augment(z_q, z_c, variant, draw_weights((len(z_q), z_q.shape[1]), variant, alpha, rng))


def test_no_augmentation_leaves_the_query_alone(pairs: tuple[Tensor, Tensor]) -> None:
    assert augment(*pairs, "none", torch.ones(200, 1)) is pairs[0]


def test_interpolation_has_one_mu_for_each_pair(pairs: tuple[Tensor, Tensor]) -> None:
    z_q, z_c = pairs
    made = augment(
        z_q, z_c, "interpolate", draw_weights((len(z_q), z_q.shape[1]), "interpolate", 2.0, np.random.default_rng(7))
    )
    np.testing.assert_allclose(made.norm(dim=1), torch.ones(200), rtol=1e-5)
    mu = torch.from_numpy(np.random.default_rng(7).beta(2.0, 2.0, (200, 1))).float()
    np.testing.assert_allclose(made, F.normalize(mu * z_q + (1 - mu) * z_c, dim=1), atol=1e-6)
    for row in range(20):  # on the way from one to the other: a sum of the two with positive weights
        weights = torch.linalg.lstsq(torch.stack([z_q[row], z_c[row]], dim=1), made[row][:, None]).solution
        assert (weights > 0).all()
        assert torch.allclose(weights[0] * z_q[row] + weights[1] * z_c[row], made[row], atol=1e-5)


def test_the_published_variant_has_one_mu_for_each_dimension_and_square_roots(pairs: tuple[Tensor, Tensor]) -> None:
    z_q, z_c = pairs
    made = augment(
        z_q, z_c, "published", draw_weights((len(z_q), z_q.shape[1]), "published", 2.0, np.random.default_rng(7))
    )
    np.testing.assert_allclose(made.norm(dim=1), torch.ones(200), rtol=1e-5)
    mu = torch.from_numpy(np.random.default_rng(7).beta(2.0, 2.0, (200, 6))).float()
    np.testing.assert_allclose(made, F.normalize(mu**0.5 * z_q + (1 - mu) ** 0.5 * z_c, dim=1), atol=1e-6)


@pytest.mark.parametrize("variant", ["interpolate", "published"])
def test_alpha_says_how_far_apart_the_draws_are(pairs: tuple[Tensor, Tensor], variant: str) -> None:
    z_q, z_c = pairs
    middle = F.normalize(z_q + z_c, dim=1)
    near = augmented(z_q, z_c, variant, 1e6, np.random.default_rng(0))
    np.testing.assert_allclose(near, middle, atol=5e-3)
    ends = augmented(z_q, z_c, variant, 1e-3, np.random.default_rng(0))
    assert float((ends - middle).norm(dim=1).mean()) > 0.3


# The stage

SMALL = DecoderStageConfig(d_model=16, layers=1, heads=2, d_kv=8, d_ff=32, prefix=4, batch=16, dropout=0.0)


def make_data(candidates: int) -> SimpleNamespace:
    """Images, texts and pairs in turn; most of them have a query."""
    kind, rows = np.arange(candidates) % 3, np.arange(candidates)
    text, image = np.where(kind == 0, -1, rows), np.where(kind == 1, -1, rows)
    asked = rows[rows % 5 > 0]
    right = np.split(asked, len(asked))
    task = TaskData(Task("d", 8), [str(n) for n in asked], asked, asked, right, rows)
    train = SplitData([task], [str(n) for n in rows], text, image)
    few = TaskData(Task("d", 8), ["a"], asked[:1], asked[:1], right[:1], np.arange(9))
    return SimpleNamespace(train=train, val=SplitData([few], list("abcdefghi"), text[:9], image[:9]))


def make_stages(
    data: SimpleNamespace, vectors: FrozenVectors, settings: DecoderStageConfig = SMALL
) -> tuple[QuantizerStage, DecoderStage]:
    config = QuantizerStageConfig(codes_per_level=4, levels=2, fusion_hidden=8, batch=16, sample=2048)
    coded = QuantizerStage(data, vectors, config, 0)  # type: ignore[arg-type]
    coded.start()
    coded.module.eval()
    return coded, DecoderStage(data, vectors, coded.fusion, coded.quantizer, settings, 0)  # type: ignore[arg-type]


def random_rows(rows: int, dim: int) -> np.ndarray:
    values = np.random.default_rng(rows).standard_normal((rows, dim)).astype(np.float16)
    values[-1] = 0
    return values


def test_targets_have_the_ids_that_the_quantizer_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made in blocks, and for the candidates that are somebody's target only."""
    monkeypatch.setattr(decoder, "CODE_BLOCK", 7)
    coded, stage = make_stages(make_data(60), FrozenVectors(random_rows(61, 8), random_rows(61, 8)))
    train = stage.data.train
    codes = coded.quantizer.encode(coded.fuse(train), torch.from_numpy(train.modality))
    targets = np.arange(60)[np.arange(60) % 5 > 0]
    np.testing.assert_array_equal(stage.codes[targets], codes[targets])
    assert not stage.codes[::5].any()
    np.testing.assert_array_equal(stage.val_codes, codes[:9])


def test_the_loss_is_eq_10_on_fused_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantizer, "FUSE_BLOCK", 5)
    vectors = FrozenVectors(random_rows(61, 8), random_rows(61, 8))
    coded, stage = make_stages(make_data(60), vectors, replace(SMALL, teacher="none"))
    stage.module.eval()
    loss, _ = stage.loss(3)
    rng = step_rng(0, "decoder", 3)
    queries, targets = stage.pairs.draw(rng, SMALL.batch)
    z_q = coded.fusion(*tensor_pair(coded.vectors, stage.pairs.text[queries], stage.pairs.image[queries]))
    z_c = coded.fuse(stage.data.train)[targets]
    unaugmented = torch.from_numpy(rng.random((len(queries), 1)) < SMALL.unaugmented)
    z = torch.where(
        unaugmented,
        z_q,
        augmented(z_q, z_c, "interpolate", 2.0, rng),
    )
    expected = -stage.decoder(z, stage.codes[targets]).sum(dim=1).mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_both_losses_are_added() -> None:
    vectors = FrozenVectors(random_rows(61, 8), random_rows(61, 8))
    losses = {}
    for teacher in ("none", "distil", "both"):
        _, stage = make_stages(make_data(60), vectors, replace(SMALL, teacher=teacher))
        stage.module.eval()
        losses[teacher] = stage.loss(3)
    labels, distilled = losses["none"][1], losses["distil"][1]
    assert labels["labels"].item() == pytest.approx(losses["none"][0].item())
    parts = losses["both"][1]
    assert parts.keys() == labels.keys() | distilled.keys()
    distillation = parts["levels"] + PATH_WEIGHT * parts["paths"] + MODALITY_WEIGHT * parts["modality"]
    assert losses["both"][0].item() == pytest.approx((parts["labels"] + distillation).item(), rel=1e-5)


def test_the_residual_score_alone_has_nothing_to_learn(tmp_path: Path) -> None:
    """It is ready as it is: no step can be taken, and none is tried."""
    alone = replace(SMALL, layers=0, residual_input=False, residual_gain=10.0)
    _, stage = make_stages(make_data(60), FrozenVectors(random_rows(61, 8), random_rows(61, 8)), alone)
    assert run_stage(stage, tmp_path, Console(quiet=True)) == {}
    assert not list(tmp_path.iterdir())
    assert not stage.module.training


STATUS = Path("/proc/self/status")


def held() -> int:
    """Bytes of this process's own memory; files that are mapped into it do not count."""
    found = re.search(r"RssAnon:\s+(\d+) kB", STATUS.read_text())
    return int(found[1]) * 1024 if found else 0


def mapped(path: Path, rows: int, dim: int) -> np.ndarray:
    """A file of vectors as the cache writes it."""
    made, block = np.lib.format.open_memmap(path, "w+", np.float16, (rows, dim)), random_rows(1000, dim)
    for start in range(0, rows, 1000):
        made[start : start + 1000] = block[: rows - start]
    return made


@pytest.mark.skipif(not STATUS.exists(), reason="memory is measured as Linux tells it")
def test_memory_of_stages_2_and_3_does_not_grow_with_the_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Candidates of 512 dimensions: 2 KiB each if their vectors were held, but only numbers and codes are."""
    monkeypatch.setattr(decoder, "CODE_BLOCK", 256)
    forward, most = quantizer.Fusion.forward, 0

    def watched(self: quantizer.Fusion, image: Tensor, text: Tensor) -> Tensor:
        nonlocal most
        most = max(most, held())
        return forward(self, image, text)

    monkeypatch.setattr(quantizer.Fusion, "forward", watched)
    peaks = {}
    for count in (4_000, 5_000, 35_000):  # the first takes what libraries keep for themselves
        data = make_data(count)
        vectors = FrozenVectors(*(mapped(tmp_path / f"{count}{kind}.npy", count + 1, 512) for kind in "ti"))
        before = most = held()
        coded, stage = make_stages(data, vectors)
        for step in range(2):
            coded.loss(step)[0].backward()
            stage.loss(step)[0].backward()
        peaks[count] = most - before
        del coded, stage
    assert (peaks[35_000] - peaks[5_000]) / 30_000 < 512, peaks  # bytes a candidate
