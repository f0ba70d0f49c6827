"""How fast searching is: ours against the published decoding path and against Faiss, in one run on one machine.

    python benchmarks/search.py OUT [--decoders paper,mini] [--sizes 10000,100000,1000000,5600000] [--batches 1,32]
        [--threads 1,2] [--vectors RUN] [--methods fast,flat] [--quick]
    python benchmarks/search.py OUT --page docs/performance.md     # write what was measured into the page

Measured are milliseconds a query, from ready vectors to the ten best items at beam 50; the part of the ten nearest that
is found; bytes an item; seconds to build; and, beside our modes, the physical limit (see flops.py). Two decoders:

- `paper`: the paper's size, random weights and drawn IDs (material.py says how), against the published path
  (published.py) with the same weights. Faiss is not compared here, because random weights find nothing.
- `mini`: the bundled model on real vectors, mixed to the sizes asked for, against Faiss flat (by matrix products for
  batches, the faster way for single queries), HNSW and IVF-PQ on the same vectors, with as many bytes for IVF-PQ
  as our IDs take; against the published path with the layers of `mini`; and against encoding a text query.
  RUN is a run of `genius evaluate`, which lends its vectors; without one, sentences are encoded.

Methods take turns, several times each, and the best time counts. Our modes are measured three times: with the target
modality open and given, and open with decoder weights of eight bits. Results go to OUT/search.json whenever a group of
methods has been compared, and what is there is not measured again; the plot is OUT/search.png. All of it takes hours,
most of them in the published path and in building HNSW; a graph that would take longer than a quarter of an hour, going
by a smaller one, is left out. Run it on an idle machine: rows during which this process had less than nine tenths of a
core are marked.
"""

import argparse
import copy
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import throughput
import torch
from flops import Machine, Products, use_threads
from flops import flops as count_flops
from flops import ours as our_products
from flops import published as published_products
from material import Material, mini_material, paper_material
from published import Published
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from search_results import OURS, TARGETS, Row, SearchResults, TrieRow, plot, sheets, write_page

from genius import Genius, Query
from genius.errors import GeniusError
from genius.evaluation.baselines import FaissBaseline, build_baseline
from genius.model.decoder_runtime import DecoderRuntime
from genius.search.beam import beam_search
from genius.search.options import SearchOptions
from genius.search.searcher import MIN_MODALITY_RATIO, Searcher
from genius.search.trie import Trie

SIZES, QUICK_SIZES = "10000,100000,1000000,5600000", "10000,100000"
BEAM, K = 50, 10
BASELINES = ("flat", "hnsw", "ivfpq")
METHODS = ("published", *OURS, *BASELINES, "encode")
LONGEST_BUILD = 900.0  # seconds (default)
PROBE = 10_000  # items of the graph that tells how long a larger one takes, if none is known
TURN = 0.3  # seconds a method has the machine for, or one run if that takes longer
ALWAYS, NEVER = 1, 1_000_000  # number of queries from which Faiss uses matrix products

Run = Callable[[], object]


@dataclass(frozen=True)
class Effort:
    """rounds: of methods taking turns; alone: queries searched one by one in a turn."""

    rounds: int
    alone: int
    published_rounds: int


FULL, QUICK = Effort(rounds=5, alone=8, published_rounds=2), Effort(rounds=2, alone=2, published_rounds=1)


@dataclass(frozen=True)
class Settings:
    sizes: list[int]
    threads: list[int]
    batches: list[int]
    effort: Effort
    vectors: Path
    longest_build: float = LONGEST_BUILD
    methods: list[str] | None = None  # None: all


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for search.json and search.png")
    parser.add_argument("--decoders", default="paper,mini", help="paper, mini or both, with a comma between them")
    parser.add_argument("--sizes", help=f"numbers of items, with commas between them; {SIZES} if not given")
    parser.add_argument("--threads", default="1,2", help="numbers of threads")
    parser.add_argument("--batches", default="1,32", help="numbers of queries searched at once")
    parser.add_argument("--vectors", type=Path, help="a run of `genius evaluate`, which lends its vectors to mini")
    parser.add_argument("--methods", help=f"methods with commas between them: {', '.join(METHODS)}; all if not given")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SIZES} items, few repeats")
    parser.add_argument(
        "--longest-build", type=float, default=LONGEST_BUILD, help="seconds that a graph of HNSW may take to build"
    )
    parser.add_argument("--page", type=Path, help="measure nothing; write OUT/search.json into this page")
    arguments = parser.parse_args()
    console = Console()
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        results = SearchResults.read(arguments.out / "search.json")
        if arguments.page is None:
            sizes = throughput.parse_sizes(arguments.sizes or (QUICK_SIZES if arguments.quick else SIZES))
            threads, batches = (numbers(getattr(arguments, name), name) for name in ("threads", "batches"))
            effort = QUICK if arguments.quick else FULL
            vectors = arguments.vectors or arguments.out
            methods = chosen(arguments.methods, METHODS, "method") if arguments.methods else None
            settings = Settings(sizes, threads, batches, effort, vectors, arguments.longest_build, methods)
            measure(results, chosen(arguments.decoders, DECODERS, "decoder"), settings, console)
        finish(results, arguments.page, console)
    except GeniusError as error:
        console.print(f"[red]{error}[/]")
        raise SystemExit(1) from error


def numbers(text: str, name: str) -> list[int]:
    try:
        values = sorted({int(value) for value in text.split(",")})
    except ValueError as error:
        raise GeniusError(f"--{name} {text} is not a list of numbers. Write for example 1,2.") from error
    if values[0] < 1:
        raise GeniusError(f"--{name} {text}: every number must be at least 1.")
    return values


def chosen(text: str, known: Iterable[str], what: str) -> list[str]:
    names = text.split(",")
    unknown = set(names) - set(known)
    if unknown:
        raise GeniusError(f"There is no {what} {', '.join(sorted(unknown))}. Choose among {', '.join(known)}.")
    return names


def measure(results: SearchResults, decoders: Iterable[str], settings: Settings, console: Console) -> None:
    results.machine = f"{processor()}, torch {torch.__version__}"
    machine = Machine()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        for name in decoders:
            comparison = DECODERS[name](results, settings, machine, progress)
            comparison.run()


def processor() -> str:
    """Name of the processor, if known."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def finish(results: SearchResults, page: Path | None, console: Console) -> None:
    """Print the tables, draw the plot and fill the page."""
    if not results.rows:
        raise GeniusError(f"{results.path} holds no results. Measure first: python benchmarks/search.py OUT")
    image = results.path.with_suffix(".png")
    plot(results, image, results.values("threads")[0], results.values("batch")[0])
    if page is not None:
        write_page(results, page, image)
        console.print(f"Written: {page}")
        return
    for sheet in sheets(results):
        console.print(sheet.table())
    for what, why in results.skipped.items():
        console.print(f"Not measured: {what} ({why}).")
    if any(row.disturbed for row in results.rows.values()):
        console.print(
            "[yellow]* Other processes were running: these results are not reliable. Run again on an idle machine.[/]"
        )
    console.print(f"Written: {results.path} and {image}")


# Taking time


@dataclass
class Contender:
    """One method: `run` does all of its queries. best: seconds of one run; worked: of the processor, in all turns."""

    run: Run
    rounds: int
    best: float = float("inf")
    waited: float = 0.0
    worked: float = 0.0

    def turn(self, least: float) -> None:
        """Run repeatedly for at least this many seconds."""
        start, worked = time.perf_counter(), time.process_time()
        while True:
            began = time.perf_counter()
            self.run()
            now = time.perf_counter()
            self.best = min(self.best, now - began)
            if now - start >= least:
                break
        self.waited += now - start
        self.worked += time.process_time() - worked

    @property
    def disturbed(self) -> bool:
        return self.worked < throughput.CORE_SHARE * self.waited


def race(contenders: dict[tuple[str, str], Contender], what: str, progress: Progress, turn: float) -> None:
    """Warm up each contender once, then let them take turns, so that a slow phase of the machine affects all."""
    rounds = max(contender.rounds for contender in contenders.values())
    bar = progress.add_task(what, total=rounds + 1)
    for contender in contenders.values():
        contender.run()
    progress.advance(bar)
    for number in range(rounds):
        for contender in contenders.values():
            if number < contender.rounds:
                contender.turn(turn)
        progress.advance(bar)
    progress.remove_task(bar)


def in_batches(search: Callable[[slice], object], queries: int, batch: int) -> Run:
    """Run all queries in batches."""
    parts = [slice(start, start + batch) for start in range(0, queries, batch)]

    def run() -> None:
        for part in parts:
            search(part)

    return run


def packed_bytes(sizes: Iterable[int]) -> float:
    """Bytes of an ID packed to whole bits per level."""
    return sum((size - 1).bit_length() for size in sizes) / 8


# The comparisons


class Comparison:
    """One decoder on collections of all sizes, against the published path."""

    name = "paper"

    def __init__(self, results: SearchResults, settings: Settings, machine: Machine, progress: Progress) -> None:
        self.results, self.settings, self.machine, self.progress = results, settings, machine, progress

    def run(self) -> None:
        missing = [size for size in self.settings.sizes if any(self.missing(size, *group) for group in self.groups())]
        if not missing:
            return
        use_threads(1)  # the time that codes take counts as building
        self.material = self.make(max(missing), max(*self.settings.batches, throughput.QUERIES))
        self.results.about[self.name] = self.material.about
        for size in missing:
            self.measure_size(size)

    def make(self, size: int, queries: int) -> Material:
        return paper_material(size, queries, self.progress)

    def groups(self) -> list[tuple[int, int]]:
        return [(threads, batch) for threads in self.settings.threads for batch in self.settings.batches]

    def methods(self, size: int, batch: int) -> list[tuple[str, str]]:
        return [("published", ""), *((mode, target) for mode in OURS for target in TARGETS)]

    def missing(self, size: int, threads: int, batch: int) -> set[tuple[str, str]]:
        rows = self.results.rows
        every = self.methods(size, batch)
        wanted = self.settings.methods or METHODS
        return {
            (one, target)
            for one, target in every
            if one in wanted and (self.name, size, threads, batch, one, target) not in rows
        }

    def measure_size(self, size: int) -> None:
        use_threads(1)
        self.prepare(size)
        for threads in self.settings.threads:
            groups = [(batch, self.missing(size, threads, batch)) for batch in self.settings.batches]
            if any(missing for _, missing in groups):
                use_threads(threads)
                self.use_model(self.material.make_model(), size)
            for batch, missing in groups:
                if missing:
                    self.measure_group(missing, size, threads, batch)

    def prepare(self, size: int) -> None:
        """Prepare what does not depend on the number of threads."""
        if any(method == "published" for group in self.groups() for method, _ in self.missing(size, *group)):
            self.published = Published(self.material.make_model().decoder, self.material.codes[:size])

    def use_model(self, model: Genius, size: int) -> None:
        material = self.material
        self.model = model
        Trie(material.codes[:K])  # what is loaded at the first use is not counted
        start = time.perf_counter()
        trie = Trie(material.codes[:size])
        self.trie_seconds = time.perf_counter() - start
        self.searcher = Searcher(model, material.codes[:size], material.embeddings[:size])
        self.rounded = copy.copy(self.searcher)
        self.rounded.model = copy.copy(model)
        self.rounded.model.decoder = DecoderRuntime(model.decoder.config, model.decoder.weights, int8=True)
        if (self.name, size) not in self.results.tries:
            built = TrieRow(self.name, size, self.trie_seconds, trie.nbytes / size, packed_bytes(model.sizes))
            self.results.add(tries=[built])

    def measure_group(self, missing: set[tuple[str, str]], size: int, threads: int, batch: int) -> None:
        queries = batch if batch > 1 else self.settings.effort.alone
        contenders = self.contenders(missing, threads, batch, queries)
        race(contenders, f"{self.name}, {size:,} items, {threads} threads, batch {batch}", self.progress, TURN)
        self.results.add(self.rows(contenders, size, threads, batch, queries))

    def contenders(
        self, wanted: set[tuple[str, str]], threads: int, batch: int, queries: int
    ) -> dict[tuple[str, str], Contender]:
        effort, material = self.settings.effort, self.material
        found = {}
        for method, target in sorted(wanted & {(mode, target) for mode in OURS for target in TARGETS}):
            search = self.our_search(method, target)
            found[method, target] = Contender(in_batches(search, queries, batch), effort.rounds)
        if ("published", "") in wanted:
            run = in_batches(lambda part: self.published.search(material.fused[part], BEAM), queries, batch)
            found["published", ""] = Contender(run, effort.published_rounds if batch == 1 else 1)
        return found

    def our_search(self, mode: str, target: str) -> Callable[[slice], np.ndarray]:
        material, searcher = self.material, self.rounded if target == "int8" else self.searcher
        options = SearchOptions(k=K, mode=mode, beam=BEAM)

        def search(part: slice) -> np.ndarray:
            targets = material.modality[part] if target == "given" else None
            return searcher.search(material.fused[part], material.asked[part], targets, options).top.rows

        return search

    def rows(
        self, contenders: dict[tuple[str, str], Contender], size: int, threads: int, batch: int, queries: int
    ) -> list[Row]:
        rows = []
        for (method, target), contender in contenders.items():
            found, bytes_per_item, build_seconds = self.worth(method, target)
            gflop, limit = None, None
            products = self.products(method, target, batch, queries)
            if products:
                gflop = sum(count_flops(part) for part in products) / queries / 1e9
                limit = 1000 * sum(self.machine.seconds(part, threads) for part in products) / queries
            rows.append(
                Row(
                    *(self.name, size, threads, batch, method, target),
                    milliseconds=1000 * contender.best / queries,
                    disturbed=contender.disturbed,
                    found=found,
                    bytes_per_item=bytes_per_item,
                    build_seconds=build_seconds,
                    gflop=gflop,
                    limit=limit,
                )
            )
        return rows

    def worth(self, method: str, target: str) -> tuple[float | None, float | None, float | None]:
        """Share of the nearest items found, bytes per item, build seconds."""
        if method == "published":
            return None, None, None
        searcher = self.searcher
        stored = 0 if method == "generate" or searcher.embeddings is None else searcher.embeddings.nbytes
        built = self.trie_seconds + self.material.codes_seconds * len(searcher)
        halves = 4 if method == "fast" else 0  # |q|^2 / 2 of each item
        return None, (searcher.trie.nbytes + stored) / len(searcher) + halves, built

    def products(self, method: str, target: str, batch: int, queries: int) -> list[Products]:
        """The matrix products of all queries. Those that stop at the same level are counted together in a batch."""
        decoder = self.model.decoder
        if method == "published":
            return [published_products(decoder.config, batch, BEAM)] * (queries // batch)
        if method not in OURS:
            return []
        given, tails = target == "given", method == "generate"
        stopped = Counter(self.stops(method, given, queries))
        found: list[Products] = []
        for level, count in stopped.items():
            together = count if batch > 1 else 1
            found += [our_products(decoder.config, together, BEAM, level, given, tails)] * (count // together)
        return found

    def stops(self, mode: str, given: bool, queries: int) -> list[int]:
        """Per query, the number of codes that the decoder has scored when the search stops."""
        if mode == "fast":
            return [2] * queries
        beams = beam_search(
            self.model.decoder,
            self.searcher.trie,
            self.material.fused[:queries],
            BEAM,
            targets=self.material.modality[:queries] if given else None,
            tails=False,
            min_modality_ratio=0.0 if mode == "generate" else MIN_MODALITY_RATIO,
        )
        return [found.level for found in beams]


class MiniComparison(Comparison):
    """`mini`, also against Faiss."""

    name = "mini"

    def __init__(self, results: SearchResults, settings: Settings, machine: Machine, progress: Progress) -> None:
        super().__init__(results, settings, machine, progress)
        self.probed: dict[int, float] = {}  # items -> seconds to build their graph

    def make(self, size: int, queries: int) -> Material:
        return mini_material(self.settings.vectors, size, queries, self.progress)

    def methods(self, size: int, batch: int) -> list[tuple[str, str]]:
        baselines = [
            (baseline, "")
            for baseline in BASELINES
            if baseline != "hnsw" or self.hnsw_seconds(size) < self.settings.longest_build
        ]
        return [*super().methods(size, batch), *baselines, *([("encode", "")] if batch == 1 else [])]

    def hnsw_seconds(self, size: int) -> float:
        """Estimated build seconds of a graph, from the largest known one that is not larger. 0 if there is none."""
        known = {
            row.items: row.build_seconds
            for row in self.results.rows.values()
            if row.method == "hnsw" and row.items <= size and row.build_seconds is not None
        } or self.probed
        if not known:
            return 0.0
        items = max(known)
        return known[items] * size * np.log(size) / (items * np.log(items))

    def prepare(self, size: int) -> None:
        super().prepare(size)
        self.sizes = self.material.make_model().sizes
        missing = {method for group in self.groups() for method, _ in self.missing(size, *group)}
        if "hnsw" in missing and self.hnsw_seconds(size) == 0.0 and size > PROBE:
            self.probed = {PROBE: self.build("hnsw", PROBE).build_seconds}
        seconds = self.hnsw_seconds(size)
        if seconds >= self.settings.longest_build and "hnsw" in (self.settings.methods or METHODS):
            self.results.skipped[f"HNSW of {size:,} items"] = f"it would take about {seconds / 60:.0f} minutes to build"
        named = {method for method, _ in self.methods(size, 1)}
        self.baselines = {name: self.build(name, size) for name in BASELINES if name in named & (missing | {"flat"})}
        self.truth = self.baselines["flat"].search(self.material.asked, K)
        self.queries = [self.query(number) for number in range(self.settings.effort.alone)]
        self.results.write()

    def build(self, name: str, size: int) -> FaissBaseline:
        bar = self.progress.add_task(f"{name}: building {size:,} items", total=size)
        vectors = self.material.embeddings[:size].astype(np.float32)
        baseline = build_baseline(
            name,
            vectors,
            packed_bytes(self.sizes),
            added=lambda count: self.progress.advance(bar, count),
        )
        self.progress.remove_task(bar)
        return baseline

    def contenders(
        self, wanted: set[tuple[str, str]], threads: int, batch: int, queries: int
    ) -> dict[tuple[str, str], Contender]:
        found = super().contenders(wanted, threads, batch, queries)
        rounds = self.settings.effort.rounds
        for name, baseline in self.baselines.items():
            baseline.threads = threads
            if (name, "") in wanted:
                found[name, ""] = Contender(in_batches(self.baseline_search(baseline, batch), queries, batch), rounds)
        if ("encode", "") in wanted:
            run = in_batches(lambda part: self.encode(part.start), queries, 1)
            found["encode", ""] = Contender(run, rounds)
        return found

    def baseline_search(self, baseline: FaissBaseline, batch: int) -> Callable[[slice], np.ndarray]:
        import faiss

        asked = self.material.asked
        # Comparing vector by vector, or by a matrix product: for a single query it depends on the machine.
        products_from = (
            ALWAYS if batch > 1 or (baseline.name == "flat" and products_are_quicker(baseline, asked)) else NEVER
        )

        def search(part: slice) -> np.ndarray:
            faiss.cvar.distance_compute_blas_threshold = products_from
            return baseline.search(asked[part], K)

        return search

    def query(self, number: int) -> Query:
        return Query(throughput.sentences(np.random.default_rng(number), 1)[0], target="image")

    def encode(self, number: int) -> np.ndarray:
        """Encode a text query into the vectors that a search takes."""
        return self.model.fuse(self.model.encode_queries([self.queries[number]]))

    def worth(self, method: str, target: str) -> tuple[float | None, float | None, float | None]:
        if method == "encode":
            return None, None, None
        if method in self.baselines:
            baseline = self.baselines[method]
            rows = baseline.search(self.material.asked, K)
            return throughput.shared(rows, self.truth), baseline.bytes_per_item, baseline.build_seconds
        _, bytes_per_item, build_seconds = super().worth(method, target)
        if method not in OURS:
            return None, bytes_per_item, build_seconds
        rows = self.our_search(method, target)(slice(None))
        return throughput.shared(rows, self.truth), bytes_per_item, build_seconds


def products_are_quicker(baseline: FaissBaseline, asked: np.ndarray) -> bool:
    """Whether Faiss searches a single query quicker by a matrix product. Leaves its setting as it was."""
    import faiss

    before = faiss.cvar.distance_compute_blas_threshold
    best = []
    for products_from in (NEVER, ALWAYS):
        faiss.cvar.distance_compute_blas_threshold = products_from
        contender = Contender(lambda: baseline.search(asked[:1], K), 1)
        contender.run()
        contender.turn(TURN)
        best.append(contender.best)
    faiss.cvar.distance_compute_blas_threshold = before
    return best[1] < best[0]


DECODERS: dict[str, type[Comparison]] = {"paper": Comparison, "mini": MiniComparison}


if __name__ == "__main__":
    main()
