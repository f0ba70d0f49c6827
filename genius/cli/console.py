"""What all commands share: how they print, and the arguments that several of them take."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from genius.errors import BadData, BadIndex, GeniusError

SOME_BAD = 2
"""Exit status of a command that did its work, but not for all items."""
SHOWN = 20
"""Rows of a list of complaints."""
NICENESS = 5
"""Of work that can wait, where systems know such a thing: searches beside it are answered first."""

IndexPath = Annotated[Path, typer.Argument(metavar="INDEX", help="Folder of the index.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for other programs instead of a table.")]
AtVersion = Annotated[
    int | None,
    typer.Option(
        "--version",
        metavar="N",
        help="Look at this older state of the index; genius index versions lists them.",
        show_default=False,
    ),
]
IdsFrom = Annotated[
    Path | None,
    typer.Option("--ids-from", metavar="FILE", help="A text file with an id a line.", show_default=False),
]
CONDITION = "SQL over id, text, modality and the metadata fields that genius index info lists."
Where = Annotated[
    str | None, typer.Option(help=f"Only items that satisfy this condition: {CONDITION}", show_default=False)
]


def stdout() -> Console:
    return Console(highlight=False)


def say(sentence: str) -> None:
    stdout().print(Text(sentence), soft_wrap=True)


def busy(sentence: str) -> Status:
    """While it is entered, a terminal shows that something is being done; nothing is left of it."""
    return Console(stderr=True, highlight=False).status(Text(sentence))


def complain(sentence: str) -> None:
    Console(stderr=True, highlight=False).print(Text(sentence, style="red"), soft_wrap=True)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))


def read_ids(file: Path) -> list[str]:
    """The lines of a file."""
    try:
        return [line for line in file.read_text(encoding="utf-8-sig").split("\n") if line]
    except (OSError, UnicodeError) as error:
        raise BadData(f"{file} cannot be read ({error}). Give a text file in UTF-8 with an id a line.") from error


def named_indexes(given: list[str]) -> dict[str, Path]:
    """The folders by their names: NAME=INDEX, or INDEX alone, which is called as its folder without the ending."""
    paths: dict[str, Path] = {}
    for one in given:
        name, equals, folder = one.partition("=")
        if not equals or Path(one).exists():
            name, folder = Path(one).resolve().stem, one
        if not name or not folder:
            raise GeniusError(f"{one!r} is neither INDEX nor NAME=INDEX.")
        if name in paths:
            raise GeniusError(f"Two indexes are called {name!r}. Give one of them another name: NAME={folder}")
        if not (Path(folder) / "items.lance").is_dir():
            raise BadIndex(f"{folder} is not an index. Make one with: genius index create {folder} SOURCE")
        paths[name] = Path(folder)
    return paths


def make_way() -> None:
    """Lets other programs go first from now on: for commands that work long."""
    if hasattr(os, "setpriority"):
        os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
