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
