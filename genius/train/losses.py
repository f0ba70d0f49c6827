"""The training losses, with the paper's equation numbers."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def contrastive_loss(queries: Tensor, targets: Tensor, temperature: float, masked: Tensor) -> Tensor:
    """InfoNCE between normalised queries and their targets (n, d), Eqs. 2 and 3.

    masked: (n, n) bool, targets that are not negatives of a query.
    """
    scores = (queries @ targets.T / temperature).masked_fill(masked, -torch.inf)
    return F.cross_entropy(scores, torch.arange(len(queries), device=queries.device))


def id_loss(log_probs: Tensor) -> Tensor:
    """Negative log-likelihood of the targets' IDs, Eq. 10. log_probs: (n, levels)."""
    return -log_probs.sum(dim=1).mean()


def draw_weights(shape: tuple[int, int], variant: str, alpha: float, rng: np.random.Generator) -> Tensor:
    """Draw mu ~ Beta(alpha, alpha) of `augment` for queries of this shape: (n, 1), or (n, d) for "published"."""
    if variant == "none":
        return torch.ones(shape[0], 1)
    drawn = rng.beta(alpha, alpha, shape if variant == "published" else (shape[0], 1))
    return torch.from_numpy(drawn.astype(np.float32))


def augment(z_q: Tensor, z_c: Tensor, variant: str, mu: Tensor) -> Tensor:
    """Move normalised queries z_q (n, d) towards their targets z_c (n, d) by mu, see `draw_weights`; Eq. 11.

    variant: "interpolate" (Eq. 11, one mu per pair), "published" (one mu per dimension, square roots) or "none".
    """
    if variant == "none":
        return z_q
    if variant == "interpolate":
        return F.normalize(mu * z_q + (1 - mu) * z_c, dim=1)
    return F.normalize(mu.sqrt() * z_q + (1 - mu).sqrt() * z_c, dim=1)
