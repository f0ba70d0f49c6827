"""Split items into train, val and test, so that items that belong together are in the same split."""

import random
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence

SPLITS = ("train", "val", "test")


class Groups:
    """Items that are to be in the same split (union-find).

    Args:
        count: Number of items. Each begins as a group of its own.
    """

    def __init__(self, count: int) -> None:
        self._leader = list(range(count))
        self._size = [1] * count

    def leader(self, item: int) -> int:
        """Return the item that stands for the group of an item."""
        while self._leader[item] != item:
            self._leader[item] = item = self._leader[self._leader[item]]
        return item

    def join(self, items: Iterable[int], limit: float = float("inf")) -> None:
        """Join the groups of some items, unless the group would have more than `limit` items."""
        leaders = sorted({self.leader(item) for item in items})
        if not leaders or sum(self._size[leader] for leader in leaders) > limit:
            return
        for leader in leaders[1:]:
            self._leader[leader] = leaders[0]
            self._size[leaders[0]] += self._size[leader]


def assign_splits(
    groups: Groups, strata: Sequence[Hashable], shares: Mapping[str, float], seed: int, needed: Iterable[Hashable]
) -> list[str]:
    """Return the split of each item.

    Each stratum is divided by the shares. A group is in the stratum of the first of its items.

    Args:
        groups: Items that stay together.
        strata: The stratum of each item.
        shares: Shares of val and test; the rest is train.
        seed: Seed of the random choice.
        needed: Strata that get at least one group in every split with a share, if they have enough groups.
    """
    members: dict[int, list[int]] = defaultdict(list)
    for item in range(len(strata)):
        members[groups.leader(item)].append(item)
    by_stratum: dict[Hashable, list[list[int]]] = defaultdict(list)
    for leader, items in members.items():
        by_stratum[strata[leader]].append(items)
    needed = set(needed)
    split = ["train"] * len(strata)
    for stratum, parts in by_stratum.items():
        random.Random(seed).shuffle(parts)
        total = sum(map(len, parts))
        wanted = {name: share for name, share in shares.items() if share > 0}
        at_least = 1 if stratum in needed and len(parts) > len(wanted) else 0
        for name, share in wanted.items():
            filled = 0
            while len(parts) > 1 and filled < max(at_least, round(share * total)):
                items = parts.pop()
                filled += len(items)
                for item in items:
                    split[item] = name
    return split
