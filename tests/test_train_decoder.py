"""Query augmentation, Eq. 11, and its published variant."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from genius.train.decoder import augment


@pytest.fixture
def pairs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(F.normalize(torch.randn(200, 6, generator=generator), dim=1) for _ in range(2))  # type: ignore[return-value]


def test_no_augmentation_leaves_the_query_alone(pairs: tuple[Tensor, Tensor]) -> None:
    assert augment(*pairs, "none", 2.0, np.random.default_rng(0)) is pairs[0]


def test_interpolation_has_one_mu_for_each_pair(pairs: tuple[Tensor, Tensor]) -> None:
    z_q, z_c = pairs
    made = augment(z_q, z_c, "interpolate", 2.0, np.random.default_rng(7))
    np.testing.assert_allclose(made.norm(dim=1), torch.ones(200), rtol=1e-5)
    mu = torch.from_numpy(np.random.default_rng(7).beta(2.0, 2.0, (200, 1))).float()
    np.testing.assert_allclose(made, F.normalize(mu * z_q + (1 - mu) * z_c, dim=1), atol=1e-6)
    for row in range(20):  # on the way from one to the other: a sum of the two with positive weights
        weights = torch.linalg.lstsq(torch.stack([z_q[row], z_c[row]], dim=1), made[row][:, None]).solution
        assert (weights > 0).all()
        assert torch.allclose(weights[0] * z_q[row] + weights[1] * z_c[row], made[row], atol=1e-5)


def test_the_published_variant_has_one_mu_for_each_dimension_and_square_roots(pairs: tuple[Tensor, Tensor]) -> None:
    z_q, z_c = pairs
    made = augment(z_q, z_c, "published", 2.0, np.random.default_rng(7))
    np.testing.assert_allclose(made.norm(dim=1), torch.ones(200), rtol=1e-5)
    mu = torch.from_numpy(np.random.default_rng(7).beta(2.0, 2.0, (200, 6))).float()
    np.testing.assert_allclose(made, F.normalize(mu**0.5 * z_q + (1 - mu) ** 0.5 * z_c, dim=1), atol=1e-6)


@pytest.mark.parametrize("variant", ["interpolate", "published"])
def test_alpha_says_how_far_apart_the_draws_are(pairs: tuple[Tensor, Tensor], variant: str) -> None:
    z_q, z_c = pairs
    middle = F.normalize(z_q + z_c, dim=1)
    near = augment(z_q, z_c, variant, 1e6, np.random.default_rng(0))
    np.testing.assert_allclose(near, middle, atol=5e-3)
    ends = augment(z_q, z_c, variant, 1e-3, np.random.default_rng(0))
    assert float((ends - middle).norm(dim=1).mean()) > 0.3
