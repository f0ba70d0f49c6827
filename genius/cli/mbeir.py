"""The commands `genius mbeir ...`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from genius.cli.console import SHOWN, AsJson, Tasks, complain, examples, print_json, say, split_names, stdout
from genius.runtime.wording import counted

if TYPE_CHECKING:
    from genius.data.mbeir_check import CheckReport, TaskCounts

mbeir_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="Check a copy of M-BEIR, or create a benchmark in its layout."
)


@mbeir_app.command(
    "check",
    epilog=examples(
        "genius mbeir check M-BEIR",
        "genius mbeir check M-BEIR --splits test --tasks mscoco,cirr",
        "genius mbeir check my-benchmark --own",
        notes="Exit status 1: files are missing or damaged, or counts differ from the published ones.",
    ),
)
def mbeir_check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder in M-BEIR layout.")],
    splits: Annotated[
        str | None, typer.Option(metavar="LIST", help="Comma-separated list of splits. Default: all.")
    ] = None,
    tasks: Tasks = None,
    images: Annotated[int, typer.Option(metavar="N", min=0, help="Open N random images of each file.")] = 100,
    own: Annotated[
        bool, typer.Option("--own", help="DIR is a benchmark of your own: compare nothing with M-BEIR.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check that the files of M-BEIR, or of a benchmark in its layout, are complete."""
    from genius.data.mbeir_check import check

    chosen_splits, chosen_tasks = (None if names is None else split_names(names) for names in (splits, tasks))
    found = check(folder, chosen_splits, chosen_tasks, images, show=True, own=own)
    if as_json:
        print_json(_as_dict(found))
    else:
        _show(found, own)
    if not found.whole:
        raise typer.Exit(1)


@mbeir_app.command(
    "karpathy",
    epilog=examples("genius mbeir karpathy dataset_flickr30k.json flickr30k-images flickr30k"),
)
def mbeir_karpathy(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="dataset_flickr30k.json or dataset_coco.json.")],
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="Folder of the images that FILE names.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to create.")],
) -> None:
    """Create a text-to-image benchmark from Karpathy's splits of Flickr30K or COCO."""
    from genius.data.karpathy import write_karpathy

    task = write_karpathy(file, images, out)
    say(f"Wrote {out} with the task {task.name}.")


def _as_dict(found: "CheckReport") -> dict[str, object]:
    same = ("whole", "global_pools", "missing", "damaged", "differing", "images")
    return {
        **{name: getattr(found, name) for name in same},
        "tasks": [counts_dict(row) for row in found.rows],
        "absent": [f"{split}: {task}" for split, task in found.absent],
    }


def _show(found: "CheckReport", own: bool) -> None:
    for split in dict.fromkeys(row.split for row in found.rows):
        say(split if own else f"{split} (in brackets: Table 1 of the supplement, rounded there)")
        stdout().print(counts_table([row for row in found.rows if row.split == split]))
    for split, count in found.global_pools.items():
        say(f"Global pool of {split}: {counted(count, 'candidate')}.")
    say(f"Opened {counted(found.images, 'image')}.")
    for split in dict.fromkeys(split for split, _ in found.absent):
        complain(f"No files of {split} for: {', '.join(task for where, task in found.absent if where == split)}.")
    for name, sentences in (("Missing", found.missing), ("Damaged", found.damaged), ("Differing", found.differing)):
        for sentence in sentences[:SHOWN]:
            complain(f"{name}: {sentence}")
        if len(sentences) > SHOWN:
            complain(f"{name}: {len(sentences) - SHOWN:,} more; --json lists all.")
    if found.whole:
        say("All files are complete." if own else "All files are complete and have the published counts.")


def counts_dict(row: "TaskCounts") -> dict[str, object]:
    """The counts of a task as JSON."""
    return {"task": row.task.name} | {
        name: getattr(row, name) for name in ("split", "queries", "relevant", "candidates")
    }


def counts_table(rows: "list[TaskCounts]") -> Table:
    """A table of the tasks of one split."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("task", no_wrap=True)
    for name in ("queries", "relevant per query", "candidates"):
        table.add_column(name, justify="right")
    for row in rows:
        published, split = row.published, row.split
        cells = [
            _cell(row.queries, "{:,}", published and published.queries[split]),
            _cell(row.relevant, "{:.1f}", published and published.relevant[split]),
            _cell(row.candidates, "{:,}", published and published.candidates) if split != "train" else "",
        ]
        table.add_row(row.task.name, *cells)
    return table


def _cell(count: float | None, form: str, published: object) -> Text:
    text = Text("–" if count is None else form.format(count))
    return text if published is None else text.append(f" ({published})", style="dim")
