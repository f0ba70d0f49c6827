"""Code in README and docs works: Python blocks run and print what the page shows, commands exist with their options."""

import contextlib
import io
import itertools
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pages
import pytest
import typer.main
from pages import ROOT, Block
from PIL import Image
from serving import copy_index, mini_model, running_server

from genius import Genius, Index, Item
from genius.cli.app import app
from genius.train.config import TrainConfig

SERVICE = "http://127.0.0.1:8000"
WITH_PYTHON = list(dict.fromkeys(block.page for block in pages.blocks("python")))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that pages take for granted, in the current folder: images, and an index."""
    monkeypatch.chdir(tmp_path)
    mini, load = mini_model(), Genius.from_pretrained
    monkeypatch.setattr(Genius, "from_pretrained", lambda name: mini if name == "mini" else load(name))
    for file, colour in (("cat.jpg", "orange"), ("dress.jpg", "red")):
        Image.new("RGB", (64, 64), colour).save(file)
    Index.create("photos.genius", mini).add([Item("cat.jpg", image="cat.jpg"), Item("care", text="How to groom a cat")])
    return tmp_path


@pytest.mark.parametrize("page", WITH_PYTHON, ids=pages.name)
def test_python_blocks_run_and_print_what_the_page_shows(page: Path, folder: Path) -> None:
    blocks = list(pages.page_blocks(page))
    namespace: dict[str, object] = {}
    with service_if_asked(blocks, folder) as url:
        for block, after in itertools.zip_longest(blocks, blocks[1:]):
            if block.language != "python":
                continue
            printed = io.StringIO()
            code = "\n" * block.line + block.text.replace(SERVICE, url)
            with contextlib.redirect_stdout(printed):
                exec(compile(code, str(page), "exec"), namespace)
            if after is not None and after.language == "text" and between(block, after) == "":
                assert printed.getvalue() == after.text, str(block)


@contextlib.contextmanager
def service_if_asked(blocks: list[Block], folder: Path) -> Iterator[str]:
    if not any(SERVICE in block.text for block in blocks if block.language == "python"):
        yield SERVICE
        return
    with running_server(copy_index(folder, "served.genius")) as server:
        yield server.url


def between(first: Block, second: Block) -> str:
    lines = first.page.read_text(encoding="utf-8").splitlines()
    return "".join(lines[first.line + first.text.count("\n") + 1 : second.line - 1]).strip()


def test_the_readme_example_has_twelve_lines() -> None:
    (block,) = [block for block in pages.blocks("python") if block.page == ROOT / "README.md"]
    assert len(block.text.splitlines()) <= 12


def commands(*programs: str) -> list[tuple[Block, list[str]]]:
    """Command lines in shell blocks that call one of these programs, as words."""
    found = []
    for block in pages.blocks("sh"):
        text = block.text.replace("\\\n", " ")
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] in programs:
                found.append((block, words))
    return found


def inline_commands() -> list[tuple[Path, list[str]]]:
    """Command lines between backticks in the text. Some are only a name, such as `genius index add`."""
    return [
        (page, shlex.split(code))
        for page in pages.PAGES
        for code in re.findall(r"`(genius [a-z][^`]*)`", pages.prose(page).replace("\n", " "))
    ]


def parse(words: list[str]) -> tuple[list[str], list[str]]:
    """Parse a command line as `genius` would. Options and commands that do not exist raise.

    Returns: arguments that are too many, and required parameters that are missing.
    """
    command, context, rest = typer.main.get_command(app), None, words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        context = typer.Context(command, parent=context)
        command = command.commands[rest.pop(0)]  # type: ignore[attr-defined]
    values, extra, _ = command.make_parser(typer.Context(command, parent=context)).parse_args(args=rest)
    given = {name for name, value in values.items() if value}
    return extra, [one.name for one in command.params if one.required and one.name not in given]


@pytest.mark.parametrize(("block", "words"), commands("genius"), ids=str)
def test_genius_commands_in_blocks_are_complete(block: Block, words: list[str]) -> None:
    extra, missing = parse(words)
    assert not extra, f"{block}: {' '.join(words)}"
    assert not missing or "--new-key" in words, f"{block}: {' '.join(words)}"


def test_genius_commands_in_the_text_exist() -> None:
    for page, words in inline_commands():
        if page.name == "CHANGELOG.md":  # names old ones too
            continue
        extra, _ = parse(words)
        assert not extra, f"{pages.name(page)}: {' '.join(words)}"


@pytest.mark.parametrize(("block", "words"), commands("make"), ids=str)
def test_make_targets_exist(block: Block, words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in words[1:]:
        assert "=" in target or re.search(rf"^{target}:", makefile, re.MULTILINE), f"{block}: make {target}"


@pytest.mark.parametrize(("block", "words"), commands("python"), ids=str)
def test_scripts_exist_and_have_the_options(block: Block, words: list[str]) -> None:
    path = ROOT / (words[2].replace(".", "/") + ".py" if words[1] == "-m" else words[1])
    assert path.is_file(), f"{block}: {path.name}"
    source = path.read_text(encoding="utf-8")
    for option in (word for word in words if word.startswith("--")):
        assert f'"{option}"' in source, f"{block}: {path.name} has no option {option}"


def test_extras_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page in pages.PAGES:
        for named in re.findall(r"genius-search\[([\w,]+)\]", page.read_text(encoding="utf-8")):
            assert set(named.split(",")) <= set(extras), f"{pages.name(page)}: [{named}]"


@pytest.mark.parametrize("block", pages.blocks("toml"), ids=str)
def test_settings_exist(block: Block, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(block.text, encoding="utf-8")
    assert TrainConfig.read(tmp_path / "settings.toml") != TrainConfig()


def test_every_block_names_its_language() -> None:
    assert not [str(block) for block in pages.blocks() if block.language == ""]


def test_hooks_use_the_pinned_ruff() -> None:
    pinned = re.search(r"^ruff==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert pinned is not None
    assert f"rev: v{pinned[1]} " in hooks


def test_ci_calls_targets_of_the_makefile() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"run: make (\w+)", workflow)
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
