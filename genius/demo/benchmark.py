"""The emoji collection as a benchmark in M-BEIR layout, with all eight tasks.

The splits do not share concepts or images. A concept is an emoji regardless of skin tone, gender, colour and the like.
"""

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from genius.data.items import Modality
from genius.data.mbeir import TASKS, Candidate, Instruction, MBQuery, Task
from genius.data.mbeir_writer import write_global_pool, write_instructions, write_pool, write_queries
from genius.demo.collection import (
    ARTISTS,
    Emoji,
    EmojiCollection,
    build_collection,
    fraction,
    group_slug,
    groups,
    pair_artist,
    pair_text,
)
from genius.demo.emoji_names import SUBGROUPS, change, wordings

DATASET, DATASET_ID = "emoji", 14
SPLITS = {"train": 0.8, "val": 0.9, "test": 1.0}
"""Split -> upper end of its range in [0, 1) of concepts."""
EDITS = {"train": 1, "val": 2, "test": 2}
"""Split -> maximum number of composed queries per image in each of tasks 6, 7 and 8."""

PROMPTS = {
    0: (
        "Find the emoji picture with this name.",
        "Show me an emoji, as an image, for these words.",
        "Which emoji drawing does this name belong to? Return the picture.",
        "Look up the drawn icon that these words call for.",
    ),
    1: (
        "Find the description, as text, of the emoji that goes by this name.",
        "Return the text about the emoji that people also call this.",
        "Which written emoji description means the same as these words?",
        "Look for the text that explains the emoji with this nickname.",
    ),
    2: (
        "Find the emoji picture together with its written name.",
        "Show me an emoji and its label, picture and text, for these words.",
        "Which labelled emoji drawing belongs to this name?",
        "Look up the icon with its caption that these words call for.",
    ),
    3: (
        "Find the text that describes this emoji.",
        "Return the name and keywords, as text, of this drawn icon.",
        "Which written description belongs to this emoji picture?",
        "Say in words what this emoji shows.",
    ),
    4: (
        "Find the same emoji drawn by another artist.",
        "Show me another picture of this emoji.",
        "Which other drawing means the same as this icon? Return the image.",
        "Look up this emoji in a different drawing style.",
    ),
    6: (
        "Answer the question about this emoji with a text.",
        "Return the text that answers what is asked about the drawn icon.",
        "Which written description answers this question about the emoji picture?",
        "Use the emoji and the question to find a fitting text.",
    ),
    7: (
        "Find this emoji with the change that the words ask for.",
        "Show me the picture of the emoji variant described relative to this one.",
        "Which emoji image looks like this one after the stated change?",
        "Edit the icon as told and look up the resulting picture.",
    ),
    8: (
        "Find the changed emoji together with its written name.",
        "Show me picture and label of the emoji variant described relative to this one.",
        "Which labelled emoji drawing is this one after the stated change?",
        "Edit the icon as told and look up the resulting picture with its caption.",
    ),
}
_CANDIDATE_BASE = {"twemoji": 100_000, "openmoji": 200_000, "text": 300_000, "pair": 400_000, "group": 500_000}


Draft = tuple[str | None, str | None, list[str]]
"""A query before it gets its number: text, path of the image, ids of the relevant candidates."""


def write_emoji_benchmark(root: str | os.PathLike[str]) -> dict[str, int]:
    """Writes queries, qrels, pools, instructions and images.

    Measure recall with the pools written here: the demo's index also holds the emoji of the training split.

    Returns:
        The number of queries of each split.
    """
    root = Path(root)
    maker = _Maker(root, build_collection(root / "images" / "emoji"))
    counts = dict.fromkeys(SPLITS, 0)
    for split in SPLITS:
        union: list[Candidate] = []
        for task in (Task(dataset=DATASET, task_id=number) for number in TASKS):
            first = sum(counts.values()) + 1
            queries = maker.queries(task, split, first)
            pool = maker.pool(task, split)
            write_queries(root, task, split, queries)
            if split != "train":
                write_pool(root, task, split, pool)
            union += pool
            counts[split] += len(queries)
        write_global_pool(root, split, union)
    write_instructions(root, (Instruction(DATASET, DATASET_ID, *TASKS[task], PROMPTS[task]) for task in TASKS))
    return counts


class _Maker:
    """Makes the queries and pools of every task and split."""

    def __init__(self, root: Path, collection: EmojiCollection) -> None:
        self.root, self.collection = root, collection
        self.number = {one.key: n for n, one in enumerate(collection.emoji)}
        self.twins = self._find_twins()
        self.split = self._split_concepts()
        self.variants: dict[str, list[Emoji]] = defaultdict(list)
        for one in collection.emoji:
            self.variants[one.concept].append(one)
        self.group_text = groups(collection.emoji)

    def _find_twins(self) -> dict[tuple[str, str], list[Emoji]]:
        """(artist, key) -> the emoji with an identical image by this artist, such as 'person' and 'man walking'."""
        alike: dict[tuple[str, bytes], list[Emoji]] = defaultdict(list)
        digests = {}
        for artist in ARTISTS:
            for one in self.collection.emoji:
                digest = hashlib.sha256(self.collection.image(one, artist).read_bytes()).digest()
                digests[artist, one.key] = digest
                alike[artist, digest].append(one)
        return {(artist, key): alike[artist, digest] for (artist, key), digest in digests.items()}

    def _split_concepts(self) -> dict[str, str]:
        """Concept -> split. Concepts that share an image (mostly flags of islands) go to the same split."""
        leader = {one.concept: one.concept for one in self.collection.emoji}

        def find(concept: str) -> str:
            while leader[concept] != concept:
                concept = leader[concept]
            return concept

        for same in self.twins.values():
            for one in same[1:]:
                first, second = sorted((find(same[0].concept), find(one.concept)))
                leader[second] = first
        shares = {concept: fraction(find(concept), "split") for concept in leader}
        return {
            concept: next(split for split, end in SPLITS.items() if share < end) for concept, share in shares.items()
        }

    def emoji(self, split: str) -> list[Emoji]:
        return [one for one in self.collection.emoji if self.split[one.concept] == split]

    def pool(self, task: Task, split: str) -> list[Candidate]:
        """The candidates of a task. Val and test of task 4 search one artist's images with the other's."""
        emoji, target = self.emoji(split), task.target_modality
        if target == Modality.IMAGE:
            artists = ["openmoji"] if task.task_id == 4 and split != "train" else list(ARTISTS)
            return [Candidate(self.did(by, one), None, self.path(one, by), target) for by in artists for one in emoji]
        if target == Modality.TEXT:
            texts = [(self.did("text", one), one.caption) for one in emoji]
            if task.task_id == 6:
                texts += [(self.group_did(slug), text) for slug, text in self.group_text.items()]
            return [Candidate(did, text, None, target) for did, text in texts]
        return [
            Candidate(self.did("pair", one), pair_text(one), self.path(one, pair_artist(one)), target) for one in emoji
        ]

    def queries(self, task: Task, split: str, first: int) -> list[MBQuery]:
        """The queries of a task, numbered from `first`; queries with the same text and image are merged."""
        merged: dict[tuple[str | None, str | None], dict[str, None]] = {}
        for text, image, positives in self._drafts(task.task_id, split):
            merged.setdefault((text, image), {}).update(dict.fromkeys(positives))
        return [
            MBQuery(
                qid=f"{DATASET_ID}:{n}",
                text=text,
                image_path=image,
                modality=task.query_modality,
                positives=tuple(right),
                task_id=task.task_id,
                dataset=DATASET,
            )
            for n, ((text, image), right) in enumerate(merged.items(), start=first)
        ]

    def _drafts(self, task: int, split: str) -> Iterator[Draft]:
        for one in self.emoji(split):
            if task in (6, 7, 8):
                yield from self._edits(one, split, task)
            if not self._included(one, split, task):
                continue
            if task == 0:
                for words in filter(None, (one.name, one.nickname)):
                    yield words, None, self._images(one, ARTISTS)
            elif task == 1 and one.nickname:
                yield one.nickname, None, [self.did("text", one)]
            elif task == 2:
                yield one.name, None, [self.did("pair", one)]
            elif task == 3:
                for artist in ARTISTS:
                    same = self.twins[artist, one.key]
                    yield None, self.path(one, artist), [self.did("text", twin) for twin in same]
            elif task == 4:
                artist = self._artist(one, task) if split == "train" else "twemoji"
                other = next(name for name in ARTISTS if name != artist)
                same = self.twins[artist, one.key]
                yield None, self.path(one, artist), [did for twin in same for did in self._images(twin, [other])]
            elif task == 6:
                yield from self._group_question(one)

    def _edits(self, one: Emoji, split: str, task: int) -> Iterator[Draft]:
        """Image and a change -> the variant as text (task 6), as image (7), or as both (8)."""
        artist = self._artist(one, task)
        same = {twin.key for twin in self.twins[artist, one.key]}
        found = []
        for other in self.variants[one.concept]:
            changed = change(one.traits, other.traits)
            if changed and other.key not in same and (words := wordings(*changed)):
                found.append((fraction(one.key, other.key, str(task)), other, words))
        for chance, other, words in sorted(found, key=lambda entry: entry[0])[: EDITS[split]]:
            phrase = words[int(chance * 1e6) % len(words)]
            if task == 6:
                question, positives = f"What is this called {words[0]}?", [self.did("text", other)]
            elif task == 7:
                question, positives = phrase, self._images(other, ARTISTS)
            else:
                question, positives = phrase, [self.did("pair", other)]
            yield question, self.path(one, artist), positives

    def _group_question(self, one: Emoji) -> Iterator[Draft]:
        if "tone" in one.traits or one.subgroup not in SUBGROUPS:
            return
        questions = ("Which group does this belong to?", "What kind of thing is this?", "Of what is this an example?")
        question = questions[int(fraction(one.key, "question") * len(questions))]
        yield question, self.path(one, self._artist(one, 6)), [self.group_did(group_slug(one.subgroup))]

    def _included(self, one: Emoji, split: str, task: int) -> bool:
        """Training uses half of the flags and of the skin tones, so that they do not dominate."""
        many = "tone" in one.traits or one.subgroup == "country-flag"
        return split != "train" or not many or fraction(one.key, str(task), "asked") < 0.5

    def _artist(self, one: Emoji, task: int) -> str:
        return sorted(ARTISTS)[fraction(one.key, str(task), "asker") < 0.5]

    def _images(self, one: Emoji, artists: Iterable[str]) -> list[str]:
        return [self.did(artist, twin) for artist in artists for twin in self.twins[artist, one.key]]

    def path(self, one: Emoji, artist: str) -> str:
        return self.collection.image(one, artist).relative_to(self.root).as_posix()

    def did(self, pool: str, one: Emoji) -> str:
        return f"{DATASET_ID}:{_CANDIDATE_BASE[pool] + self.number[one.key]}"

    def group_did(self, slug: str) -> str:
        return f"{DATASET_ID}:{_CANDIDATE_BASE['group'] + list(self.group_text).index(slug)}"


if __name__ == "__main__":
    import sys

    from rich.console import Console

    if len(sys.argv) != 2:
        sys.exit("Usage: python -m genius.demo.benchmark FOLDER")
    counts = write_emoji_benchmark(sys.argv[1])
    Console().print(f"{sys.argv[1]}: queries by split: {counts}")
