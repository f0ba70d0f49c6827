"""The commands `genius dataset ...`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from genius.cli.console import SOME_BAD, AsJson, complain, examples, print_json, say, split_names, stdout
from genius.cli.items import show_bad
from genius.cli.mbeir import counts_dict, counts_table
from genius.errors import GeniusError
from genius.runtime.wording import counted

if TYPE_CHECKING:
    from genius.data.dataset import DatasetReport

dataset_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Make training data of your own.")


@dataset_app.command(
    "make",
    epilog=examples(
        "genius dataset make shoes --items shoes.csv --pairs clicks.csv --min-clicks 3",
        "genius dataset make photos --items Pictures --pairs captions.csv --both-ways",
        "genius dataset make photos --items Pictures --dry-run",
        notes="Exit status 2: written, but some items or rows could not be used; they are listed with row numbers.",
    ),
)
def make(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to create.")],
    items: Annotated[
        list[Path],
        typer.Option(metavar="SOURCE", help="Folder or table of items, as for genius index create. May be repeated."),
    ],
    pairs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="TABLE",
            help="Table with a query and an item id per row: captions, judgements or clicks. May be repeated. Default: "
            "the text of each image is its caption.",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Columns of TABLE, such as query=term,item=sku. Also: query_image, clicks."),
    ] = None,
    both_ways: Annotated[
        bool, typer.Option("--both-ways", help="Also search with items for queries, such as images -> captions.")
    ] = False,
    min_clicks: Annotated[
        float, typer.Option(metavar="N", min=0, help="Leave out pairs with fewer clicks; equal rows add up.")
    ] = 1,
    val: Annotated[float, typer.Option(metavar="SHARE", min=0, max=1, help="Share of the items in val.")] = 0.1,
    test: Annotated[float, typer.Option(metavar="SHARE", min=0, max=1, help="Share of the items in test.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Seed of the division into splits.")] = 0,
    name: Annotated[str | None, typer.Option(help="Name of the data set. Default: that of the folder.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be made; write nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a benchmark in M-BEIR layout, to train and evaluate on, from items with captions, judgements or clicks."""
    from genius.data.dataset import make_dataset

    report = make_dataset(
        out,
        items,
        pairs or None,
        both_ways=both_ways,
        min_clicks=min_clicks,
        val=val,
        test=test,
        seed=seed,
        name=name,
        columns=_roles(columns),
        dry_run=dry_run,
        progress=stdout().is_terminal and not as_json,
    )
    if as_json:
        print_json(_as_dict(report))
    else:
        _show(report)
        show_bad(report.bad, "not used")
        say(
            f"{out} was not written: this was a dry run."
            if dry_run
            else f"Wrote {out}. Next: genius train {out} --out MODEL"
        )
    if report.bad:
        raise typer.Exit(SOME_BAD)


def _roles(columns: str | None) -> dict[str, str]:
    """{"query": "term"} for "query=term"."""
    roles = {}
    for one in split_names(columns or ""):
        role, equals, name = one.partition("=")
        if not equals or not name.strip():
            raise GeniusError(f"{one!r} in --columns is not of the form ROLE=NAME, such as query=term.")
        roles[role.strip()] = name.strip()
    return roles


def _as_dict(report: "DatasetReport") -> dict[str, object]:
    same = ("name", "dataset_id", "candidates", "merged", "few_clicks", "divided", "one_way", "unused_columns")
    return {
        **{name: getattr(report, name) for name in same},
        "tasks": [counts_dict(row) for row in report.rows],
        "missing": [f"{split}: {task}" for split, task in report.missing],
        "bad": [{"id": bad.id, "reason": bad.reason} for bad in report.bad],
    }


def _show(report: "DatasetReport") -> None:
    for split in dict.fromkeys(row.split for row in report.rows):
        say(f"{split}: {counted(report.candidates[split], 'candidate')}")
        stdout().print(counts_table([row for row in report.rows if row.split == split]))
    if report.merged:
        say(f"{counted(report.merged, 'item')} identical to another one: they share a candidate.")
    if report.few_clicks:
        say(f"{counted(report.few_clicks, 'pair')} left out: too few clicks.")
    if report.divided:
        queries = counted(report.divided, "query has", "queries have")
        say(f"{queries} items in several splits; each split has the items of its own.")
    if report.one_way:
        say(f"{counted(report.one_way, 'pair')} searched in one direction only: the query is in another split.")
    if report.unused_columns:
        say(f"Columns without a role: {', '.join(report.unused_columns)}. See --columns if one is needed.")
    for split, task in report.missing:
        complain(f"{task} has no queries in {split}: too few items.")
