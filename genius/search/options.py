"""SearchOptions: how to search, with the defaults of every entry point in one place."""

from collections.abc import Collection
from dataclasses import dataclass
from numbers import Integral
from typing import Literal, TypedDict, get_args

from genius.errors import GeniusError

Mode = Literal["generate", "rerank", "fast"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How to search. Index, service, client, command line and MCP all take their defaults from here.

    Attributes:
        k: Number of hits per query.
        mode: "generate" ranks IDs by log-probability (the paper's GENIUS). "rerank" ranks the items under the
            generated IDs by similarity (GENIUS^R). "fast" stops decoding once at most `budget` items lie under the
            beams and ranks all of them by similarity.
        beam: Number of IDs decoded at once. Values below `k` act as `k`.
        budget: Maximum number of items ranked by similarity in mode "fast". Values below `k` act as `k`.
        where: SQL filter on id, text, modality and metadata, such as "lang = 'en' AND year >= 2000".
        ids: Search only these items.

    Raises:
        GeniusError: A value is out of range, or the mode does not exist.
    """

    k: int = 10
    mode: Mode = "fast"
    beam: int = 50
    budget: int = 1000
    where: str | None = None
    ids: Collection[str] | None = None

    def __post_init__(self) -> None:
        for name in ("k", "beam", "budget"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool):
                raise GeniusError(f"{name} is {value!r}; it must be a whole number.")
            if int(value) < 1:
                raise GeniusError(f"{name} is {value}; it must be at least 1.")
        if isinstance(self.ids, str):
            raise GeniusError(f"ids is the string {self.ids!r}. Write a list of ids.")
        if self.mode not in MODES:
            raise GeniusError(f"There is no search mode {self.mode!r}. Choose one of {', '.join(MODES)}.")


class SearchKeywords(TypedDict, total=False):
    """The fields of `SearchOptions` but `k`, as keyword arguments."""

    mode: Mode
    beam: int
    budget: int
    where: str | None
    ids: Collection[str] | None
