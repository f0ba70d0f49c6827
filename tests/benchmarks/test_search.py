"""The benchmark of searching: the published path is our decoder, counts are right, results are kept and written."""

import functools
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.progress import Progress

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import flops  # noqa: E402
import material  # noqa: E402
import search  # noqa: E402
import search_results as figures_module  # noqa: E402
from published import PrefixTree, Published  # noqa: E402
from search_results import BEGIN, END, Row, SearchResults, TrieRow, sheets, write_page  # noqa: E402

from genius.errors import GeniusError  # noqa: E402
from genius.model.decoder_config import SPECIALS, DecoderConfig  # noqa: E402
from genius.networks.decoder import Decoder  # noqa: E402
from genius.search.beam import beam_search  # noqa: E402
from genius.search.trie import Trie  # noqa: E402

SIZES = (3, 5, 4, 6)
SMALL: dict[str, Any] = {"d_model": 16, "layers": 2, "heads": 2, "d_kv": 8, "d_ff": 32, "prefix": 3}


def decoder(**changes: Any) -> Decoder:
    torch.manual_seed(0)
    return Decoder(DecoderConfig(8, SIZES, **(SMALL | changes))).eval()


def some_codes(count: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.stack([rng.integers(0, size, count) for size in SIZES], axis=1).astype(np.uint16)


def some_queries(count: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, 8), dtype=np.float32)


# The published path


def test_published_beams_are_ours() -> None:
    model, codes, z = decoder(whole_vocabulary=True), some_codes(60), some_queries(4)
    trie = Trie(codes)
    ids, logprob = Published(model.runtime(), codes).scored(z, 10)
    for query, beams in enumerate(beam_search(model.runtime(), trie, z, 10)):
        assert trie.ids(beams.lo).tolist() == ids[query].tolist()
        np.testing.assert_allclose(logprob[query], beams.logprob, atol=1e-4)


def test_published_search_does_not_depend_on_scores_being_asked_for() -> None:
    path, z = Published(decoder().runtime(), some_codes(60)), some_queries(2)
    assert (path.search(z, 7) == path.scored(z, 7)[0]).all()


def test_published_path_scores_the_whole_vocabulary() -> None:
    model, codes, z = decoder(whole_vocabulary=True), some_codes(30), some_queries(1)
    ids, logprob = Published(model.runtime(), codes).scored(z, 5)
    with torch.inference_mode():
        expected = model(torch.from_numpy(z).expand(5, -1), torch.from_numpy(ids[0])).sum(1)
    np.testing.assert_allclose(logprob[0], expected.numpy(), atol=1e-4)


def test_prefix_tree_says_what_follows() -> None:
    codes = np.array([[0, 1, 2], [0, 1, 3], [2, 0, 0], [0, 1, 2]])
    sizes = (3, 4, 5)
    tree, starts = PrefixTree(codes, sizes), np.cumsum([SPECIALS, *sizes])[:-1]

    def follow(*prefix: int) -> list[int]:
        tokens = [0, *(code + start for code, start in zip(prefix, starts, strict=False))]
        return [tree(0, torch.tensor(tokens)) for _ in range(2)][1]  # from memory

    assert follow() == [starts[0], starts[0] + 2]
    assert follow(0, 1) == [starts[2] + 2, starts[2] + 3]
    assert follow(0, 1, 3) == [1]
    assert follow(1) == [0]


# Counting


@pytest.mark.parametrize("given", [False, True])
def test_flops_are_those_of_the_rows(given: bool) -> None:
    config, queries, width, inner = decoder().config, 2, 7, 16
    prefix = 2 * queries * (8 * 3 * 16 + 2 * (3 * 16 * 2 * inner))
    row = 2 * 2 * (16 * 3 * inner + 16 * inner + 2 * inner * 16 + 2 * 16 * 32)
    modalities = 1 if given else 3
    rows = queries * (1 + modalities + width)  # the start token, the modality codes, the beams' first codes
    scored = queries * ((0 if given else 3) + modalities * 5 + width * 4)  # logits of levels 0, 1 and 2
    products = flops.ours(config, queries, width, decided=3, given=given, tails=False)
    assert flops.flops(products) == prefix + rows * row + 2 * 16 * scored
    whole = flops.ours(config, queries, width, decided=3, given=given, tails=True)
    assert flops.flops(whole) - flops.flops(products) == queries * width * (row + 2 * 16 * 6)


def test_flops_of_residual_inputs_and_scores() -> None:
    plain, changed = decoder().config, decoder(residual_input=True, residual_gain=1.0).config
    without, found = (flops.ours(config, 1, 7, 3, True, False) for config in (plain, changed))
    rows, scored = 1 + 1 + 7, 1 * 5 + 7 * 4  # tokens, logits of levels 1 and 2; the modality is given
    more = 2 * 8 * (16 + changed.vocabulary + rows * 16 + scored)
    assert flops.flops(found) - flops.flops(without) == more


def test_flops_of_the_published_path() -> None:
    config, width = decoder().config, 7
    products = flops.published(config, 1, width)
    assert products[width, 16, config.vocabulary] == 4
    assert products[width * 3, 16, 32] == 2  # keys and values of the prefix, a copy for each beam
    assert flops.flops(products) > flops.flops(flops.ours(config, 1, width, 4, False, True))


def test_products_are_timed_once_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[flops.Shape] = []

    def half_a_second(shape: flops.Shape, threads: int) -> float:
        timed.append(shape)
        return 0.5

    monkeypatch.setattr(flops, "product_seconds", half_a_second)
    machine, threads = flops.Machine(), torch.get_num_threads()
    products: flops.Products = Counter({(1, 2, 3): 4, (2, 2, 3): 1})
    assert machine.seconds(products, threads) == machine.seconds(products, threads) == 2.5
    assert len(timed) == 2


def test_a_product_takes_time() -> None:
    assert flops.product_seconds((2, 3, 4), 1) > 0


# What is searched


def test_drawn_ids_go_where_the_decoder_goes() -> None:
    model = decoder()
    with Progress(disable=True) as progress:
        codes = material.likely_codes(model.runtime(), some_queries(16), 5000, progress)
        fewer = material.likely_codes(model.runtime(), some_queries(16), 50, progress)
    assert (fewer == codes[:50]).all()
    assert codes.shape == (5000, 4)
    assert (codes < np.array(SIZES)).all()
    np.testing.assert_allclose(np.bincount(codes[:, 0]) / 5000, 1 / 3, atol=0.03)
    with torch.inference_mode():
        z = torch.from_numpy(some_queries(16)).repeat(3, 1)
        some = torch.from_numpy(some_codes(48).astype(np.int64))
        some[:, 0] = torch.arange(3).repeat_interleave(16)
        liked = model.logits(z, some)[1].mean(0).softmax(0)
    np.testing.assert_allclose(np.bincount(codes[:, 1], minlength=5) / 5000, liked.numpy(), atol=0.05)
    assert liked.max() > 1.5 * liked.min()


# Measuring, with a decoder and collections that take no time


@pytest.fixture
def tiny_comparison(monkeypatch: pytest.MonkeyPatch) -> type[search.Comparison]:
    config = DecoderConfig(8, (3, 4, 4, 4), **SMALL)

    class Tiny(search.Comparison):
        def make(self, size: int, queries: int) -> material.Material:
            return material.paper_material(size, queries, self.progress, config)

    monkeypatch.setattr(search, "TURN", 0.0)
    monkeypatch.setattr(search, "BEAM", 4)
    monkeypatch.setitem(search.DECODERS, "paper", Tiny)
    return Tiny


def settings(tmp_path: Path, sizes: list[int]) -> search.Settings:
    return search.Settings(sizes, [torch.get_num_threads()], [1, 2], search.QUICK, tmp_path)


def measured(results: SearchResults, sizes: list[int]) -> None:
    from rich.console import Console

    search.measure(results, ["paper"], settings(results.path.parent, sizes), Console(quiet=True))


def test_what_is_measured_is_not_measured_again(
    tmp_path: Path, tiny_comparison: type[search.Comparison], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "search.json"
    measured(SearchResults.read(path), [50])
    first = SearchResults.read(path)
    assert {(row.method, row.target) for row in first.rows.values()} == {
        ("published", ""),
        *((mode, target) for mode in ("generate", "rerank", "fast") for target in ("open", "given", "int8")),
    }
    assert len(first.rows) == 20
    assert all(row.milliseconds > 0 and row.limit and row.gflop for row in first.rows.values())
    assert first.tries["paper", 50].bytes_per_item > 0

    gone = first.get("paper", 50, torch.get_num_threads(), 2, "fast", "open")
    assert gone is not None
    del first.rows[gone.key]
    first.write()
    ran: list[tuple[str, str]] = []
    race = search.race

    def watched(contenders: dict[tuple[str, str], search.Contender], *rest: Any) -> None:
        ran.extend(contenders)
        race(contenders, *rest)

    monkeypatch.setattr(search, "race", watched)
    again = SearchResults.read(path)
    measured(again, [50])
    assert ran == [("fast", "open")]
    assert {key: row for key, row in again.rows.items() if key != gone.key} == first.rows
    assert gone.key in SearchResults.read(path).rows


def test_chosen_methods_alone_are_measured(tmp_path: Path, tiny_comparison: type[search.Comparison]) -> None:
    from rich.console import Console

    results = SearchResults.read(tmp_path / "search.json")
    only_fast = replace(settings(tmp_path, [50]), methods=["fast"])
    search.measure(results, ["paper"], only_fast, Console(quiet=True))
    assert {row.method for row in results.rows.values()} == {"fast"}
    measured(results, [50])
    assert {row.method for row in results.rows.values()} == {"published", "generate", "rerank", "fast"}


def test_eight_bits_are_those_of_the_decoder(tmp_path: Path, tiny_comparison: type[search.Comparison]) -> None:
    results = SearchResults(tmp_path / "search.json")
    with Progress(disable=True) as progress:
        comparison = tiny_comparison(results, settings(tmp_path, [50]), flops.Machine(), progress)
        comparison.material = comparison.make(50, 4)
    comparison.use_model(comparison.material.make_model(), 50)
    rounded, plain = (searcher.model.decoder for searcher in (comparison.rounded, comparison.searcher))
    assert (rounded.int8, plain.int8) == (True, False)
    assert rounded.weights is plain.weights


def test_methods_take_turns() -> None:
    order: list[str] = []
    contenders = {
        (name, ""): search.Contender(functools.partial(order.append, name), rounds)
        for name, rounds in (("a", 2), ("b", 1))
    }
    with Progress(disable=True) as progress:
        search.race(contenders, "", progress, turn=0.0)
    assert order == ["a", "b", "a", "b", "a"]
    assert all(contender.best < 1 for contender in contenders.values())


def test_a_graph_that_takes_too_long_is_left_out(tmp_path: Path) -> None:
    results = SearchResults(tmp_path / "search.json")
    with Progress(disable=True) as progress:
        comparison = search.MiniComparison(results, settings(tmp_path, [10]), flops.Machine(), progress)
    assert ("hnsw", "") in comparison.methods(1_000_000, 1)
    results.add([Row("mini", 100_000, 1, 1, "hnsw", "", 1.0, False, build_seconds=60.0)])
    assert comparison.hnsw_seconds(1_000_000) == pytest.approx(60 * 10 * 6 / 5)
    assert ("hnsw", "") in comparison.methods(1_000_000, 1)
    assert ("hnsw", "") not in comparison.methods(5_600_000, 1)
    assert ("flat", "") in comparison.methods(5_600_000, 1)


# Showing


def some_figures(path: Path) -> SearchResults:
    results = SearchResults(path, "a machine", {"paper": "drawn IDs"})
    rows = [
        Row("paper", items, 1, 1, method, target, milliseconds, False, gflop=1.0, limit=10.0)
        for items in (10_000, 1_000_000)
        for method, target, milliseconds in (("published", "", 1200.0), ("fast", "open", 40.0), ("fast", "given", 30.0))
    ]
    mini = [
        Row("mini", 10_000, 1, 1, "flat", "", 2.0, True, found=1.0, bytes_per_item=1024.0, build_seconds=0.1),
        Row("mini", 10_000, 1, 1, "fast", "open", 0.5, False, found=0.9, bytes_per_item=532.0, build_seconds=1.0),
    ]
    results.add(rows + mini, [TrieRow("paper", 10_000, 0.01, 24.0, 12.25)])
    return results


def test_figures_survive_their_file(tmp_path: Path) -> None:
    results = some_figures(tmp_path / "search.json")
    assert SearchResults.read(results.path) == results
    assert not SearchResults.read(tmp_path / "none.json").rows
    results.path.write_text('{"rows": 3}')
    with pytest.raises(GeniusError, match="measure again"):
        SearchResults.read(results.path)


def test_tables_hold_the_ratios(tmp_path: Path) -> None:
    text = "\n".join(sheet.markdown() for sheet in sheets(some_figures(tmp_path / "search.json")))
    assert "| published path / `fast`, paper's size, 1M IDs | 30.00 | 1 | 1 |" in text
    assert "| Faiss flat / `fast`, mini, 10k items | 4.00* | 1 | 1 |" in text
    assert "| `fast` | 1 | 40 (30×) | 40 (30×) |" in text
    assert "| Faiss flat | 1 | 2* |" in text
    assert "| `fast` | paper, 1M | 1 | 1 | 1.00 | 100 | 10 | 40 | 4.00 |" in text


def test_page_is_written_between_its_marks(tmp_path: Path) -> None:
    results, page = some_figures(tmp_path / "search.json"), tmp_path / "performance.md"
    page.write_text(f"Before.\n{BEGIN}\nold\n{END}\nAfter.\n")
    image = tmp_path / "search.png"
    figures_module.plot(results, image, 1, 1)
    write_page(results, page, image)
    written = page.read_text()
    assert written.startswith(f"Before.\n{BEGIN}\n")
    assert written.endswith(f"{END}\nAfter.\n")
    assert "old" not in written
    assert "a machine" in written
    assert "(performance.png)" in written
    assert (tmp_path / "performance.png").read_bytes() == image.read_bytes()
    write_page(results, page, image)
    assert page.read_text() == written
    page.write_text("No marks.")
    with pytest.raises(GeniusError, match="no place"):
        write_page(results, page, image)


def test_the_page_in_docs_has_a_place_for_figures() -> None:
    text = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    assert text.index(BEGIN) < text.index(END)


def test_names_on_a_plot_do_not_cover_each_other() -> None:
    placed = figures_module.apart({"a": 10.0, "b": 10.5, "c": 100.0}, least=1.2)
    assert placed == pytest.approx({"a": 10.0, "b": 12.0, "c": 100.0})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "one"], "not a list of numbers"),
        (["--batches", "0"], "at least 1"),
        (["--decoders", "giant"], "giant"),
        (["--page", "x.md"], "Measure first"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["search.py", str(tmp_path), *arguments])
    with pytest.raises(SystemExit):
        search.main()
    assert message in " ".join(capsys.readouterr().out.split())
