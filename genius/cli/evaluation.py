"""The commands `genius evaluate`, `genius ablate` and `genius report`."""

from pathlib import Path
from typing import Annotated

import typer

from genius.cli.console import Beam, Budget, ModelName, Tasks, examples, say, split_names, stdout
from genius.cli.train import RESUME, Benchmarks, Cache
from genius.search.options import SearchOptions

EVALUATE_EPILOG = examples(
    "genius evaluate data/mbeir --model mini",
    "genius evaluate data/mbeir --methods exact,fast,baselines --prompts all --out runs/mini",
    "genius evaluate data/mbeir --setting local --tasks mscoco_task0 --protocol paper",
    notes="Interrupted? With --out, the same command continues where it stopped.",
)
ABLATION_TABLES = {
    "components": "Table 4: key components",
    "codebooks": "Table 5: codebook size and levels",
    "modality": "supplement, Table 3: where the modality code comes from",
    "beams": "supplement, Table 4: beam size",
    "decoder-size": "supplement, Table 5: decoder size",
    "more-codes": "supplement, Table 6: more codes, and one codebook for all levels",
    "ids": "supplement, Table 7: IDs in the style of earlier work",
    "rerank-local": "supplement, Table 8: re-ranking, each task in its own pool",
    "rerank-global": "supplement, Table 9: re-ranking, one pool for all tasks",
    "learning": "ours: how the decoder learns, each task in its own pool",
    "learning-global": "ours: how the decoder learns, one pool for all tasks",
}
"""Names and contents of the tables of ablations.toml, for the help text."""
ABLATE_EPILOG = examples(
    "genius ablate data/mbeir --out ablations --size quick",
    "genius ablate data/mbeir --out ablations --table components --table beams",
    "genius ablate data/mbeir --out ablations --table ids,modality --size full --seeds 3",
    notes="\n\n".join(
        ["Tables:", *(f"[bold]{name}[/bold]: {about}" for name, about in ABLATION_TABLES.items()), RESUME]
    ),
)
REPORT_EPILOG = examples("genius report runs/mini ablations --out report.html")
Limit = Annotated[int | None, typer.Option(metavar="N", help="Use N random queries per task. Default: all.")]


def evaluate(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Folder in M-BEIR layout.")],
    model: ModelName = "mini",
    split: Annotated[str, typer.Option(help="Split of the benchmark: val or test.")] = "test",
    setting: Annotated[
        str, typer.Option(help="local: each task has its own pool. global: one pool for all tasks. both.")
    ] = "both",
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Comma-separated list of methods (default: all but the baselines; of a model without codebooks, exact "
            "and exact-modality). Exact search: exact, "
            "exact-modality, fused. GENIUS: generate, rerank, fast, codes (fast without embeddings). Baselines, which "
            "need Faiss: hnsw, ivfpq, opq, rq. Groups: baselines, all.",
        ),
    ] = None,
    tasks: Tasks = None,
    prompts: Annotated[
        str, typer.Option(help="first: the first prompt of each task. all: mean and spread over all prompts.")
    ] = "first",
    protocol: Annotated[
        str,
        typer.Option(
            help="usual: the query's own image is never an answer. paper: it may be one, and generate and rerank leave "
            "out no modality."
        ),
    ] = "usual",
    beam: Beam = SearchOptions.beam,
    budget: Budget = SearchOptions.budget,
    int8: Annotated[bool, typer.Option(help="Search with 8-bit or with 32-bit decoder weights.")] = True,
    device: Annotated[str, typer.Option(help="Device of the encoder, such as cuda.")] = "cpu",
    limit: Limit = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for results, TREC files and vectors; genius report reads it."),
    ] = None,
) -> None:
    """Measure the recall of exact search, of the search modes and of baselines on a benchmark."""
    from genius.data.mbeir import Benchmark
    from genius.evaluation.evaluate import evaluate as run_evaluation
    from genius.evaluation.recall_tables import terminal_tables
    from genius.evaluation.runs import SETTINGS
    from genius.model.genius import Genius

    results = run_evaluation(
        Genius.from_pretrained(model, int8, device),
        Benchmark(data),
        split,
        SETTINGS if setting == "both" else (setting,),
        None if methods is None else _methods(methods),
        beam,
        budget,
        limit,
        None if tasks is None else split_names(tasks),
        prompts,
        out,
        stdout(),
        protocol,
    )
    for table in terminal_tables(results):
        stdout().print(table)
    if out is not None:
        say(f"All results are in {out}. Next: genius report {out} --out report.html")


def _methods(names: str) -> list[str]:
    """The methods of a list in display order; group names stand for their methods."""
    from genius.evaluation.runs import BASELINES, METHODS, check_names

    groups = {"baselines": BASELINES, "all": METHODS + BASELINES}
    chosen = [method for name in split_names(names) for method in groups.get(name, (name,))]
    check_names(chosen, METHODS + BASELINES, "method")
    return [method for method in METHODS + BASELINES if method in chosen]


def ablate(
    data: Benchmarks,
    out: Annotated[Path, typer.Option(help="Folder for trained parts and results; genius report reads it.")],
    model: Annotated[
        str, typer.Option(help="Model whose stage-1 vectors are used: the bundled model's name, or a folder.")
    ] = "mini",
    cache: Cache = None,
    table: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Table to train, or a comma-separated list; may be repeated. Default: all."),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="quick: small models, 100 queries a task. medium: the sizes of mini, a quarter of its decoder's "
            "training. full: mini. paper: Sec. 5.2 of the paper, for M-BEIR. Default: each table in its own size: "
            "quick for the tables codebooks, modality, decoder-size, more-codes and ids, full for the others.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Trainings of each row. Default: 3 in the sizes medium and full, else 1."),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Comma-separated list of rows of these tables. Default: all."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", help="Use N random queries per task. Default: that of the size."),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(
            help="Of the matrix products in training, as in genius train. bf16 is a third quicker on a processor that "
            "has it (AVX512_BF16)."
        ),
    ] = "auto",
) -> None:
    """Train and measure the ablations of the paper: what each part of the method contributes."""
    from genius.evaluation.ablations import ablate as run_ablations

    tables = None if table is None else [name for names in table for name in split_names(names)]
    names = None if rows is None else split_names(rows)
    run_ablations(data, out, model, cache, tables, size, seeds, names, limit, stdout(), precision=precision)
    say(f"All results are in {out}. Next: genius report {out} --out report.html")


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Folders of genius evaluate and genius ablate."),
    ],
    out: Annotated[Path, typer.Option(help="HTML page to write; a Markdown file is written beside it.")] = Path(
        "report.html"
    ),
) -> None:
    """Write the results of runs as one HTML page with tables and charts, and as Markdown."""
    from genius.evaluation.report import write_report

    write_report(runs, out, stdout())
