"""Low-rank adapters (LoRA) of attention layers, and checkpoints of trainable weights only."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")
"""The linear maps of an attention layer, as CLIP and SigLIP name them."""


class LoraLinear(nn.Module):
    """W x + U D x: a frozen linear map W and a trainable low-rank pair U, D. U starts at zero."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        outputs, inputs = linear.weight.shape
        self.down = nn.Parameter(torch.randn(rank, inputs, device=linear.weight.device) / inputs**0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank, device=linear.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        out: Tensor = self.linear(x) + F.linear(F.linear(x, self.down), self.up)
        return out

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Add U D to W and return the linear map."""
        self.linear.weight += self.up @ self.down
        return self.linear


def add_adapters(network: nn.Module, rank: int) -> None:
    """Freeze the network and add an adapter to every linear map of its attention layers."""
    network.requires_grad_(False)
    for module in list(network.modules()):
        for name in ATTENTION:
            linear = getattr(module, name, None)
            if type(linear) is nn.Linear:  # torch's own attention reads the weights of its subclass directly
                setattr(module, name, LoraLinear(linear, rank))


def merge_adapters(network: nn.Module) -> None:
    """Merge all adapters into their linear maps."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, LoraLinear):
                setattr(module, name, child.merged())


class TrainableWeights(nn.Module):
    """A network whose state dict holds the trainable weights only."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def _trainable(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.named_parameters() if value.requires_grad}

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Trainable weights by name."""
        return {name: value.detach() for name, value in self._trainable().items()}

    @torch.no_grad()
    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:
        """Load what `state_dict` returned."""
        trainable = self._trainable()
        if trainable.keys() != state.keys():
            raise RuntimeError(f"{len(trainable.keys() ^ state.keys())} weights are missing or not known")
        for name, value in state.items():
            trainable[name].copy_(value)
