"""What a report is made of, and how it is written: as HTML and as Markdown.

Headings, paragraphs, lists, tables and charts. Knows nothing of what they say.
"""

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from genius.evaluation.charts import COLOURS, Chart
from genius.evaluation.runs import GROUPS


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Words:
    """A paragraph. `so` is code."""

    text: str


@dataclass(frozen=True)
class Points:
    texts: list[str]


@dataclass(frozen=True)
class Cell:
    text: str
    small: str = ""
    look: str = ""  # a class of the page: strong, good, bad, words


@dataclass
class Table:
    """rows: cells, or a string: a line that names the rows after it. sums: how many rows at the end sum up others."""

    columns: list[str]
    rows: list[list[Cell] | str]
    over: list[tuple[str, int]] = field(default_factory=list)
    sums: int = 0
    folded: str = ""  # shown on demand, under this name; HTML only


@dataclass(frozen=True)
class Charts:
    charts: list[Chart]


Block = Heading | Words | Points | Table | Charts


def _inline(text: str) -> str:
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return text.replace("GENIUS^R", "GENIUS<sup>R</sup>")


def html(block: Block) -> str:
    match block:
        case Heading():
            return f"<h{block.level}>{_inline(block.text)}</h{block.level}>"
        case Words():
            return f"<p>{_inline(block.text)}</p>"
        case Points():
            return "<ul>" + "".join(f"<li>{_inline(text)}</li>" for text in block.texts) + "</ul>"
        case Charts():
            return '<div class="figures">' + "".join(map(_html_chart, block.charts)) + "</div>"
        case Table():
            return _html_table(block)


def _html_chart(chart: Chart) -> str:
    """The drawing with colours that follow the page, and as a file with those of a light page."""
    svg = re.sub(r"<style.*?</style>", "", chart.svg, flags=re.DOTALL)  # it would hold for the whole page
    for name, (light, _) in COLOURS.items():
        svg = svg.replace(light, f"var(--c-{name})")
    label = escape(chart.name, quote=True)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    data = base64.b64encode(chart.svg.encode()).decode()
    link = f'<a download="{label}.svg" href="data:image/svg+xml;base64,{data}">SVG</a>'
    return f'<figure class="figure">{svg}<figcaption>{_inline(chart.caption)} {link}</figcaption></figure>'


def _html_table(table: Table) -> str:
    head = ""
    if table.over:
        cells = [
            f'<th colspan="{span}" class="{"over" if name else ""}">{_inline(name)}</th>' for name, span in table.over
        ]
        head = "<tr>" + "".join(cells) + "</tr>"
    first = next(row for row in table.rows if not isinstance(row, str))
    looks = ["words" if "words" in cell.look else "" for cell in first]
    names = zip(looks, table.columns, strict=True)
    head += "<tr>" + "".join(f'<th class="{look}">{_inline(name)}</th>' for look, name in names) + "</tr>"
    body = []
    for number, row in enumerate(table.rows):
        if isinstance(row, str):
            body.append(f'<tr class="part"><td colspan="{len(table.columns)}"><span>{_inline(row)}</span></td></tr>')
            continue
        look = ' class="sum"' if number >= len(table.rows) - table.sums else ""
        body.append(f"<tr{look}>" + "".join(map(_html_cell, row)) + "</tr>")
    made = f'<div class="scroll"><table><thead>{head}</thead><tbody>{"".join(body)}</tbody></table></div>'
    return f"<details><summary>{_inline(table.folded)}</summary>{made}</details>" if table.folded else made


def _html_cell(cell: Cell) -> str:
    look = f' class="{cell.look}"' if cell.look else ""
    small = f"<small>{_inline(cell.small)}</small>" if cell.small else ""
    return f"<td{look}>{_inline(cell.text)}{small}</td>"


def markdown(block: Block) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {block.text}"
        case Words():
            return block.text
        case Points():
            return "\n".join(f"- {text}" for text in block.texts)
        case Charts():
            return ""
        case Table():
            return "" if block.folded else _markdown_table(block)


def _markdown_table(table: Table) -> str:
    columns = list(table.columns)
    place = 0
    for name, span in table.over:
        if name in ("in the paper", "here"):  # the same column names stand under both
            columns[place : place + span] = [f"{column}, {name}" for column in columns[place : place + span]]
        elif name and name not in GROUPS:
            columns[place : place + span] = [f"{name} {column}" for column in columns[place : place + span]]
        place += span
    lines = [_markdown_row(columns), _markdown_row(["---", *["---:"] * (len(columns) - 1)])]
    for row in table.rows:
        if isinstance(row, str):
            lines.append(_markdown_row([f"**{row}**", *[""] * (len(columns) - 1)]))
        else:
            lines.append(_markdown_row([_markdown_cell(cell) for cell in row]))
    return "\n".join(lines)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _markdown_cell(cell: Cell) -> str:
    text = f"**{cell.text}**" if "strong" in cell.look and cell.text else cell.text
    return f"{text} ({cell.small})" if cell.small else text
