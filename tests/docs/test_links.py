"""README and docs: links and their anchors lead somewhere, and every file of the project that they name exists."""

import re
from pathlib import Path

import pages
import pytest
from pages import PAGES, ROOT

FOLDERS = ("genius", "tests", "docs", "benchmarks", "examples", ".ci", ".github")


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and the documentation site make them."""
    headings = re.findall(r"^#+ (.*)$", pages.prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=pages.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", pages.prose(page)):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{pages.name(page)} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{pages.name(page)} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=pages.name)
def test_files_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path in re.findall(rf"(?<![\w/.-])((?:{'|'.join(map(re.escape, FOLDERS))})/[\w./-]*\w)", text):
        assert (ROOT / path).exists(), f"{pages.name(page)} names {path}"


def test_every_page_of_docs_is_in_the_navigation() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in ROOT.glob("docs/*.md"):
        assert f": {page.name}\n" in settings


@pytest.mark.parametrize("page", PAGES, ids=pages.name)
def test_pages_name_no_file_of_one_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"(?<![\w.])/(?:work|home|root|opt|tmp/\w)[\w/]*", text)


def test_readme_is_short_and_names_both_commands() -> None:
    readme = (ROOT / "README.md").read_bytes()
    assert len(readme) <= 10_000
    for part in (b"make demo", b"make test", b"arxiv.org/abs/2503.19868"):
        assert part in readme


def test_names_in_the_architecture_exist() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("genius/**/*.py"))
    for name in re.findall(r"`([\w.]+)`", pages.prose(ROOT / "docs/architecture.md")):
        last = name.split(".")[-1]
        assert re.search(rf"\b{last}\b", source), f"docs/architecture.md names {name}"
