"""What several test modules share: the frozen backbones, loaded once. And which modules go first."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from genius.runtime.threads import set_thread_count

if TYPE_CHECKING:
    from genius.encoders.efficientnet import EfficientNetLite2
    from genius.encoders.mini import MiniEncoder
    from genius.encoders.minilm import MiniLM

LONGEST = (
    "serve/test_page.py",
    "index/test_crash.py",
    "train/test_run.py",
    "serve/test_corpus.py",
    "serve/test_fuzz.py",
)
"""These begin first: files run side by side, and one that takes a minute at the end would run alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        name = f"{item.path.parent.name}/{item.path.name}"
        return LONGEST.index(name) if name in LONGEST else len(LONGEST)

    items.sort(key=rank)


@pytest.fixture(autouse=True, scope="session")
def no_worker_makes_way() -> Iterator[None]:
    """Commands that lower their process's priority run within the tests' own, which would be slow from then on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.setpriority", lambda which, who, priority: None, raising=False)
        yield


@pytest.fixture(autouse=True)
def every_test_chooses_its_threads() -> Iterator[None]:
    """`genius serve` chooses a number of threads for its process, which is the tests' own."""
    yield
    set_thread_count(None)


@pytest.fixture(scope="session")
def minilm() -> "MiniLM":
    from genius.encoders.minilm import MiniLM

    return MiniLM()


@pytest.fixture(scope="session")
def efficientnet() -> "EfficientNetLite2":
    from genius.encoders.efficientnet import EfficientNetLite2

    return EfficientNetLite2(threads=1)


@pytest.fixture(scope="session")
def mini() -> "MiniEncoder":
    """The `mini` encoder, its heads small and random: no part of them is zero, as it is before training."""
    import torch

    from genius.encoders.mini_heads import HeadsConfig
    from genius.networks.heads import Heads

    torch.manual_seed(0)
    heads = Heads(HeadsConfig(dim=32, hidden=16))
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02)
    return heads.encoder()
