"""What `genius ablate` has to train: rows with seeds, jobs that share a training, and how long all of it takes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from genius.data.mbeir import Benchmark
from genius.evaluation.ablation_rows import AblationRow, AblationTraining, decoder_weights


@dataclass(frozen=True)
class AblationJob:
    """A row with one seed."""

    row: AblationRow
    seed: int

    @property
    def training(self) -> AblationTraining:
        """Settings of the training. Several jobs can share one training."""
        return self.row.training.seeded(self.seed)


def grouped(jobs: Sequence[AblationJob], key: Callable[[AblationJob], str]) -> list[list[AblationJob]]:
    """Jobs with equal keys together, in their order."""
    groups: dict[str, list[AblationJob]] = {}
    for job in jobs:
        groups.setdefault(key(job), []).append(job)
    return list(groups.values())


def estimated_seconds(
    quantizers: Sequence[Sequence[AblationJob]], groups: Sequence[Sequence[AblationJob]], queries: int
) -> float:
    """Seconds on one core of groups of jobs that share a quantizer, and of groups that share a decoder.

    queries: number of training queries. A step of stage 3 is taken to last in proportion to the weights of the
    decoder's layers, and twice as long if it adds both losses.
    """
    total = 0.0
    for group in quantizers:
        stage2 = group[0].training.config.quantizer
        steps = stage2.epochs * queries / stage2.batch if stage2.epochs else stage2.steps
        total += group[0].row.size.seconds["quantizer_step"] * steps
    for group in groups:
        seconds, stage3 = group[0].row.size.seconds, group[0].training.config.decoder
        times = decoder_weights(stage3) / group[0].row.size.decoder_weights * (2 if stage3.teacher == "both" else 1)
        total += seconds["decoder_step"] * times * stage3.epochs * queries / stage3.batch
        total += seconds["search"] * len({job.row.search for job in group})
    return total


def count_queries(roots: Sequence[str]) -> int:
    """Number of training queries: lines of their files."""
    files = (path for root in roots for path in Benchmark(Path(root)).query_files("train").values())
    return sum(path.read_bytes().count(b"\n") for path in files)
