"""Shared by the commands: printing, help texts, and common arguments."""

import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.status import Status
from rich.text import Text

from genius.errors import BadData, BadIndex, GeniusError

if TYPE_CHECKING:
    from genius.index.index import Index

SOME_BAD = 2
"""Exit status of a command that succeeded for some items only."""
UNLIMITED = 100_000
"""Width of lines that no terminal limits."""
SHOWN = 20
"""Maximum number of lines in a list of errors."""
NICENESS = 5
"""Priority of long commands on Unix: concurrent searches go first."""

FILTER = "SQL over id, text, modality and metadata fields; genius index info lists the fields."
MODEL = "Name of the bundled model, a model folder, or OWNER/NAME on the Hugging Face hub."
IndexPath = Annotated[
    str, typer.Argument(metavar="INDEX", help="Folder of the index, or its URL, such as s3://bucket/photos.genius.")
]
ModelName = Annotated[str, typer.Option("--model", help=MODEL)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsCsv = Annotated[
    bool, typer.Option("--csv", help="Print CSV, which genius index add reads, with a column for each metadata field.")
]
Fields = Annotated[
    str | None,
    typer.Option("--fields", metavar="LIST", help="Comma-separated list of metadata fields to show. Default: all."),
]
AtVersion = Annotated[
    int | None,
    typer.Option(
        "--version",
        metavar="N",
        help="Read an older version of the index; genius index versions lists them.",
    ),
]
NamedIndexes = Annotated[
    list[str],
    typer.Argument(metavar="[NAME=]INDEX", help="Folder or URL of an index, optionally with a name. May be repeated."),
]
Tasks = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="Comma-separated list of tasks, or of prefixes of their names. Default: all."),
]
Beam = Annotated[int, typer.Option(help="Width of the beam search of the modes generate and rerank.")]
Budget = Annotated[
    int | None,
    typer.Option(
        help="Maximum number of candidates that mode fast ranks. By default it follows the number of items.",
        show_default=False,
    ),
]
Where = Annotated[str | None, typer.Option(help=f"Only items that match this filter: {FILTER}")]


def examples(*commands: str, notes: str = "") -> str:
    """The end of a help text: example commands, then notes."""
    return "\n\n".join([*(f"Example: [bold]{command}[/bold]" for command in commands), *filter(None, [notes])])


def stdout() -> Console:
    """A console on standard output. Only a terminal limits the width of tables."""
    return _console(stderr=False)


def stderr() -> Console:
    """A console on standard error. Only a terminal limits the width of tables."""
    return _console(stderr=True)


def _console(stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=UNLIMITED)


def say(sentence: str) -> None:
    """Print a sentence."""
    _print(stdout(), sentence, "")


def busy(sentence: str) -> Status:
    """A context manager that shows a spinner on a terminal and leaves no trace."""
    return stderr().status(Text(sentence))


def complain(sentence: str) -> None:
    """Print a sentence in red on standard error."""
    _print(stderr(), sentence, "red")


def _print(console: Console, sentence: str, style: str) -> None:
    """Print a sentence, broken between words. Commands are not broken, so that they can be copied. Keeps indents."""
    given = sentence.lstrip(" ")
    indent = len(sentence) - len(given)
    before, found, command = ("", "genius ", given[7:]) if given.startswith("genius ") else given.partition(": genius ")
    lines = wrap(console, given, indent)
    if found:
        lines = wrap(console, f"{before}:" if before else "", indent, f"genius {command}")
    for line in lines:
        console.print(Text(" " * indent + line, style=style), soft_wrap=True)


def show_facts(facts: dict[str, str]) -> None:
    """Print names and values. Long values are broken between words and aligned."""
    console = stdout()
    width = max(map(len, facts))
    for name, value in facts.items():
        lines = wrap(console, value, width + 2)
        console.print(Text.assemble((f"{name:<{width}}  ", "bold"), lines[0]), soft_wrap=True)
        for line in lines[1:]:
            console.print(Text.assemble(" " * (width + 2), line), soft_wrap=True)


def wrap(console: Console, text: str, indent: int, whole: str = "") -> list[str]:
    """Lines of a text that fit beside an indent. Long words and `whole`, which follows the text, are not broken."""
    width = console.width - indent
    lines = [""]
    for word in [*text.split(" "), *filter(None, [whole])]:
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and cell_len(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def first_lines(lines: Sequence[str]) -> Iterable[str]:
    """The first lines of a long list, and how many more there are."""
    more = len(lines) - SHOWN
    return [*lines[:SHOWN], f"... and {more:,} more"] if more > 0 else lines


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))


def split_names(names: str) -> list[str]:
    """'a, b' -> ['a', 'b']."""
    return [name.strip() for name in names.split(",") if name.strip()]


def read_text(file: Path) -> str:
    """The content of a UTF-8 file."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise BadData(f"{file} cannot be read ({error}). Give a text file in UTF-8.") from error


def read_ids(file: Path | None) -> list[str] | None:
    """The lines of a file, without empty ones."""
    return None if file is None else [line for line in read_text(file).split("\n") if line]


def open_index(path: str, version: int | None = None) -> "Index":
    """Open an index."""
    from genius.index.index import Index

    return Index.open(path, version=version)


def metadata_columns(index: "Index", fields: str | None) -> list[str]:
    """Metadata columns of a table: the fields in a comma-separated list, or all fields of the index."""
    from genius.index.storage import FILTER_COLUMNS

    return split_names(fields) if fields is not None else [name for name in index.fields if name not in FILTER_COLUMNS]


def named_indexes(given: list[str]) -> dict[str, str]:
    """Name -> folder or URL of each NAME=INDEX or INDEX. An INDEX alone is named after its folder without suffix."""
    from genius.data.locations import is_url

    paths: dict[str, str] = {}
    for one in given:
        name, equals, folder = one.partition("=")
        if not equals or is_url(one) or Path(one).exists():
            name, folder = Path(one if is_url(one) else Path(one).resolve()).stem, one
        if not name or not folder:
            raise GeniusError(f"{one!r} is neither INDEX nor NAME=INDEX. Write, for example, photos=photos.genius.")
        if name in paths:
            raise GeniusError(f"Two indexes have the name {name!r}. Give one of them another name: NAME={folder}")
        if not is_url(folder) and not (Path(folder) / "items.lance").is_dir():
            raise BadIndex(f"{folder} is not an index. Create one with: genius index create {folder} SOURCE")
        paths[name] = folder
    return paths


@contextmanager
def interruptible(explain: Callable[[], str]) -> Iterator[None]:
    """End the command on Ctrl-C, SIGTERM or SIGHUP, with the exit status of the signal.

    explain: Returns the sentence to show. It is called after the work was interrupted.
    """
    received = [signal.SIGINT]  # the last one is the signal that came; Python itself handles Ctrl-C

    def interrupt(number: int, frame: object) -> None:
        received.append(signal.Signals(number))
        raise KeyboardInterrupt

    names = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP; nohup ignores it
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    changed = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
    for number in changed:
        signal.signal(number, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        complain(explain())
        raise typer.Exit(128 + received[-1]) from None
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def lower_priority() -> None:
    """Let other processes run first, for commands that take long."""
    if hasattr(os, "setpriority"):
        os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
