"""Fusion h(x, y) of an image vector and a text vector into one (Sec. 4.2.1).

Knows vectors only: nothing of pictures, tokens, codes or training. A missing picture or text is a row of zeros, put
there by the encoder. Submodule names and layer order are those of the published checkpoints, which therefore load as
they stand (`Fusion(768, hidden=2560)`).
"""

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
        self._check(image, text)
        hidden_text = self._project(self.text_projection_layer, text)
        hidden_image = self._project(self.image_projection_layer, image)
        joint = torch.cat([hidden_text, hidden_image], dim=1)
        weight = torch.sigmoid(self.dynamic_scalar(joint))  # lambda, (n, 1)
        mixed = self.output_layer(self.dropout(F.relu(self.combiner_layer(joint))))
        return F.normalize(mixed + weight * text + (1 - weight) * image, dim=1)

    def _project(self, layer: nn.Linear, vectors: Tensor) -> Tensor:
        hidden: Tensor = self.dropout(F.relu(layer(vectors)))
        return hidden

    def _check(self, image: Tensor, text: Tensor) -> None:
        if image.ndim != 2 or image.shape != text.shape or image.shape[1] != self.dim:
            raise GeniusError(
                f"Fusion needs image and text vectors of the same shape (n, {self.dim}), but got {tuple(image.shape)} "
                f"and {tuple(text.shape)}. Use vectors of the encoder this model was trained with; "
                f"a missing modality is a row of zeros."
            )


class FrozenFusion:
    """The same for weights that no longer change, with little more than half the work where one modality is absent.

    There, what the absent one contributes is the same for every row, and is computed once.
    """

    def __init__(self, fusion: Fusion) -> None:
        self._fusion = fusion
        self._text_only, self._image_only = _OneSided(fusion, text=True), _OneSided(fusion, text=False)

    @torch.inference_mode()
    def __call__(self, image: Tensor, text: Tensor) -> Tensor:
        self._fusion._check(image, text)
        has_image, has_text = image.any(dim=1), text.any(dim=1)
        fused = torch.empty_like(image)
        for rows, fuse in (
            (~has_image, lambda rows: self._text_only(text[rows])),
            (has_image & ~has_text, lambda rows: self._image_only(image[rows])),
            (has_image & has_text, lambda rows: self._fusion(image[rows], text[rows])),
        ):
            if rows.all():
                return fuse(slice(None))
            if rows.any():
                fused[rows] = fuse(rows)
        return fused


class _OneSided:
    """Fusion where only text is there, or only a picture."""

    @torch.inference_mode()
    def __init__(self, fusion: Fusion, text: bool) -> None:
        layers = [fusion.text_projection_layer, fusion.image_projection_layer]  # in the order of the joint layers
        columns = [slice(0, fusion.hidden), slice(fusion.hidden, None)]
        (self._project, absent), (own, other) = (layers, columns) if text else (layers[::-1], columns[::-1])
        gate = fusion.dynamic_scalar[0]
        assert isinstance(gate, nn.Linear)
        constant = F.relu(absent.bias)
        self._joint = [
            (layer.weight[:, own], F.linear(constant, layer.weight[:, other], layer.bias))
            for layer in (fusion.combiner_layer, gate)
        ]
        self._output, self._scalar, self._text = fusion.output_layer, fusion.dynamic_scalar[-1], text

    def __call__(self, vectors: Tensor) -> Tensor:
        hidden = F.relu(self._project(vectors))
        combined, gate = (F.relu(F.linear(hidden, weight, bias)) for weight, bias in self._joint)
        weight = torch.sigmoid(self._scalar(gate))
        return F.normalize(self._output(combined) + (weight if self._text else 1 - weight) * vectors, dim=1)
