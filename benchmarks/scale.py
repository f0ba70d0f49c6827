"""How GENIUS grows: with the number of items, cores and machines.

    python benchmarks/scale.py OUT [--sections throughput,mbeir,ddp,workers,build] [--help]

Each section answers one question, prints a table and writes a JSON file to the folder OUT. Run it on an idle machine.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import build
import mbeir
import throughput
from rich.console import Console

from genius.errors import GeniusError


def run_throughput(arguments: argparse.Namespace, console: Console) -> None:
    """Queries a second against the size of the collection (the paper's Fig. 4): see throughput.py."""
    numbers = throughput.parse_sizes(arguments.sizes)
    throughput.measure(arguments.out, arguments.model, numbers, arguments.threads, console)


def run_ddp(arguments: argparse.Namespace, console: Console) -> None:
    """Training with two processes against one, samples a second of each stage: see ddp.py."""
    import ddp  # needs torch

    ddp.measure(arguments.out, arguments.seconds, console)


def run_mbeir(arguments: argparse.Namespace, console: Console) -> None:
    """Seconds and memory of an evaluation of M-BEIR's size: see mbeir.py."""
    chosen = arguments.out, arguments.candidates, arguments.asked, arguments.model, arguments.threads
    mbeir.measure(mbeir.Files(*chosen), console)


def run_workers(arguments: argparse.Namespace, console: Console) -> None:
    """`genius serve --workers 2` against one process: see workers.py."""
    import workers  # needs the extra serve

    workers.measure(arguments.out, arguments.items, arguments.model, arguments.clients, arguments.seconds, console)


def run_build(arguments: argparse.Namespace, console: Console) -> None:
    """Builds of an index on Ray with one and two workers against the plain build: see build.py."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    build.measure(arguments.out, arguments.model, arguments.images, console)


SECTIONS: dict[str, Callable[[argparse.Namespace, Console], None]] = {
    "throughput": run_throughput,
    "ddp": run_ddp,
    "mbeir": run_mbeir,
    "workers": run_workers,
    "build": run_build,
}
"""Each function takes the options of the command line and a console."""


def main() -> None:
    names = ", ".join(SECTIONS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of results; a run of `genius evaluate` lends its vectors")
    parser.add_argument("--sections", default="throughput", help=f"with commas between them: {names}")
    parser.add_argument("--model", default="mini")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sizes", default=throughput.SIZES, help="throughput: numbers of items, comma-separated")
    parser.add_argument("--seconds", type=float, default=10.0, help="ddp, workers: seconds of each measurement")
    parser.add_argument("--items", type=int, default=200_000, help="workers: items of the index")
    parser.add_argument("--clients", type=int, default=32, help="workers: clients that ask at once")
    parser.add_argument("--candidates", type=int, default=mbeir.CANDIDATES, help="mbeir: number of candidates")
    parser.add_argument("--asked", type=int, default=25, help="mbeir: queries of each task that are searched")
    parser.add_argument("--images", type=int, default=build.IMAGES, help="build: number of generated images")
    arguments = parser.parse_args()
    console = Console()
    try:
        chosen = arguments.sections.split(",")
        if unknown := [name for name in chosen if name not in SECTIONS]:
            raise GeniusError(f"There is no section {', '.join(unknown)}. Choose from {names}.")
        for name in chosen:
            SECTIONS[name](arguments, console)
    except GeniusError as error:
        console.print(f"[red]{error}[/]")
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
