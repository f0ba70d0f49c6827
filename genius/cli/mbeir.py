"""The `genius mbeir ...` commands: benchmarks in M-BEIR layout, checked before hours are spent on them, and made."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from genius.cli.console import SHOWN, AsJson, complain, print_json, say, stdout

if TYPE_CHECKING:
    from genius.data.mbeir_check import Checked, Row

mbeir_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="Check a downloaded M-BEIR, or make a benchmark in its layout."
)


@mbeir_app.command(
    "check",
    epilog="Example: [bold]genius mbeir check M-BEIR[/bold]\n\n"
    "Example: [bold]genius mbeir check M-BEIR --splits test --tasks mscoco,cirr[/bold]\n\n"
    "Exit status 1: something is missing, damaged, or not as many as published.",
)
def mbeir_check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder in M-BEIR layout.", show_default=False)],
    splits: Annotated[str, typer.Option(help="Which splits, by commas.")] = "train,val,test",
    tasks: Annotated[
        str | None, typer.Option(help="Names of tasks, or how they begin, by commas; all unless told.")
    ] = None,
    images: Annotated[int, typer.Option(min=0, help="So many images of each file are opened, drawn at random.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Say which parts are there, whether they are whole, and whether they have the published counts."""
    from genius.data.mbeir_check import check

    found = check(folder, _names(splits), None if tasks is None else _names(tasks), images, show=True)
    if as_json:
        print_json(_as_dict(found))
    else:
        _show(found)
    if not found.whole:
        raise typer.Exit(1)


@mbeir_app.command(
    "karpathy",
    epilog="Example: [bold]genius mbeir karpathy dataset_flickr30k.json flickr30k-images flickr30k[/bold]",
)
def mbeir_karpathy(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="dataset_flickr30k.json or dataset_coco.json.")],
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="Folder of the images that FILE names.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to make.")],
) -> None:
    """Make a text-to-image benchmark of Karpathy's splits of Flickr30K or COCO, for genius train and evaluate."""
    from genius.data.karpathy import write_karpathy

    task = write_karpathy(file, images, out)
    say(f"Wrote {out} with the task {task.name}.")


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",") if name.strip()]


def _as_dict(found: "Checked") -> dict[str, object]:
    rows = [
        {
            "task": row.task.name,
            "split": row.split,
            "queries": row.queries,
            "relevant": row.relevant,
            "candidates": row.candidates,
        }
        for row in found.rows
    ]
    return {
        "whole": found.whole,
        "tasks": rows,
        "global_pools": found.global_pools,
        "absent": [f"{split}: {task}" for split, task in found.absent],
        "missing": found.missing,
        "damaged": found.damaged,
        "differing": found.differing,
        "images": found.images,
    }


def _show(found: "Checked") -> None:
    for split in dict.fromkeys(row.split for row in found.rows):
        stdout().print(_table(split, [row for row in found.rows if row.split == split]))
    for split, count in found.global_pools.items():
        say(f"Global pool of {split}: {count:,} candidates.")
    say(f"Opened {found.images:,} images.")
    for split in dict.fromkeys(split for split, _ in found.absent):
        complain(f"Nothing there for {split}: {', '.join(task for where, task in found.absent if where == split)}.")
    for name, sentences in (("Missing", found.missing), ("Damaged", found.damaged), ("Differing", found.differing)):
        for sentence in sentences[:SHOWN]:
            complain(f"{name}: {sentence}")
        if len(sentences) > SHOWN:
            complain(f"{name}: {len(sentences) - SHOWN:,} more; --json lists all.")
    if found.whole:
        say("All parts are there, whole, and as many as published.")


def _table(split: str, rows: "list[Row]") -> Table:
    title = f"{split} (in brackets: Table 1 of the supplement, rounded there)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("task", no_wrap=True)
    for name in ("queries", "right a query", "candidates"):
        table.add_column(name, justify="right")
    for row in rows:
        figures = row.published
        cells = [
            _cell(row.queries, "{:,}", figures and figures.queries[split]),
            _cell(row.relevant, "{:.1f}", figures and figures.relevant[split]),
            _cell(row.candidates, "{:,}", figures and figures.candidates) if split != "train" else "",
        ]
        table.add_row(row.task.name, *cells)
    return table


def _cell(count: float | None, form: str, figure: object) -> Text:
    text = Text("–" if count is None else form.format(count))
    return text if figure is None else text.append(f" ({figure})", style="dim")
