"""Builds of an index on Ray against the plain build, on the same generated images.

The plain build and the build by one worker have one core for all their processes, so that their difference is what Ray
costs; the build by two workers has two cores. Starting Ray, and loading the model on its workers, takes the same time
for any number of images: it is measured by a build of a few texts, and is not part of the rates.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
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

IMAGES = 1500
SIZE = (500, 375)
FREE = 0.9  # share of its cores that a build should get: below it, other work disturbed the measurement


@dataclass(frozen=True)
class Variant:
    name: str
    workers: int  # of Ray; 0: the plain build
    cores: int


VARIANTS = (
    Variant("plain", 0, 1),
    Variant("Ray, 1 worker", 1, 1),
    Variant("Ray, 2 workers", 2, 2),
    Variant("plain, 2 cores", 0, 2),
)


@dataclass(frozen=True)
class Result:
    """start: seconds of start-up. seconds: time to index all images. share: processor time per second and core."""

    name: str
    images: int
    start: float
    seconds: float
    share: float

    @property
    def rate(self) -> float:
        return self.images / self.seconds


def measure(out: Path, model: str, images: int, console: Console) -> list[Result]:
    """Run all variants, print a table and write OUT/build.json."""
    if (os.cpu_count() or 1) < 2:
        raise GeniusError("This section needs two cores.")
    with tempfile.TemporaryDirectory(dir=out, prefix="build-") as name:
        folder = Path(name)
        draw(folder / "images", images)
        (folder / "texts.csv").write_text("id,text\n" + "".join(f"t{n},text {n}\n" for n in range(4)))
        results = [_result(variant, folder, model, images, console) for variant in VARIANTS]
    plain = results[0]
    table = Table("build", "start-up, s", "build, s", "images/s", "against plain", "share of its cores")
    for one in results:
        ratio, share = one.rate / plain.rate, f"{one.share:.2f}" + ("" if one.share >= FREE else " (disturbed)")
        table.add_row(one.name, f"{one.start:.1f}", f"{one.seconds:.1f}", f"{one.rate:.1f}", f"{ratio:.2f}", share)
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
    start, _ = _run(variant, folder, model, folder / "texts.csv")
    total, share = _run(variant, folder, model, folder / "images")
    result = Result(variant.name, images, start, total - start, share)
    console.print(f"{variant.name}: {result.rate:.1f} images/s")
    return result


def _run(variant: Variant, folder: Path, model: str, source: Path) -> tuple[float, float]:
    """Build an index in a process of its own. Returns its seconds, and the share of its cores that it had."""
    target = folder / "index"
    command = [sys.executable, __file__, str(target), str(source), model, str(variant.workers), str(variant.cores)]
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise GeniusError(f"The build failed: {done.stderr[-2000:]}")
    shutil.rmtree(target)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    busy = json.loads(done.stdout.splitlines()[-1])["workers"] or used
    return seconds, busy / seconds / variant.cores


def build_one(target: str, source: str, model: str, workers: int, cores: int) -> None:
    """One build, with some cores for this process and all that it starts."""
    chosen = sorted(os.sched_getaffinity(0))[:cores]
    loaded, used = Genius.from_pretrained(model), 0.0
    if workers:
        from genius.scale.build import Workers, _ray, build

        with _ray(Workers(workers)):
            for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
                process.cpu_affinity(chosen)  # now: Ray gives up if its processes start slowly
            build(target, loaded, [source], workers=Workers(workers))
        used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    else:
        os.sched_setaffinity(0, chosen)
        Index.create(target, loaded).add(read_items(source))
    print(json.dumps({"workers": used}))


if __name__ == "__main__":
    path, given, name, count, cores = sys.argv[1:]
    build_one(path, given, name, int(count), int(cores))
