"""SearchOptions: how to search, with the defaults of every entry point in one place."""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, TypedDict, Unpack, get_args

from genius.errors import GeniusError

Mode = Literal["generate", "rerank", "fast"]
MODES: tuple[Mode, ...] = get_args(Mode)
MIN_BUDGET = 1000
PATTERN = re.compile(r"(\*|[0-9]{1,6})(-(\*|[0-9]{1,6})){0,99}")


def automatic_budget(items: int) -> int:
    """Number of items that mode "fast" ranks by similarity unless the user chooses another, by the number of items.

    The number grows a little more slowly than the collection, so that the share of the ten nearest items that is found
    stays above 95 %. docs/search.md has the measurements.
    """
    return max(MIN_BUDGET, round(math.pow(items, 0.75) / 18))


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How to search. Index, service, client, command line and MCP all take their defaults from here.

    Attributes:
        k: Number of hits per query.
        mode: "generate" ranks IDs by log-probability (the paper's GENIUS). "rerank" ranks the items under the
            generated IDs by similarity (GENIUS^R). "fast" leaves the modality to the decoder, takes
            the `budget` items of it that are nearest to the query by their codes, and ranks these by similarity.
        beam: Number of IDs decoded at once, not used in mode "fast". Values below `k` act as `k`.
        budget: Maximum number of items ranked by similarity in mode "fast". Values below `k` act as `k`. None: see
            `automatic_budget`.
        where: SQL filter on id, text, modality and metadata, such as "lang = 'en' AND year >= 2000".
        ids: Search only these items.
        branch: Search only items whose IDs match this pattern of codes, such as "0-17": see `parse_pattern`.

    Raises:
        GeniusError: A value is out of range, or the mode does not exist.
    """

    k: int = 10
    mode: Mode = "fast"
    beam: int = 50
    budget: int | None = None
    where: str | None = None
    ids: Collection[str] | None = None
    branch: str | None = None

    def __post_init__(self) -> None:
        for name in ("k", "beam", "budget"):
            if name != "budget" or self.budget is not None:
                object.__setattr__(self, name, whole_number(name, getattr(self, name), at_least=1))
        if isinstance(self.ids, str):
            raise GeniusError(f"ids is the string {self.ids!r}. Write a list of ids.")
        if self.ids is not None and (
            not isinstance(self.ids, Collection) or not all(isinstance(id, str) for id in self.ids)
        ):
            raise GeniusError("ids must be a list of strings.")
        if self.where is not None and not isinstance(self.where, str):
            raise GeniusError(f"where is {self.where!r}; it must be a string, such as \"lang = 'en'\".")
        if self.branch is not None:
            parse_pattern(self.branch)
        if self.mode not in MODES:
            raise GeniusError(f"There is no search mode {self.mode!r}. Choose one of {', '.join(MODES)}.")


class SearchKeywords(TypedDict, total=False):
    """The fields of `SearchOptions` but `k`, as keyword arguments."""

    mode: Mode
    beam: int
    budget: int | None
    where: str | None
    ids: Collection[str] | None
    branch: str | None


def parse_pattern(pattern: str) -> tuple[int | None, ...]:
    """The codes of a pattern: codes joined by "-", a star for any code. It matches IDs that start with these codes.

    >>> parse_pattern("0-17"), parse_pattern("*-17")
    ((0, 17), (None, 17))

    Raises:
        GeniusError: The text is not a pattern.
    """
    if not isinstance(pattern, str) or not PATTERN.fullmatch(pattern):
        raise GeniusError(f"{pattern!r} is not a pattern of codes. Write codes joined by -, as in 0-17 or *-17.")
    return tuple(None if code == "*" else int(code) for code in pattern.split("-"))


def whole_number(name: str, value: object, at_least: int) -> int:
    """Return a whole number, such as an int or one of numpy's, as an int.

    Raises:
        GeniusError: The value is not a whole number, or is too small.
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise GeniusError(f"{name} is {value!r}; it must be a whole number.")
    if int(value) < at_least:
        raise GeniusError(f"{name} is {value}; it must be at least {at_least}.")
    return int(value)


def search_options(k: int, **options: Unpack[SearchKeywords]) -> SearchOptions:
    """Build the options of a search from keyword arguments.

    Raises:
        GeniusError: An option does not exist, or its value is not valid.
    """
    for name in options:
        if name in ("target", "instruction"):
            raise GeniusError(f"{name} belongs to the query. Write Query(text=..., {name}={options[name]!r}).")  # type: ignore[literal-required]
        if name not in SearchKeywords.__annotations__:
            known = ", ".join(["k", *SearchKeywords.__annotations__])
            raise GeniusError(f"A search has no option {name!r}. The options are {known}.")
    return SearchOptions(k=k, **options)
