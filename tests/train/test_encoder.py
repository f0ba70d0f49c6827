"""Stage 1: the contrastive loss against a loop, and the vectors of a split against the encoder's own."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.data.mbeir import Task
from genius.data.splits import SplitData, TaskData
from genius.encoders.mini_heads import HeadsConfig
from genius.encoders.minilm import TokenStates
from genius.networks.heads import Heads, encode_states
from genius.train import encoder
from genius.train.config import EncoderStageConfig
from genius.train.encoder import FEATURES, EncoderStage, image_vectors, split_vectors, text_vectors
from genius.train.losses import contrastive_loss


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.floats(0.02, 2), st.floats(0, 1))
def test_contrastive_loss_against_a_loop(seed: int, n: int, temperature: float, density: float) -> None:
    rng = np.random.default_rng(seed)
    q, c = F.normalize(torch.from_numpy(rng.standard_normal((2, n, 5))), dim=2)
    masked = rng.random((n, n)) < density
    np.fill_diagonal(masked, False)
    losses = []
    for i in range(n):
        scores = [float(q[i] @ c[j]) / temperature for j in range(n)]
        rivals = sum(np.exp(score) for j, score in enumerate(scores) if not masked[i, j])
        losses.append(-np.log(np.exp(scores[i]) / rivals))
    loss = contrastive_loss(q, c, temperature, torch.from_numpy(masked))
    assert float(loss) == pytest.approx(np.mean(losses), abs=1e-6)


def test_a_masked_target_is_not_pushed_away() -> None:
    q = F.normalize(torch.randn(2, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    c = q.clone().requires_grad_()
    contrastive_loss(q, c, 0.1, torch.tensor([[False, True], [True, False]])).backward()
    assert c.grad is not None
    assert not c.grad.any()


@pytest.fixture
def stage() -> EncoderStage:
    """Six texts of different lengths and five images in two views, of random features."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 7, 6)
    states = rng.standard_normal((lengths.sum(), 384)).astype(np.float16)
    texts = TokenStates(states, np.concatenate([[0], np.cumsum(lengths)]))
    views = [
        SimpleNamespace(
            map=rng.standard_normal((5, 352, 49)).astype(np.float16),
            pooled=rng.standard_normal((5, 1280)).astype(np.float16),
            logits=rng.standard_normal((5, 1000)).astype(np.float16),
        )
        for _ in range(2)
    ]
    split = SplitData(
        [
            TaskData(
                Task("d", 7),
                ["a", "b", "c"],
                np.array([3, 4, 3]),
                np.array([0, 1, -1]),
                [np.array([0]), np.array([1]), np.array([2])],
                np.arange(4),
            )
        ],
        ["x", "y", "z", "w"],
        np.array([-1, 5, 2, 0]),
        np.array([4, -1, 1, -1]),
    )
    torch.manual_seed(0)
    heads = Heads(HeadsConfig(dim=8, hidden=8)).eval()
    data = SimpleNamespace(train=split, val=split)
    return EncoderStage(heads, data, texts, views, EncoderStageConfig(batch=4), 0)  # type: ignore[arg-type]


@torch.no_grad()
def test_a_training_vector_is_the_normalised_sum_of_what_there_is(stage: EncoderStage) -> None:
    """Texts are padded and encoded once each, images come in one of their views; the sum is phi of Eq. 2."""
    stage.views = stage.views[:1]
    text, image = np.array([3, -1, 3, 0]), np.array([-1, 2, 4, 2])
    made = stage._phi(stage._read(text, image, np.zeros(4, np.int64)))
    words = torch.from_numpy(encode_states(stage.heads, stage.texts))
    one = stage.views[0]
    looks = stage.heads.encode_image(*(torch.from_numpy(f).float() for f in (one.map, one.pooled, one.logits)))
    expected = F.normalize(torch.stack([words[3], looks[2], words[3] + looks[4], words[0] + looks[2]]), dim=1)
    np.testing.assert_allclose(made, expected, atol=1e-5)


@torch.no_grad()
def test_images_come_in_all_of_their_views(stage: EncoderStage) -> None:
    image = np.array([0, 1, 2, 3, 4] * 8)
    views = stage._choose_views(image, np.random.default_rng(0))
    read = stage._read(np.full(40, -1), image, views)
    grid, pooled, logits = (read[name] for name in FEATURES)
    sources = set()
    for row, number in enumerate(image):
        view = [n for n, v in enumerate(stage.views) if np.array_equal(v.pooled[number], pooled[row].half().numpy())]
        np.testing.assert_array_equal(stage.views[view[0]].map[number], grid[row].half())
        np.testing.assert_array_equal(stage.views[view[0]].logits[number], logits[row].half())
        sources.add((int(number), view[0]))
    assert len(sources) == 10


def test_a_step_depends_on_its_number_and_the_seed_alone(stage: EncoderStage) -> None:
    stage.module.train()  # with dropout
    first, other = stage.loss(3)[0].item(), stage.loss(4)[0].item()
    torch.manual_seed(99)
    assert stage.loss(3)[0].item() == first != other


def test_validation_vectors_are_those_of_the_first_view_and_zero_for_none(stage: EncoderStage) -> None:
    vectors = split_vectors(stage.heads, stage.data.val, stage.texts, stage.views[0])
    texts, images = vectors.texts, vectors.images
    assert (texts.shape, images.shape) == ((7, 8), (6, 8))
    assert not texts[-1].any()
    assert not images[-1].any()
    used = encode_states(stage.heads, stage.texts)
    for number in (0, 2, 3, 4, 5):
        np.testing.assert_allclose(texts[number], used[number], atol=1e-5)
    assert not texts[1].any()  # nobody in this split uses it
    assert not images[[2, 3]].any()
    assert images[[0, 1, 4]].any(axis=1).all()


def test_no_images_at_all_have_no_vectors(stage: EncoderStage) -> None:
    none = SimpleNamespace(**{name: getattr(stage.views[0], name)[:0] for name in ("map", "pooled", "logits")})
    made = image_vectors(stage.heads, none, np.arange(0))  # type: ignore[arg-type]
    np.testing.assert_array_equal(made, np.zeros((1, 8)))


def test_every_weight_is_trained(stage: EncoderStage) -> None:
    trained = {id(p) for group in stage.groups for p in group["params"]}
    assert trained == {id(p) for p in stage.heads.parameters()}
    stage.loss(0)[0].backward()
    for name, parameter in stage.heads.named_parameters():
        if parameter.numel():
            assert parameter.grad is not None, name


def test_text_vectors_read_token_states_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    states = TokenStates(rng.standard_normal((60, 384)).astype(np.float16), np.arange(0, 61, 3))
    heads, taken, take = Heads(HeadsConfig(dim=8)).eval(), [], TokenStates.take
    whole = encode_states(heads, states)
    monkeypatch.setattr(encoder, "TEXT_BLOCK", 4)
    monkeypatch.setattr(TokenStates, "take", lambda self, rows: taken.append(len(rows)) or take(self, rows))
    vectors = text_vectors(heads, states, np.arange(20))
    np.testing.assert_allclose(vectors[:-1], whole, atol=1e-6)
    assert not vectors[-1].any()
    assert sum(taken) == 20
    assert max(taken) <= 4
