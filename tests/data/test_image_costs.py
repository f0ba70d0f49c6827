"""No accepted file costs more memory than an ordinary image of the pixel limit, and what would take long is refused."""

import json
import subprocess
import sys
from pathlib import Path

import costly_images
import pytest

from genius.data.image_headers import FORMATS

ANYWAY = 16_000_000  # bytes that parsers, and conversions of parts, may take for any image


def allowed(name: str) -> int:
    """Bytes for an image of the pixel limit. The decoder of WebP holds three copies of an image."""
    return ANYWAY + costly_images.PIXELS * (16 if name.startswith("webp") else 12)


@pytest.fixture(scope="module")
def costs() -> dict[str, tuple[int, int, str]]:
    """Peak bytes, bytes of the file and outcome of every file, measured in a process of its own."""
    if sys.platform != "linux":
        pytest.skip("only Linux tells the peak memory of a process since a given moment")
    command = [sys.executable, "-W", "ignore", costly_images.__file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", costly_images.corpus())
def test_decoding_is_bounded(costs, name):
    peak, size, shown = costs[name]
    if name.startswith("refused"):
        assert shown.startswith("it: "), f"{size:,} bytes were read: {shown}"
        assert peak < ANYWAY + 64_000_000 * ("texts" in name), shown
    else:
        assert peak < allowed(name) + 2 * size, shown


def test_the_corpus_has_every_format(costs):
    read = {name.split()[0] for name, (_, _, shown) in costs.items() if shown.startswith("read")}
    assert read == {name.lower() for name in FORMATS}
