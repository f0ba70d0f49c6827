"""Devices and the precision of matrix products."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[object]:
    """Compute matrix products in `dtype`. Weights, and sums that need it, stay float32."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Compute in float32 inside `autocast`."""
    available = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if available else nullcontext()


def on_device(value: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device. A copy to a GPU goes through pinned memory, so that the CPU does not wait for the GPU."""
    if device.type == "cuda" and value.is_cpu:
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)
