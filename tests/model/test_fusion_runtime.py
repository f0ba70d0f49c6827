"""Fusion at run time: the vectors of the torch module."""

import numpy as np
import pytest
import torch
from fakes import torch_fusion

from genius.errors import GeniusError
from genius.model.fusion_runtime import FusionRuntime, weight_shapes
from genius.networks.fusion import Fusion


def random_fusion(dim: int = 16, hidden: int = 8) -> Fusion:
    """A fusion whose last layers are not zero."""
    torch.manual_seed(0)
    fusion = Fusion(dim, hidden).eval()
    for parameter in fusion.parameters():
        torch.nn.init.normal_(parameter)
    return fusion.requires_grad_(False)


@pytest.mark.parametrize("n", [0, 1, 1023, 2500])
def test_vectors_are_those_of_the_torch_module(n: int) -> None:
    fusion = random_fusion()
    image, text = np.random.default_rng(0).standard_normal((2, n, 16)).astype(np.float32)
    image[::3], text[1::3] = 0, 0
    expected = fusion(torch.from_numpy(image), torch.from_numpy(text)).numpy()
    np.testing.assert_allclose(fusion.runtime()(image, text), expected, atol=1e-5)


def test_runtime_keeps_a_copy_of_the_weights() -> None:
    fusion = random_fusion()
    image, text = np.random.default_rng(0).standard_normal((2, 5, 16)).astype(np.float32)
    runtime = fusion.runtime()
    before = runtime(image, text)
    torch.nn.init.zeros_(fusion.output_layer.weight)
    np.testing.assert_array_equal(runtime(image, text), before)
    np.testing.assert_allclose(
        torch_fusion(runtime)(torch.tensor(image), torch.tensor(text)).numpy(), before, atol=1e-5
    )


def test_weight_shapes_are_those_of_the_torch_module() -> None:
    assert weight_shapes(16, 8) == {name: value.shape for name, value in random_fusion().runtime().weights.items()}


def test_other_shapes_are_refused() -> None:
    runtime = FusionRuntime(random_fusion().runtime().weights)
    for image, text in (((3, 15), (3, 15)), ((3, 16), (2, 16)), ((16,), (16,))):
        with pytest.raises(GeniusError, match="same shape"):
            runtime(np.zeros(image, np.float32), np.zeros(text, np.float32))
