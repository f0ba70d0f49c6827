"""Published checkpoints through `genius convert`: the same numbers as the authors' code, and nothing else gets in."""

import json
import math
import os
import pickle
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden
import numpy as np
import pytest
import torch
from fakes import draw_image, torch_decoder
from golden import Size
from torch import Tensor

from genius.cli.app import main
from genius.data.items import Item, Query
from genius.encoders.base import Vectors
from genius.errors import BadModel
from genius.index.index import Index
from genius.model.genius import Genius
from genius.networks.published import convert
from genius.search.beam import beam_search
from genius.search.options import SearchOptions
from genius.search.searcher import Searcher
from genius.search.trie import Trie

SMALL = Size(dim=24, hidden=20, codes=16, levels=3, d_model=32, layers=2, heads=4, d_kv=8, d_ff=48, prefix=5)
ODD = Size(dim=10, hidden=7, codes=9, levels=1, d_model=12, layers=1, heads=3, d_kv=2, d_ff=5, prefix=1)
PAPER = Size(codes=4096, levels=8)
BLOCK = "id_generator.decoder.block.0.layer.0.SelfAttention"


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as exit:
        main([str(argument) for argument in arguments])
    return int(exit.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """For files too large to be left behind."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def converted(folder: Path, seed: int = golden.SEED, size: Size | None = None) -> Genius:
    """The recipe's model, written as published, through the import command."""
    rq, decoder = golden.write_checkpoints(folder, seed, size)
    assert run("convert", "--rq", rq, "--decoder", decoder, folder / "model") == 0
    return Genius.from_pretrained(folder / "model", int8=False)


def vectors_of(side: str) -> Vectors:
    image, text = golden.masked(side)
    return Vectors(image.numpy(), text.numpy())


def some_vectors(n: int, dim: int, seed: int) -> Vectors:
    """Images, texts and pairs in turn."""
    image, text = np.random.default_rng(seed).standard_normal((2, n, dim), dtype=np.float32)
    image[1::3], text[0::3] = 0, 0
    return Vectors(image, text)


# What the authors' code gave


def test_the_recorded_values(folder: Path) -> None:
    model = converted(folder)
    candidates, queries = vectors_of("cand"), vectors_of("query")
    codes, fused = model.codes(candidates), model.fuse(queries)
    np.testing.assert_allclose(model.fuse(candidates)[:64], golden.tensor("cand_fused"), atol=1e-5)
    np.testing.assert_allclose(fused, golden.tensor("query_fused"), atol=1e-5)
    np.testing.assert_allclose(candidates.embedding()[:64], golden.tensor("cand_rerank"), atol=1e-5)
    np.testing.assert_array_equal(codes, golden.tensor("cand_codes"))
    np.testing.assert_array_equal(model.codes(queries), golden.tensor("query_codes"))

    decoder = torch_decoder(model.decoder)
    prefix = decoder.prefix_embeddings(torch.from_numpy(fused[:1]))[0]
    np.testing.assert_allclose(prefix, golden.tensor("prefix_q0"), atol=1e-4)
    first = torch.from_numpy(codes[:256].astype(np.int64))
    logprob = decoder(torch.from_numpy(fused[:1]).expand(256, -1), first).sum(1)
    np.testing.assert_allclose(logprob, golden.tensor("q0_first256_logprob"), atol=1e-3)
    trie = Trie(codes)
    for query, beams in enumerate(beam_search(model.decoder, trie, fused, 10)):
        assert trie.ids(beams.lo).tolist() == golden.tensor("beam_codes")[query].tolist()
        np.testing.assert_allclose(beams.logprob, golden.tensor("beam_logprob")[query], atol=1e-3)

    searcher = Searcher(model, codes, candidates.embedding())
    found = searcher.search(
        fused, queries.embedding(), None, SearchOptions(k=1, mode="generate", beam=10), min_modality_ratio=0
    ).top
    np.testing.assert_array_equal(codes[found.rows[:, 0]], golden.tensor("beam_codes")[:, 0])
    np.testing.assert_allclose(found.scores[:, 0], golden.tensor("beam_logprob")[:, 0], atol=1e-3)


# What the published architecture gives, for other seeds and sizes


class Published:
    """The formulas, from tensors with published names: in float64, and T5 by `transformers`."""

    def __init__(self, seed: int, size: Size) -> None:
        self.size = size
        self.rq = {name: value.double() for name, value in golden.weights("rq", seed=seed, size=size).items()}
        self.projector = golden.weights("embed_projector", seed=seed, size=size)
        self.t5 = _transformers_t5(size, golden.weights("id_generator", seed=seed, size=size))

    def fuse(self, vectors: Vectors) -> Tensor:
        image, text = torch.from_numpy(vectors.image).double(), torch.from_numpy(vectors.text).double()
        joint = torch.cat(
            [self._linear("text_projection_layer", text), self._linear("image_projection_layer", image)], 1
        )
        hidden = self._linear("combiner_layer", joint.relu()).relu()
        scalar = self._linear("dynamic_scalar.3", self._linear("dynamic_scalar.0", joint.relu()).relu()).sigmoid()
        out = self._linear("output_layer", hidden) + scalar * text + (1 - scalar) * image
        return out / out.norm(dim=1, keepdim=True)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.rq[f"encoder.{name}.weight"].T + self.rq[f"encoder.{name}.bias"]

    def codes(self, fused: Tensor) -> Tensor:
        residual, codes = fused.clone(), []
        for level in range(self.size.levels + 1):
            book = self.rq[f"residual_rq.layers.{level}._codebook.embed"][0]
            nearest = (residual.square().sum(1)[:, None] - 2 * residual @ book.T + book.square().sum(1)).argmin(1)
            residual -= book[nearest]
            codes.append(nearest)
        return torch.stack(codes, 1)

    @torch.inference_mode()
    def logprob(self, fused: Tensor, codes: Tensor) -> Tensor:
        """(n, dim), (n, levels + 1) -> (n,)"""
        prefix = fused.float() @ self.projector["0.weight"].T + self.projector["0.bias"]
        starts = torch.tensor([3, *(6 + self.size.codes * level for level in range(self.size.levels))])
        tokens = codes + starts
        embeds = prefix.view(len(fused), self.size.prefix, self.size.d_model)
        logits = self.t5(inputs_embeds=embeds, labels=tokens).logits
        return logits.log_softmax(-1).gather(-1, tokens[..., None]).sum((1, 2))


def _transformers_t5(size: Size, weights: dict[str, Tensor]) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(
        vocab_size=size.vocabulary,
        d_model=size.d_model,
        d_kv=size.d_kv,
        d_ff=size.d_ff,
        num_layers=0,
        num_decoder_layers=size.layers,
        num_heads=size.heads,
        decoder_start_token_id=0,
    )
    t5 = transformers.T5ForConditionalGeneration(config).eval()
    t5.load_state_dict(weights)
    return t5


def check_parity(model: Genius, seed: int, size: Size, items: int) -> None:
    published = Published(seed, size)
    candidates, queries = some_vectors(items, size.dim, seed), some_vectors(4, size.dim, seed + 100)
    fused, expected = model.fuse(queries), published.fuse(queries)
    np.testing.assert_allclose(fused, expected, atol=1e-5)
    codes = model.codes(candidates)
    np.testing.assert_array_equal(codes, published.codes(published.fuse(candidates)))
    trie = Trie(codes)
    distinct = np.unique(codes.astype(np.int64), axis=0)
    for query, beams in enumerate(beam_search(model.decoder, trie, fused, len(distinct))):
        scores = published.logprob(expected[query].expand(len(distinct), -1), torch.from_numpy(distinct)).numpy()
        np.testing.assert_allclose(beams.logprob, -np.sort(-scores), atol=1e-3)
        ranks = {tuple(code): score for code, score in zip(distinct.tolist(), scores, strict=True)}
        np.testing.assert_allclose(
            beams.logprob, [ranks[tuple(code)] for code in trie.ids(beams.lo).tolist()], atol=1e-3
        )


@pytest.mark.parametrize(("seed", "size"), [(2, SMALL), (3, SMALL), (4, ODD)])
def test_other_seeds_and_sizes(tmp_path: Path, seed: int, size: Size) -> None:
    model = converted(tmp_path, seed, size)
    config = model.decoder.config
    assert model.sizes == (3, *[size.codes] * size.levels)
    assert (model.dim, model.fusion.hidden, config.d_model, config.prefix) == (
        size.dim,
        size.hidden,
        size.d_model,
        size.prefix,
    )
    assert (config.layers, config.heads, config.d_kv, config.d_ff) == (size.layers, size.heads, size.d_kv, size.d_ff)
    check_parity(model, seed, size, items=60)


@pytest.mark.slow
def test_the_papers_size(folder: Path) -> None:
    model = converted(folder, seed=5, size=PAPER)
    assert model.decoder.config.vocabulary == 32774
    check_parity(model, seed=5, size=PAPER, items=200)


# A model folder like any other


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Path, Path]:
    """The two files of a small model, and a folder that does not exist yet."""
    return *golden.write_checkpoints(tmp_path, size=SMALL), tmp_path / "model"


def test_the_folder_keeps_every_digit_and_says_what_it_is_made_of(small: tuple[Path, Path, Path]) -> None:
    rq, decoder, out = small
    model = convert(out, rq, decoder)
    assert model.fingerprint == Genius.from_pretrained(out).fingerprint
    config = json.loads((out / "config.json").read_text())
    assert (config["dtype"], config["first_code"], config["encoder"]["kind"]) == ("float32", "nearest", "ready")
    card = (out / "README.md").read_text()
    assert model.fingerprint in card
    assert "rq_clip_large.pth" in card
    book = golden.weights("rq", only="residual_rq.layers.2", size=SMALL)
    np.testing.assert_array_equal(model.quantizer.codebooks[2], next(iter(book.values()))[0])


def test_without_the_quantizers_file_the_decoders_copy_is_used(small: tuple[Path, Path, Path], tmp_path: Path) -> None:
    rq, decoder, out = small
    assert run("convert", "--decoder", decoder, tmp_path / "other") == 0
    assert convert(out, rq, decoder).fingerprint == Genius.from_pretrained(tmp_path / "other").fingerprint


def test_it_indexes_and_searches_ready_vectors(small: tuple[Path, Path, Path], tmp_path: Path) -> None:
    rq, decoder, out = small
    model = convert(out, rq, decoder)
    vectors = some_vectors(50, SMALL.dim, 0)
    index = Index.create(tmp_path / "index", model)
    index.add_vectors([f"v{row}" for row in range(50)], vectors)
    found = Index.open(tmp_path / "index").search_vectors(vectors[[7, 8]], k=1)
    assert found.rows[:, 0].tolist() == [7, 8]


def test_half_precision_files_are_read(small: tuple[Path, Path, Path]) -> None:
    rq, decoder, out = small
    for file in (rq, decoder):
        halves = {name: value.half() if value.is_floating_point() else value for name, value in _tensors(file).items()}
        golden.write_checkpoint(file, halves)
    model = convert(out, rq, decoder)
    expected = golden.weights("rq", only="residual_rq.layers.1", size=SMALL)
    np.testing.assert_array_equal(model.quantizer.codebooks[1], next(iter(expected.values()))[0].half().float())


def test_with_the_encoders_file_it_reads_words_and_images(small: tuple[Path, Path, Path], tmp_path: Path) -> None:
    rq, decoder, out = small
    from tiny_clip import clip_tokenizer, openai_weights

    from genius.encoders.clip import from_openai, openai_tokenizer

    weights = openai_weights(dim=SMALL.dim)
    clip = golden.write_checkpoint(tmp_path / "clip.pth", {f"clip_model.{name}": w for name, w in weights.items()})
    clip_tokenizer().save_pretrained(tmp_path)
    assert run("convert", "--rq", rq, "--decoder", decoder, "--clip", clip, out) == 0
    model = Genius.from_pretrained(out)
    items = [Item("a", text="a red cat"), Item("b", image=draw_image("blue")), Item("c", "a dog", draw_image("red"))]
    vectors = model.encode_items(items)
    direct = from_openai(weights, openai_tokenizer(tmp_path)).encode([model.prepare(item) for item in items])
    np.testing.assert_allclose(vectors.image, direct.image, atol=1e-5)
    np.testing.assert_allclose(vectors.text, direct.text, atol=1e-5)
    published = Published(golden.SEED, SMALL)
    np.testing.assert_array_equal(model.codes(vectors), published.codes(published.fuse(vectors)))
    index = Index.create(tmp_path / "index", model)
    index.add(items)
    assert index.search(Query(image=draw_image("blue"), instruction=""), k=1)[0].id == "b"


def test_an_encoder_that_does_not_fit(small: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    rq, decoder, out = small
    from tiny_clip import clip_tokenizer, openai_weights

    def unreachable(*given: object, **more: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    clip = golden.write_checkpoint(out.parent / "clip.pth", openai_weights(dim=SMALL.dim + 1))
    with pytest.raises(BadModel, match=r"clip\.pth has no tokenizer with it\. Put the file tokenizer\.json of openai"):
        convert(out, rq, decoder, clip)
    clip_tokenizer().save_pretrained(out.parent)
    with pytest.raises(BadModel, match=f"vectors of {SMALL.dim + 1} numbers.* works on {SMALL.dim}"):
        convert(out, rq, decoder, clip)
    assert not out.exists()


# Files that are not what they should be


def _tensors(file: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = torch.load(file, weights_only=True)["model"]
    return tensors


NORM = "id_generator.decoder.final_layer_norm.weight"
BOOK = "residual_rq.layers.1._codebook.embed"
CHANGES: dict[str, tuple[str, dict[str, Any], str]] = {
    "missing": ("decoder", {NORM: None}, f"Missing: {NORM}"),
    "many missing": ("rq", {f"encoder.{part}_layer.bias": None for part in ("combiner", "output")}, "combiner.*output"),
    "first missing": ("decoder", {"id_generator.shared.weight": None}, "lacks the tensor id_generator.shared.weight"),
    "no codebooks": ("rq", {f"residual_rq.layers.{i}._codebook.embed": None for i in range(4)}, "no codebooks"),
    "a gap": ("rq", {BOOK.replace("1", "2"): None}, "(?i)missing: residual_rq.layers.2.*unknown: residual_rq.layers.3"),
    "a block far away": ("decoder", {f"id_generator.decoder.block.{10**12}.x": torch.ones(1)}, "unknown.*block.10+.x"),
    "unknown": (
        "decoder",
        {"id_generator.encoder.block.0.x": torch.ones(1)},
        "Unknown: id_generator.encoder.block.0.x",
    ),
    "unknown in rq": ("rq", {"encoder.extra": torch.ones(1)}, "Unknown: encoder.extra"),
    "other shape": ("rq", {"encoder.output_layer.bias": torch.ones(3)}, r"output_layer.bias \(3,\) instead of \(24,\)"),
    "dimensions": ("rq", {BOOK: torch.ones(16, 24)}, "3 dimensions"),
    "heads": ("decoder", {f"{BLOCK}.relative_attention_bias.weight": torch.ones(32, 5)}, r"instead of \(30, 32\)"),
    "not a number": ("decoder", {NORM: torch.full((32,), math.nan)}, f"{NORM} holds values that are not numbers"),
    "untied": ("decoder", {"id_generator.lm_head.weight": torch.ones(54, 32)}, "other values in id_generator.lm_head"),
    "tokens": ("decoder", {"id_generator.shared.weight": torch.ones(55, 32)}, "55 tokens.*make 54"),
    "other quantizer": ("rq", {BOOK: torch.ones(1, 16, 24)}, f"another quantizer.*{BOOK} differs.*leave out --rq"),
    "no tensor": ("rq", {"encoder.output_layer.bias": [1.0]}, "'encoder.output_layer.bias', which is no tensor"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_tensors_that_do_not_fit_are_named(small: tuple[Path, Path, Path], change: str) -> None:
    rq, decoder, out = small
    which, changes, message = CHANGES[change]
    file = rq if which == "rq" else decoder
    changed: dict[str, Any] = {**_tensors(file), **changes}
    golden.write_checkpoint(file, {name: value for name, value in changed.items() if value is not None})
    if which == "rq" and change != "other quantizer":  # so that the decoder's copy has nothing to say
        others = {name: value for name, value in _tensors(decoder).items() if not name.startswith("quantizer.")}
        golden.write_checkpoint(decoder, others)
    with pytest.raises(BadModel, match=message):
        convert(out, rq, decoder)
    assert not out.exists()


def test_files_that_are_none_of_these(small: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    rq, decoder, out = small
    with pytest.raises(BadModel, match=r"no file .*It should be the encoder, clip_sf_large.pth of UniIR"):
        convert(out, rq, decoder, out.parent / "absent.pth")
    torch.save({"weights": 1}, out.parent / "other.pth")
    with pytest.raises(BadModel, match='no tensors under the key "model"'):
        convert(out, out.parent / "other.pth", decoder)
    broken = out.parent / "broken.pth"
    for content in (b"", b"no checkpoint at all", rq.read_bytes()[:-500], rq.read_bytes()[: rq.stat().st_size // 2]):
        broken.write_bytes(content)
        with pytest.raises(BadModel, match=r"broken\.pth"):
            convert(out, broken, decoder)
    only = {name: value for name, value in _tensors(decoder).items() if not name.startswith("quantizer.")}
    golden.write_checkpoint(decoder, only)
    with pytest.raises(BadModel, match=r"no copy of the quantizer.*--rq"):
        convert(out, None, decoder)
    out.mkdir()
    (out / "precious.txt").touch()
    assert run("convert", "--rq", rq, "--decoder", decoder, out) == 1
    assert "exists already" in capsys.readouterr().err


# Files that want to run code


class Bait:
    """Makes a file when it is unpickled."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.victim),)


class Pretender(Bait):
    """Calls itself by a name that is allowed, to have its arguments run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"import os; os.mkdir({str(self.victim)!r})",)


@pytest.mark.parametrize("bait", [Bait, Pretender])
@pytest.mark.parametrize("where", ["beside", "among", "legacy", "pickle"])
def test_a_hostile_file_is_refused(
    small: tuple[Path, Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    where: str,
    bait: type[Bait],
) -> None:
    rq, decoder, out = small
    victim = out.parent / "victim"
    content: dict[str, Any] = {"model": _tensors(rq)}
    content["model" if where == "among" else "config"] = {**content["model"], "x": bait(victim)}
    if where == "pickle":
        rq.write_bytes(pickle.dumps({"model": bait(victim)}, protocol=2))
    else:
        torch.save(content, rq, _use_new_zipfile_serialization=where != "legacy")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    assert run("convert", "--rq", rq, "--decoder", decoder, out) == 1
    assert "was not read, since reading it could run code" in capsys.readouterr().err.replace("\n", " ")
    assert not victim.exists()
    assert not out.exists()
    if where != "pickle":  # the bait works, on those who bite
        torch.load(rq, weights_only=False)
        assert victim.exists()


def test_settings_of_a_training_are_passed_over(
    small: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training scripts save theirs as objects of a package that need not be there; no code of it is run."""
    rq, decoder, out = small
    made = {}
    monkeypatch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))
    for module, name in (("dictconfig", "DictConfig"), ("base", "ContainerMetadata"), ("nodes", "AnyNode")):
        made[name] = type(name, (), {"__module__": f"omegaconf.{module}"})
        fake = types.ModuleType(f"omegaconf.{module}")
        setattr(fake, name, made[name])
        monkeypatch.setitem(sys.modules, fake.__name__, fake)
    config = made["DictConfig"]()
    config._metadata, config._content = made["ContainerMetadata"](), {"epochs": made["AnyNode"]()}
    config._metadata.ref_type, config._metadata.object_type = Any, dict
    config._content["epochs"]._parent = config
    torch.save({"model": _tensors(rq), "config": config}, rq)
    monkeypatch.undo()
    with pytest.raises(pickle.UnpicklingError):
        torch.load(rq, weights_only=True)
    assert convert(out, rq, decoder).sizes == (3, 16, 16, 16)
