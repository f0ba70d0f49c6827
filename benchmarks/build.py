"""Builds of an index on Ray against the plain build, on the same generated images.

All builds are compared with the plain build on one core. The build by one worker runs twice: with one core for all
processes, Ray's own included, so that the difference is all that Ray costs; and with two cores, as on a machine with a
core to spare. The build by two workers has two cores. So has another plain build, with a thread for each core.

Each build runs twice, with a few images and with all of them. The rate is that of the images between the two. Starting
Ray and loading the model on every worker takes the same time for any number of images: it is part of the time of the
few, which the table shows, and not of the rate.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
from PIL import Image
from rich.console import Console
from rich.table import Table

from genius import Genius, Index
from genius.data.readers import read_items
from genius.errors import GeniusError

IMAGES = 2500
FEW = 256  # images of the smaller build: a block for each of two workers, so that both have started
SIZE = (500, 375)
FREE = 0.9  # share of its busy cores that a build should get: below it, other work disturbed the measurement


@dataclass(frozen=True)
class Variant:
    name: str
    workers: int  # of Ray; 0: the plain build
    cores: int

    @property
    def busy(self) -> int:
        """Number of cores that are busy if no other work disturbs the build."""
        return self.workers or self.cores


VARIANTS = (
    Variant("plain", 0, 1),
    Variant("Ray, 1 worker", 1, 1),
    Variant("Ray, 1 worker, 2 cores", 1, 2),
    Variant("Ray, 2 workers", 2, 2),
    Variant("plain, 2 cores", 0, 2),
)


@dataclass(frozen=True)
class Result:
    """few: seconds to index FEW images. all: seconds to index all. share: processor time per second and busy core."""

    name: str
    images: int
    few: float
    all: float
    share: float

    @property
    def rate(self) -> float:
        return (self.images - FEW) / (self.all - self.few)


def measure(out: Path, model: str, images: int, console: Console) -> list[Result]:
    """Run all variants, print a table and write OUT/build.json."""
    if (os.cpu_count() or 1) < 2:
        raise GeniusError("This section needs two cores.")
    if images < 2 * FEW:
        raise GeniusError(f"This section needs at least {2 * FEW} images.")
    with tempfile.TemporaryDirectory(dir=out, prefix="build-") as name:
        folder = Path(name)
        draw(folder / "all", images)
        (folder / "few").mkdir()
        for path in sorted((folder / "all").iterdir())[:FEW]:
            shutil.copy(path, folder / "few")
        results = [_result(variant, folder, model, images, console) for variant in VARIANTS]
    plain = results[0]
    table = Table("build", f"{FEW} images, s", f"{images} images, s", "images/s", "against plain", "share of its cores")
    for one in results:
        ratio, share = one.rate / plain.rate, f"{one.share:.2f}" + ("" if one.share >= FREE else " (disturbed)")
        table.add_row(one.name, f"{one.few:.1f}", f"{one.all:.1f}", f"{one.rate:.1f}", f"{ratio:.2f}", share)
    console.print(table)
    content = [{**asdict(one), "rate": one.rate} for one in results]
    (out / "build.json").write_text(json.dumps(content, indent=2))
    return results


def draw(folder: Path, count: int) -> None:
    """JPEG images like photos in size: smooth colours and some noise."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for number in range(count):
        small = Image.fromarray(generator.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        pixels = np.asarray(small.resize(SIZE, Image.Resampling.BICUBIC), np.int16)
        noisy = pixels + generator.integers(-12, 13, pixels.shape, dtype=np.int16)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(folder / f"{number:05}.jpg", quality=90)


def _result(variant: Variant, folder: Path, model: str, images: int, console: Console) -> Result:
    few, begun = _run(variant, folder, model, folder / "few")
    every, used = _run(variant, folder, model, folder / "all")
    result = Result(variant.name, images, few, every, (used - begun) / (every - few) / variant.busy)
    console.print(f"{variant.name}: {result.rate:.1f} images/s")
    return result


def _run(variant: Variant, folder: Path, model: str, source: Path) -> tuple[float, float]:
    """Build an index in a process of its own. Returns its seconds, and the processor seconds of all its processes."""
    target = folder / "index"
    command = [sys.executable, __file__, str(target), str(source), model, str(variant.workers), str(variant.cores)]
    threads = str(1 if variant.workers else variant.cores)
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "RAY_worker_niceness": "0"}  # Ray's default is 15
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise GeniusError(f"The build failed: {done.stderr[-2000:]}")
    shutil.rmtree(target)
    return seconds, float(json.loads(done.stdout.splitlines()[-1]))


def build_one(target: str, source: str, model: str, workers: int, cores: int) -> None:
    """One build, with some cores for this process and all that it starts. Prints the processor seconds."""
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    loaded = Genius.from_pretrained(model)
    if workers:
        from genius.scale.build import Workers, _ray, build

        with _ray(Workers(workers)):
            _restrict(chosen)  # now: Ray gives up if its processes start slowly
            build(target, loaded, [source], workers=Workers(workers))
            used = sum(_processor_seconds(one) for one in _processes())
    else:
        _restrict(chosen)
        Index.create(target, loaded).add(read_items(source))
        used = _processor_seconds(psutil.Process())
    print(json.dumps(used))


def _processes() -> list[psutil.Process]:
    return [psutil.Process(), *psutil.Process().children(recursive=True)]


def _restrict(cores: list[int]) -> None:
    """Restrict all threads of this process and of those that it started; new ones inherit it."""
    for process in _processes():
        for thread in process.threads():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread.id, cores)


def _processor_seconds(process: psutil.Process) -> float:
    """Of the process and of those children that have ended."""
    with suppress(psutil.Error):
        return float(sum(process.cpu_times()[:4]))  # user, system, and both of the ended children
    return 0.0


if __name__ == "__main__":
    path, given, name, count, cores = sys.argv[1:]
    build_one(path, given, name, int(count), int(cores))
