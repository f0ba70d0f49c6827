"""Sections and tables of a report, written as HTML and as Markdown by the templates beside this module."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from genius.evaluation.charts import Chart


@dataclass(frozen=True)
class Cell:
    """A cell of a table: text, a smaller text below it, and CSS classes (strong, good, bad, words)."""

    text: object
    small: str = ""
    look: str = ""


@dataclass
class Table:
    """A table. A row that is a string is a heading for the rows after it."""

    columns: Sequence[str]
    rows: list[list[Cell] | str] = field(default_factory=list)

    def add(self, *cells: str | Cell) -> None:
        """Adds a row."""
        self.rows.append([cell if isinstance(cell, Cell) else Cell(cell) for cell in cells])


@dataclass(frozen=True)
class Section:
    """A heading with what follows it, in this order. Backquotes in texts mark code."""

    title: str
    level: int = 2
    text: str = ""
    points: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()


def render(template: str, **values: object) -> str:
    """The text that a template of this folder gives; values in .html templates are escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=template.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"inline": _inline, "markdown": _markdown}
    return environment.get_template(template).render(values)


def _inline(text: object) -> Markup:
    """HTML of a text: backquotes become code, and the R of GENIUS^R is raised."""
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(html.replace("GENIUS^R", "GENIUS<sup>R</sup>"))


def _markdown(cell: Cell) -> str:
    """Markdown of a cell: bold if strong, with the small text in parentheses."""
    text = f"**{cell.text}**" if "strong" in cell.look else str(cell.text)
    return (f"{text} ({cell.small})" if cell.small else text).replace("|", "\\|")
