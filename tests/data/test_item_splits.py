"""Items that belong together are in the same split; shares are kept."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from genius.data.item_splits import Groups, assign_splits

SHARES = {"val": 0.1, "test": 0.2}


@given(st.lists(st.sets(st.integers(0, 39), min_size=1, max_size=5), max_size=20), st.integers(0, 5))
def test_a_group_is_never_divided(joined: list[set[int]], seed: int) -> None:
    groups = Groups(40)
    for items in joined:
        groups.join(items)
    splits = assign_splits(groups, ["all"] * 40, SHARES, seed, ["all"])
    for items in joined:
        assert len({splits[item] for item in items}) == 1
    assert "train" in splits


@given(st.lists(st.sets(st.integers(0, 39), min_size=1, max_size=5), max_size=20), st.integers(1, 8))
def test_no_group_grows_beyond_the_limit(joined: list[set[int]], limit: int) -> None:
    groups = Groups(40)
    for items in joined:
        groups.join(items, limit)
    assert max(Counter(groups.leader(item) for item in range(40)).values()) <= limit


def test_shares_are_kept_in_every_stratum() -> None:
    strata = ["often"] * 100 + ["rare"] * 3 + ["not needed"] * 3 + ["too few"] * 2
    splits = assign_splits(Groups(len(strata)), strata, SHARES, 0, ["often", "rare", "too few"])
    assert Counter(splits[:100]) == {"train": 70, "val": 10, "test": 20}
    assert sorted(splits[100:103]) == ["test", "train", "val"]
    assert Counter(splits[103:106])["val"] == 0
    assert splits[106:] == ["train", "train"]


def test_the_seed_decides() -> None:
    first, again, other = (assign_splits(Groups(50), [0] * 50, SHARES, seed, [0]) for seed in (0, 0, 1))
    assert first == again
    assert first != other
