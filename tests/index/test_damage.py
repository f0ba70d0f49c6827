"""Damage to any byte of any file of an index: no panic, no traceback, and `verify` names the file."""

import io
import logging
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fakes import draw_image, tiny_model

from genius.cli.app import main
from genius.data.items import Item, Query
from genius.errors import GeniusError
from genius.index.checksums import manifests, version_files
from genius.index.folder import open_folder
from genius.index.index import Index
from genius.index.verify import IndexProblem
from genius.model.genius import Genius


def things(prefix: str, count: int = 20) -> list[Item]:
    """Texts with metadata; some have an image as well."""
    made = []
    for number in range(count):
        image = io.BytesIO()
        draw_image(("red", "green", "blue")[number % 3]).save(image, "PNG")
        content = image.getvalue() if number % 4 == 0 else None
        made.append(Item(f"{prefix}{number}", f"thing {prefix} {number}", content, {"n": number, "kind": prefix}))
    return made


@pytest.fixture(scope="module")
def model() -> Genius:
    return tiny_model()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, model: Genius) -> Path:
    """Several fragments, a deletion file, metadata fields, stored images, embeddings."""
    path = tmp_path_factory.mktemp("damage") / "index"
    index = Index.create(path, model)
    for prefix in "abc":
        index.add(things(prefix))
    index.delete(["b3", "b4"])
    index.upsert([Item("c5", "another text", metadata={"n": 5, "new": True})])
    assert index.verify(deep=True) == []
    assert index.files_without_checksum() == []
    return path


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "index")
    return tmp_path / "index"


def files(path: Path) -> list[Path]:
    return [file for file in sorted(path.rglob("*")) if file.is_file() and file.stat().st_size]


@contextmanager
def changed(file: Path, content: bytes | None) -> Iterator[None]:
    """A file with other content, or none; afterwards as it was."""
    before = file.read_bytes()
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    yield
    file.write_bytes(before)


def attempt(outcomes: Counter[str], name: str, call: Callable[[], object]) -> object:
    """Call, and allow only errors of this package."""
    try:
        result = call()
        outcomes[f"{name}: answered"] += 1
        return result
    except GeniusError as error:
        outcomes[f"{name}: refused"] += 1
        outcomes["source files of Lance named"] += ".rs:" in str(error)
        return None


def find_problems(path: Path, model: Genius) -> list[IndexProblem]:
    """As `genius index verify` finds them."""
    try:
        return Index.open(path, model).verify(sample=0)
    except GeniusError:
        return Index.verify_files(path)


def use(path: Path, model: Genius, outcomes: Counter[str]) -> None:
    """Everything that reads."""
    index = attempt(outcomes, "open", lambda: Index.open(path, model))
    if isinstance(index, Index):
        attempt(outcomes, "search", lambda: index.search(Query(text="thing b 2"), k=60))
        attempt(outcomes, "filter", lambda: index.filter("n > 3"))
        attempt(outcomes, "get", lambda: index.get(["a1", "c5"]))
        attempt(outcomes, "items", lambda: list(index.items()))
        attempt(outcomes, "versions", index.versions)
        attempt(outcomes, "info", index.info)
        attempt(outcomes, "coded", lambda: index.browse_codes([0]))


def flip_bits(path: Path, model: Genius, flips: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Flip single bits anywhere. Returns what came of it, and the flips that `verify` did not name."""
    generator, everything = random.Random(seed), files(path)
    sizes = [file.stat().st_size for file in everything]
    outcomes: Counter[str] = Counter()
    unnamed = []
    for _ in range(flips):
        (file,) = generator.choices(everything, sizes)
        content = bytearray(file.read_bytes())
        bit = generator.randrange(len(content) * 8)
        content[bit // 8] ^= 1 << bit % 8
        with changed(file, bytes(content)):
            use(path, model, outcomes)
            problems = find_problems(path, model)
            if not any(str(file) in problem.message for problem in problems):
                unnamed.append(f"{file.relative_to(path)}, bit {bit}")
    outcomes["flips"] = flips
    logging.getLogger(__name__).info("%s", dict(outcomes))  # shown by --log-cli-level=info
    return outcomes, unnamed


def test_flipped_bits_are_named(path: Path, model: Genius) -> None:
    outcomes, unnamed = flip_bits(path, model, 60, seed=1)
    assert unnamed == []
    assert outcomes["source files of Lance named"] == 0
    assert outcomes["search: answered"] > 5
    assert outcomes["search: refused"] > 5
    assert Index.open(path, model).verify(deep=True) == []


@pytest.mark.slow
def test_two_thousand_flipped_bits_are_named(path: Path, model: Genius) -> None:
    outcomes, unnamed = flip_bits(path, model, 2000, seed=0)
    assert unnamed == []
    assert outcomes["open: refused"] > 20
    assert Index.open(path, model).verify(deep=True) == []


@pytest.mark.parametrize("kind", ["_versions", "_deletions", "_transactions", "checksums"])
def test_every_bit_of_small_files_is_named(path: Path, model: Genius, kind: str) -> None:
    """Files whose damage makes Lance panic or end the process: some bits of each byte of the newest one."""
    file = max((file for file in files(path) if kind in file.parts), key=lambda file: file.stat().st_mtime_ns)
    content, outcomes, generator = file.read_bytes(), Counter[str](), random.Random(2)
    for place in sorted(generator.sample(range(len(content)), min(len(content), 60))):
        flipped = bytes([content[place] ^ 1 << generator.randrange(8)])
        with changed(file, content[:place] + flipped + content[place + 1 :]):
            use(path, model, outcomes)
            assert any(str(file) in problem.message for problem in find_problems(path, model))


def damages(content: bytes, other: bytes, generator: random.Random) -> dict[str, bytes | None]:
    """Kinds of damage besides flipped bits."""
    place = generator.randrange(len(content))
    return {
        "truncated": content[:place],
        "empty": b"",
        "missing": None,
        "longer": content + bytes(100),
        "zeros": content[:place] + bytes(len(content[place : place + 512])) + content[place + 512 :],
        "all zeros": bytes(len(content)),
        "swapped": other,
        "noise": content[:place] + generator.randbytes(64) + content[place + 64 :],
    }


@pytest.mark.parametrize(
    "rounds", [pytest.param(1, id="one round"), pytest.param(6, id="six rounds", marks=pytest.mark.slow)]
)
def test_no_damage_goes_unnamed(path: Path, model: Genius, rounds: int) -> None:
    generator, outcomes, unnamed = random.Random(3), Counter[str](), []
    groups: dict[str, list[Path]] = {}
    for file in files(path):
        groups.setdefault(file.parent.name, []).append(file)
    for group in groups.values():
        chosen = group if rounds > 1 else generator.sample(group, min(len(group), 2))
        for file in chosen * rounds:
            others = [other for other in files(path) if other.suffix == file.suffix and other != file]
            other = generator.choice(others).read_bytes() if others else b"?"
            for kind, content in damages(file.read_bytes(), other, generator).items():
                if content == file.read_bytes():
                    continue
                with changed(file, content):
                    outcomes[kind] += 1
                    use(path, model, outcomes)
                    if not any(str(file) in problem.message for problem in find_problems(path, model)):
                        unnamed.append((kind, str(file.relative_to(path))))
    logging.getLogger(__name__).info("%s", dict(outcomes))
    dataset = Index.open(path, model).dataset
    needed = {
        f"items.lance/{name}" for name in [*version_files(dataset), manifests(open_folder(path))[dataset.version]]
    }
    for kind, name in unnamed:  # files that only older versions need may go, as `compact` removes them
        assert kind == "missing", (kind, name)
        assert name not in needed


def test_the_newest_manifest_cannot_go_missing_unseen(path: Path, model: Genius) -> None:
    newest = min((path / "items.lance" / "_versions").glob("*.manifest"))
    with changed(newest, None):
        problems = Index.open(path, model).verify(sample=0)
    assert [problem.kind for problem in problems if str(newest) in problem.message] == ["version"]


def test_damage_is_said_in_one_sentence_by_every_command(path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(Genius, "from_pretrained", lambda name: tiny_model())
    newest = min((path / "items.lance" / "_versions").glob("*.manifest"))
    newest.write_bytes(newest.read_bytes()[:-40])
    commands = [
        ["index", "verify", str(path)],
        ["index", "info", str(path)],
        ["index", "add", str(path), str(path.parent)],
        ["index", "compact", str(path)],
        ["index", "export", str(path), str(path.parent / "out.jsonl")],
        ["search", str(path), "a thing"],
    ]
    for command in commands:
        with pytest.raises(SystemExit) as exit:
            main(command)
        said = capsys.readouterr().err
        assert exit.value.code == 1, command
        assert str(newest) in said, command
        assert f"genius index restore {path}" in said, command
        assert "Traceback" not in said


def test_an_index_without_checksums_is_not_damaged(path: Path, model: Genius, monkeypatch, capsys) -> None:
    shutil.rmtree(path / "checksums")  # as earlier releases left it
    index = Index.open(path, model)
    assert index.verify() == []
    assert len(index.files_without_checksum()) == len(version_files(index.dataset)) + 1
    index.add(things("d"))
    assert index.verify() == []
    assert index.files_without_checksum() != []
    monkeypatch.setattr(Genius, "from_pretrained", lambda name: tiny_model())
    with pytest.raises(SystemExit) as exit:
        main(["index", "verify", str(path), "--sample", "0"])
    assert "No checksum recorded for" in capsys.readouterr().out
    assert exit.value.code == 1  # the model was never saved
    index.compact()
    assert index.files_without_checksum() == []
    assert index.verify() == []


def test_a_panic_becomes_an_error_and_an_interrupt_stays_one(path: Path, model: Genius) -> None:
    """Without checksums, some damaged manifests still reach Lance."""
    shutil.rmtree(path / "checksums")
    newest = min((path / "items.lance" / "_versions").glob("*.manifest"))
    content = newest.read_bytes()
    with changed(newest, content.replace(b"uint16", b"uint56")), pytest.raises(GeniusError, match="cannot be read"):
        Index.open(path, model)
    index = Index.open(path, model)

    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(index.dataset), "to_table", interrupt)
        with pytest.raises(KeyboardInterrupt):
            index.get("a1")


def test_checksums_follow_every_kind_of_write(path: Path, model: Genius) -> None:
    index = Index.open(path, model)
    for write in (
        lambda: index.add(things("e")),
        lambda: index.delete("e1"),
        lambda: index.upsert([Item("e2", "changed")]),
        lambda: index.reindex(),
        lambda: index.compact(),
    ):
        write()
        recorded = sorted(int(file.stem) for file in (path / "checksums").iterdir())
        assert recorded[-1] == index.version
        assert index.files_without_checksum() == []
        assert index.verify() == []
    assert os.listdir(path) == [name for name in os.listdir(path) if name != "quarantine"]
