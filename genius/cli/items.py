"""Items and hits as cards, CSV and JSON; reports of items that were added."""

import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text

from genius.cli.console import SOME_BAD, complain, first_lines, print_json, say, split_names, stdout, wrap
from genius.data.items import Modality
from genius.errors import BadItem, GeniusError
from genius.runtime.wording import counted

if TYPE_CHECKING:
    from genius.data.items import Item
    from genius.index.index import Index
    from genius.search.results import AddReport, Hit

MAX_TEXT = 240
"""Characters of a text that a terminal shows."""
MAX_VALUE = 120
"""Characters of a metadata value that a terminal shows."""
INDENT = 4
"""Columns before the lines of a card."""


def item_dict(item: "Item") -> dict[str, Any]:
    """An item as JSON. A stored image has no path; an item added as vectors has no modality."""
    modality = _modality(item)
    return {
        "id": item.id,
        "modality": None if modality is None else modality.label,
        "text": item.text,
        "image": _path(item),
        "metadata": item.metadata,
    }


def with_fields(items: "Iterable[Item]", fields: str | None) -> "Iterable[Item]":
    """Keep only the metadata fields in a comma-separated list. None keeps all."""
    if fields is None:
        return items
    names = split_names(fields)
    return (
        replace(item, metadata={name: item.metadata[name] for name in names if name in item.metadata}) for item in items
    )


def check_format(as_json: bool, as_csv: bool) -> None:
    """Raise GeniusError if both formats are chosen."""
    if as_json and as_csv:
        raise GeniusError("--json and --csv exclude each other. Choose one of them.")


def show_items(items: "Iterable[Item]", columns: Sequence[str], as_json: bool, as_csv: bool) -> None:
    """Print items as cards, as CSV with these metadata columns, or as JSON."""
    if as_json:
        print_json([item_dict(item) for item in items])
        return
    if as_csv:
        _print_csv(((item, ()) for item in items), columns)
        return
    console, none = stdout(), True
    for item in items:
        none = False
        modality = _modality(item)
        label = "vector" if modality is None else modality.label
        _show_card(console, Text.assemble((one_line(item.id), "bold"), "  ", (label, "cyan")), item)
    if none:
        say("No item matches.")


def show_hits(hits: "Sequence[Hit]", columns: Sequence[str], as_json: bool, as_csv: bool, codes: bool) -> None:
    """Print hits as cards, as CSV with these metadata columns, or as JSON."""
    if as_json:
        own = ({"score": hit.score, "modality": hit.modality.label, "codes": list(hit.codes)} for hit in hits)
        print_json([item_dict(hit.item) | fields for hit, fields in zip(hits, own, strict=True)])
        return
    if as_csv:
        first = ("score", "modality", "codes") if codes else ("score", "modality")
        rows = (
            (hit.item, (hit.score, hit.modality.label, " ".join(map(str, hit.codes)))[: len(first)]) for hit in hits
        )
        _print_csv(rows, columns, first)
        return
    if not hits:
        say("Nothing found: no item of the index matches.")
    console, rank = stdout(), len(str(len(hits)))
    for number, hit in enumerate(hits, 1):
        head = Text.assemble(
            (f"{number:>{rank}}  ", "dim"),
            f"{hit.score:6.3f}  ",
            (f"{hit.modality.label:<10}  ", "cyan"),
            (one_line(hit.id), "bold"),
        )
        _show_card(console, head, hit.item, hit.codes if codes else ())


def one_line(text: str) -> str:
    """A text on one line, without characters that would control a terminal."""
    return "".join("\ufffd" if unicodedata.category(c) == "Cc" else c for c in " ".join(text.split()))


def shorten(text: str, most: int) -> str:
    """Cut a text to at most `most` characters, if possible after a whole word, and append an ellipsis."""
    if len(text) <= most:
        return text
    cut = text[: most - 2]
    words = cut.rpartition(" ")[0]
    return f"{words} …" if len(words) > most // 2 else f"{cut}…"


def _show_card(console: Console, head: Text, item: "Item", codes: Sequence[int] = ()) -> None:
    """Print a heading and, indented, the text, the file, the metadata and the codes."""
    most_text, most_value = (MAX_TEXT, MAX_VALUE) if console.is_terminal else (sys.maxsize, sys.maxsize)
    path = _path(item)
    image = "image: stored in the index" if item.image is not None else ""
    # A field and the beginning of its value stay together: `wrap` breaks lines at ordinary spaces only.
    values = (f"{one_line(name)}:\xa0{shorten(_value(value), most_value)}" for name, value in item.metadata.items())
    lines = [
        *((part, "") for part in wrap(console, shorten(one_line(item.text or ""), most_text), INDENT)),
        (image if path is None else f"file: {one_line(_shown_path(path))}", "dim"),  # not wrapped, to be copied
        *((part, "dim") for part in wrap(console, " · ".join(values), INDENT)),
        *((part, "dim") for part in wrap(console, f"codes: {' '.join(map(str, codes))}" if codes else "", INDENT)),
    ]
    console.print(head, soft_wrap=True)
    for line, style in lines:
        if line:
            console.print(Text(" " * INDENT + line.replace("\xa0", " "), style), soft_wrap=True)


def _print_csv(
    rows: "Iterable[tuple[Item, Sequence[object]]]", columns: Sequence[str], first: Sequence[str] = ()
) -> None:
    from genius.data.csv_writer import CsvWriter

    table = CsvWriter(sys.stdout, columns, first)
    for item, values in rows:
        table.write(item.id, item.text, _path(item), item.metadata, values)


def _modality(item: "Item") -> Modality | None:
    """None for an item that was added as vectors."""
    try:
        return item.modality
    except BadItem:
        return None


def _path(item: "Item") -> str | None:
    return None if item.image is None or isinstance(item.image, bytes) else str(item.image)


def _shown_path(path: str) -> str:
    """A path below the working directory is shown from there."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _value(value: object) -> str:
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def show_report(index: "Index", report: "AddReport", done: str, seconds: float) -> NoReturn:
    """Print the result of adding or encoding items, and end the command. done: "added" or "encoded again"."""
    unchanged = f", {report.unchanged:,} unchanged" if report.unchanged else ""
    rate = (report.added + report.unchanged) / max(seconds, 1e-9)
    say(
        f"{report.added:,} {done}{unchanged} in {seconds:.1f} s ({rate:,.0f} items/s); "
        f"{index.path} now holds {counted(len(index), 'item')}."
    )
    show_bad(report.bad, f"not {done}")
    raise typer.Exit(SOME_BAD if report.bad else 0)


def show_bad(bad: list[BadItem], what: str) -> None:
    """Print ids and reasons of bad items. what: consequence, such as "not added"."""
    if not bad:
        return
    complain(f"{counted(len(bad), 'bad item')}, {what}:")
    for line in first_lines([f"{one_line(error.id)}: {one_line(error.reason)}" for error in bad]):
        complain(f"  {line}")
