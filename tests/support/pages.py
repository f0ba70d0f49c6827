"""The Markdown pages of the project, and their code blocks, for the tests of README and docs."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CARD = ROOT / "genius/model/bundled/mini/README.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), CARD])


@dataclass(frozen=True)
class Block:
    """A fenced code block. `line` is the line of its first fence."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{name(self.page)}:{self.line}"


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(*languages: str) -> list[Block]:
    """Blocks of all pages in these languages, or all blocks."""
    found = [block for page in PAGES for block in page_blocks(page)]
    return [block for block in found if not languages or block.language in languages]


def page_blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2])


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
