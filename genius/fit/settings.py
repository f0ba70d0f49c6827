"""Settings of a fit, and the sizes that follow from the collection."""

from dataclasses import dataclass, replace

from genius.errors import GeniusError

MIN_ITEMS = 16
MIN_CODES, MAX_CODES = 16, 256
ITEMS_PER_CODE = 16  # with fewer, the codes of k-means are single items
MAX_LEVELS = 16
HELD_BACK = (0.1, 2_000)  # share and maximum number of the items that nothing is learned from


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """What decides the result of a fit besides the collection and the encoder.

    Attributes:
        codes: Codes of each semantic level. None: 256, or fewer for fewer than 4,096 items.
        levels: Semantic levels. None: chosen by the error of held-back items, at most 16.
        layers: Layers of the decoder. 0: the decoder is the residual score, a closed form that needs no training.
        d_model: Width of the layers.
        steps: Training steps of the layers.
        sample: Maximum number of items that codebooks and decoder are learned from.
        target_error: Share of the variance that the codes may lose. Decides the number of levels.
        rounds: Maximum number of rounds of least squares after k-means.
        code_beams: Beam width when the codes of an item are chosen.
        check_items: Maximum number of items that the check searches.
        check_queries: Number of queries of the check.
        seed: Seed of all random choices.
    """

    codes: int | None = None
    levels: int | None = None
    layers: int = 0
    d_model: int = 256
    steps: int = 2_000
    sample: int = 65_536
    target_error: float = 0.1
    rounds: int = 2
    code_beams: int = 8
    check_items: int = 50_000
    check_queries: int = 300
    seed: int = 0

    def __post_init__(self) -> None:
        at_least_one = ("codes", "levels", "d_model", "steps", "sample", "code_beams", "check_items", "check_queries")
        for name, least in (dict.fromkeys(at_least_one, 1) | {"layers": 0, "rounds": 0}).items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise GeniusError(f"{name} is {value}; it must be at least {least}.")
        if self.codes is not None and not 2 <= self.codes <= 1 << 16:
            raise GeniusError(f"codes is {self.codes}; a level has 2 to {1 << 16} codes.")
        if not 0 < self.target_error < 1:
            raise GeniusError(f"target_error is {self.target_error}; it must be between 0 and 1.")

    def for_items(self, items: int) -> "FitSettings":
        """The same settings with the number of codes for a collection of this size.

        Raises:
            GeniusError: There are too few items.
        """
        if items < MIN_ITEMS:
            raise GeniusError(
                f"There are {items} items, too few to learn codes from: give at least {MIN_ITEMS}. A collection this "
                "small needs no codes; index it with the model mini."
            )
        learned = min(items - held_back(items), self.sample)
        if self.codes is None:
            codes = MAX_CODES
            while codes > MIN_CODES and codes * ITEMS_PER_CODE > items:
                codes //= 2
            return replace(self, codes=min(codes, learned))
        if self.codes > learned:
            raise GeniusError(
                f"{learned} items cannot fill {self.codes} codes per level. Give fewer codes, or more items."
            )
        return self


def held_back(items: int) -> int:
    """Number of items, of a collection of this size, that nothing is learned from."""
    return max(1, min(int(items * HELD_BACK[0]), HELD_BACK[1]))
