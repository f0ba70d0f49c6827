"""Weights of torch modules as arrays."""

import numpy as np
from torch import nn


def arrays(module: nn.Module) -> dict[str, np.ndarray]:
    """The state dict as float32 arrays, copied."""
    return {name: value.detach().cpu().float().numpy().copy() for name, value in module.state_dict().items()}
