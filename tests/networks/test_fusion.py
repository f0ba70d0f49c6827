"""Fusion against the published values, an obvious numpy version, and the promise of a fresh module."""

import golden
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from genius.errors import GeniusError
from genius.networks.fusion import Fusion


def _trained(dim: int = 6, hidden: int = 5, seed: int = 0) -> Fusion:
    torch.manual_seed(seed)
    fusion = Fusion(dim, hidden).eval()
    for parameter in fusion.parameters():
        torch.nn.init.normal_(parameter)
    return fusion


def _slow(fusion: Fusion, image: np.ndarray, text: np.ndarray) -> np.ndarray:
    """h(x, y) for one item, in float64."""
    w = {name: tensor.double().numpy() for name, tensor in fusion.state_dict().items()}

    def linear(name: str, x: np.ndarray) -> np.ndarray:
        return w[f"{name}.weight"] @ x + w[f"{name}.bias"]

    def relu(x: np.ndarray) -> np.ndarray:
        return np.maximum(x, 0)

    joint = np.concatenate([relu(linear("text_projection_layer", text)), relu(linear("image_projection_layer", image))])
    weight = 1 / (1 + np.exp(-linear("dynamic_scalar.3", relu(linear("dynamic_scalar.0", joint)))))
    out = linear("output_layer", relu(linear("combiner_layer", joint))) + weight * text + (1 - weight) * image
    return out / np.linalg.norm(out)


def test_published_values() -> None:
    with torch.device("meta"):
        fusion = Fusion(768, hidden=2560)
    published = {name.removeprefix("encoder."): w for name, w in golden.weights("rq", only="encoder.").items()}
    fusion.load_state_dict(published, assign=True)
    fusion.eval()
    with torch.no_grad():
        candidates = fusion(*(side[:64] for side in golden.masked("cand")))
        queries = fusion(*golden.masked("query"))
    torch.testing.assert_close(candidates, golden.tensor("cand_fused"), atol=1e-5, rtol=0)
    torch.testing.assert_close(queries, golden.tensor("query_fused"), atol=1e-5, rtol=0)


@given(seed=st.integers(0, 1000), absent=st.sampled_from(["image", "text", None]))
def test_equals_the_formula(seed: int, absent: str | None) -> None:
    fusion = _trained(seed=seed)
    image, text = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(seed))
    image, text = image * (absent != "image"), text * (absent != "text")
    with torch.no_grad():
        fused = fusion(image, text).numpy()
    for row in range(3):
        expected = _slow(fusion, image[row].double().numpy(), text[row].double().numpy())
        np.testing.assert_allclose(fused[row], expected, atol=2e-5)


def test_fresh_module_is_the_normalised_sum_exactly() -> None:
    image, text = torch.randn(2, 50, 16)
    image[:10], text[10:20], image[20], text[20] = 0, 0, 0, 0
    for training in (False, True):
        fusion = Fusion(16, 8, dropout=0.5).train(training)
        assert torch.equal(fusion(image, text), F.normalize(image + text, dim=1))


def test_fresh_module_can_learn() -> None:
    fusion = Fusion(8, 4)
    image, text, wanted = torch.randn(3, 20, 8)
    optimiser = torch.optim.Adam(fusion.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        loss = -(fusion(image, text) * F.normalize(wanted, dim=1)).sum(dim=1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in fusion.parameters())


def test_output_has_unit_length_and_order_matters() -> None:
    fusion = _trained()
    image, text = torch.randn(2, 9, 6)
    fused = fusion(image, text)
    torch.testing.assert_close(fused.norm(dim=1), torch.ones(9))
    assert not torch.allclose(fused, fusion(text, image), atol=1e-3)


def test_dropout_acts_in_training_only() -> None:
    torch.manual_seed(0)
    fusion = Fusion(6, 5, dropout=0.5)
    for parameter in fusion.parameters():
        torch.nn.init.normal_(parameter)
    image, text = torch.randn(2, 4, 6)
    assert not torch.equal(fusion(image, text), fusion(image, text))
    fusion.eval()
    assert torch.equal(fusion(image, text), fusion(image, text))


@pytest.mark.parametrize(("image", "text"), [((3, 6), (2, 6)), ((3, 5), (3, 5)), ((6,), (6,))])
def test_wrong_shapes_are_named(image: tuple[int, ...], text: tuple[int, ...]) -> None:
    with pytest.raises(GeniusError, match=r"\(n, 6\)"):
        Fusion(6, 4)(torch.zeros(image), torch.zeros(text))


def test_nothing_is_fused_to_nothing_and_zeros_to_finite_vectors() -> None:
    fusion, zeros = Fusion(12, hidden=20), torch.zeros(3, 12)
    assert fusion(zeros[:0], zeros[:0]).shape == (0, 12)
    assert fusion(zeros, zeros).isfinite().all()
