"""Where and how precisely a training computes."""

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from genius.errors import BadData
from genius.networks.precision import autocast, on_device

DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Compute:
    """A device, and the type of the matrix products on it. Weights, sums and losses are always float32."""

    device: torch.device
    dtype: torch.dtype = torch.float32

    def autocast(self) -> AbstractContextManager[object]:
        """Compute the forward pass of a network in this precision."""
        return autocast(self.device, self.dtype)

    def scaler(self) -> torch.amp.GradScaler | None:
        """A scaler for float16, where small gradients vanish."""
        return torch.amp.GradScaler(self.device.type) if self.dtype == torch.float16 else None

    def put(self, value: Any) -> Any:
        """Move all tensors in lists and dicts to the device. A GPU copies while the CPU goes on."""
        if isinstance(value, Tensor):
            return on_device(value, self.device)
        if isinstance(value, dict):
            return {name: self.put(one) for name, one in value.items()}
        return [self.put(one) for one in value] if isinstance(value, list) else value


CPU = Compute(torch.device("cpu"))


def choose_device(name: str) -> torch.device:
    """A torch device by name. "auto" is a CUDA device if there is one, else the CPU.

    Raises:
        BadData: There is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BadData(f'The setting device is {name!r}; give "auto", "cpu", "cuda" or "mps".') from error
    missing = {"cuda": not torch.cuda.is_available(), "mps": not torch.backends.mps.is_available()}
    if missing.get(device.type, False):
        raise BadData(f"torch finds no device {name!r} here. Give --device cpu, or install torch for that device.")
    return device


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """The type of matrix products by name. "auto" is the best half precision of a CUDA device, else float32."""
    if name != "auto":
        return DTYPES[name]
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def reading_threads(device: torch.device) -> int:
    """Threads that read images beside the network.

    On the CPU they share its cores. Beside a GPU, each of the processes on this machine takes its part of the cores.
    """
    if device.type == "cpu":
        return torch.get_num_threads()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
