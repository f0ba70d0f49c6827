"""Fusion h(x, y) of an image vector and a text vector into one (Sec. 4.2.1).

Knows vectors only: nothing of images, tokens, codes or training. A missing image or text is a row of zeros, put
there by the encoder. Submodule names and layer order are those of the published checkpoints, which therefore load as
they stand (`Fusion(768, hidden=2560)`).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from genius.errors import GeniusError


class Fusion(nn.Module):
    """h(x, y) = lambda x + (1 - lambda) y + MLP([x; y]), L2-normalised.

    `hidden` is the width each modality is projected to; the joint layers are twice as wide. `dropout` acts on the
    hidden layers, in training mode only. A fresh module returns exactly `normalize(image + text)`, the vector of
    stage 1, so that training starts from that space and not from noise.
    """

    def __init__(self, dim: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dim = dim
        self.hidden = hidden
        joint = 2 * hidden
        self.text_projection_layer = nn.Linear(dim, hidden)
        self.image_projection_layer = nn.Linear(dim, hidden)
        self.combiner_layer = nn.Linear(joint, joint)
        self.output_layer = nn.Linear(joint, dim)
        scalar = nn.Linear(joint, 1)
        self.dynamic_scalar = nn.Sequential(nn.Linear(joint, joint), nn.ReLU(), nn.Dropout(dropout), scalar)
        self.dropout = nn.Dropout(dropout)
        for last in (self.output_layer, scalar):  # MLP = 0 and lambda = sigmoid(0) = 1/2
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        """image, text: (n, dim), zeros where a modality is absent -> (n, dim), L2-normalised."""
        self.check(image.shape, text.shape)
        hidden_text = self._project(self.text_projection_layer, text)
        hidden_image = self._project(self.image_projection_layer, image)
        joint = torch.cat([hidden_text, hidden_image], dim=1)
        weight = torch.sigmoid(self.dynamic_scalar(joint))  # lambda, (n, 1)
        mixed = self.output_layer(self.dropout(F.relu(self.combiner_layer(joint))))
        return F.normalize(mixed + weight * text + (1 - weight) * image, dim=1)

    def _project(self, layer: nn.Linear, vectors: Tensor) -> Tensor:
        hidden: Tensor = self.dropout(F.relu(layer(vectors)))
        return hidden

    def check(self, image: tuple[int, ...], text: tuple[int, ...]) -> None:
        """Raises unless image and text vectors of these shapes can be fused."""
        if len(image) != 2 or image != text or image[1] != self.dim:
            raise GeniusError(
                f"Fusion needs image and text vectors of the same shape (n, {self.dim}), but got {tuple(image)} "
                f"and {tuple(text)}. Use vectors of the encoder this model was trained with; "
                f"a missing modality is a row of zeros."
            )


class FusionRuntime:
    """The same for weights that no longer change, from arrays to arrays; many threads may call it at once.

    Where one modality is absent, what it would add is the same for every row, and is computed once: little more than
    half the work.
    """

    @torch.inference_mode()
    def __init__(self, fusion: Fusion) -> None:
        self._fusion, gate = fusion, fusion.dynamic_scalar[0]
        assert isinstance(gate, nn.Linear)
        joint = (fusion.combiner_layer, gate)
        self._text = _Side(fusion.text_projection_layer, [layer.weight[:, : fusion.hidden] for layer in joint])
        self._image = _Side(fusion.image_projection_layer, [layer.weight[:, fusion.hidden :] for layer in joint])
        self._bias = [layer.bias for layer in joint]
        self._no_text = [bias + constant for bias, constant in zip(self._bias, self._text.absent, strict=True)]
        self._no_image = [bias + constant for bias, constant in zip(self._bias, self._image.absent, strict=True)]

    @torch.inference_mode()
    def __call__(self, image: np.ndarray, text: np.ndarray) -> np.ndarray:
        """image, text: (n, dim) float32, zeros where a modality is absent -> (n, dim), L2-normalised."""
        self._fusion.check(image.shape, text.shape)
        has_image, has_text = (image != 0).any(axis=1), (text != 0).any(axis=1)
        fused = np.empty(image.shape, np.float32)
        for rows, fuse in (
            (~has_image, self._fuse_text),
            (has_image & ~has_text, self._fuse_image),
            (has_image & has_text, self._fuse_both),
        ):
            if rows.all():
                return fuse(torch.from_numpy(image), torch.from_numpy(text)).numpy()
            if rows.any():
                fused[rows] = fuse(torch.from_numpy(image[rows]), torch.from_numpy(text[rows])).numpy()
        return fused

    def _fuse_text(self, image: Tensor, text: Tensor) -> Tensor:
        mixed, weight = self._mix(self._text(text, self._no_image))
        return F.normalize(mixed.addcmul_(weight, text), dim=1)

    def _fuse_image(self, image: Tensor, text: Tensor) -> Tensor:
        mixed, weight = self._mix(self._image(image, self._no_text))
        return F.normalize(mixed.addcmul_(1 - weight, image), dim=1)

    def _fuse_both(self, image: Tensor, text: Tensor) -> Tensor:
        mixed, weight = self._mix(self._image(image, self._text(text, self._bias)))
        return F.normalize(mixed.addcmul_(weight, text).addcmul_(1 - weight, image), dim=1)

    def _mix(self, joint: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """What goes into the two joint layers' ReLU, (n, 2 hidden) each -> MLP([x; y]) (n, dim) and lambda (n, 1)."""
        combined, gate = joint
        weight: Tensor = self._fusion.dynamic_scalar[-1](gate.relu_()).sigmoid_()
        return self._fusion.output_layer(combined.relu_()), weight


class _Side:
    """What one modality adds to the two joint layers, whose weights for it are given, (2 hidden, hidden) each."""

    def __init__(self, project: nn.Linear, weights: Sequence[Tensor]) -> None:
        self._project, self._weights = project, [weight.T for weight in weights]
        self.absent = [F.relu(project.bias) @ weight for weight in self._weights]

    def __call__(self, vectors: Tensor, starts: Sequence[Tensor]) -> list[Tensor]:
        """vectors: (n, dim); starts: (n, 2 hidden) or (2 hidden,) each, that it is added to -> (n, 2 hidden) each."""
        hidden = self._project(vectors).relu_()
        return [torch.addmm(start, hidden, weight) for start, weight in zip(starts, self._weights, strict=True)]
