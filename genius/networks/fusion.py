"""Fusion h(x, y) of an image vector and a text vector into one vector (Sec. 4.2.1).

Submodule names and layer order are those of the published checkpoints, which load as they are
(`Fusion(768, hidden=2560)`).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from genius.model.fusion_runtime import FusionRuntime, check_shapes
from genius.networks.arrays import arrays


class Fusion(nn.Module):
    """h(x, y) = lambda y + (1 - lambda) x + MLP([y; x]), L2-normalised, for an image vector x and a text vector y.

    A new module returns exactly `normalize(image + text)`, the vector of stage 1, so that training starts there.

    Args:
        dim: Dimensions of the vectors.
        hidden: Width each modality is projected to; the joint layers are twice as wide.
        dropout: Dropout probability of the hidden layers in training.
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
        """Fuse vectors.

        Args:
            image: (n, dim), a row of zeros where there is no image.
            text: (n, dim), a row of zeros where there is no text.

        Returns:
            (n, dim), L2-normalised.

        Raises:
            GeniusError: The shapes differ, or are not (n, dim).
        """
        check_shapes(image.shape, text.shape, self.dim)
        hidden_text = self.dropout(F.relu(self.text_projection_layer(text)))
        hidden_image = self.dropout(F.relu(self.image_projection_layer(image)))
        joint = torch.cat([hidden_text, hidden_image], dim=1)
        weight = torch.sigmoid(self.dynamic_scalar(joint))  # lambda, (n, 1)
        mixed = self.output_layer(self.dropout(F.relu(self.combiner_layer(joint))))  # MLP([y; x])
        return F.normalize(mixed + weight * text + (1 - weight) * image, dim=1)

    def runtime(self) -> FusionRuntime:
        """The fusion for indexing and search, with a copy of the weights."""
        return FusionRuntime(arrays(self))
