"""Stage 1 of a CLIP: the loss by hand, what is trained and what is not, precision, and runs that are interrupted."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_clip
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from tiny_benchmark import write_tiny_benchmark
from tiny_stages import to_meta
from torch import Tensor, nn

from genius.data.images import load_image
from genius.encoders.base import Prepared, Vectors
from genius.encoders.clip import ClipEncoder
from genius.errors import BadData
from genius.train import loop
from genius.train.batches import tensor_pair
from genius.train.clip import ClipStage, HeadsStage, last_linear, load_clip, train_clip
from genius.train.compute import Compute, choose_device, choose_precision
from genius.train.config import ClipStageConfig
from genius.train.data import FrozenVectors, TrainingData
from genius.train.loop import Stage, StageTimes, run_stage
from genius.train.lora import ATTENTION, LoraLinear, add_adapters, merge_adapters
from genius.train.losses import contrastive_loss

QUIET = Console(quiet=True)
DIM = 24
CONFIG = ClipStageConfig(model="?", tune="full", steps=6, batch=10, rate=1e-3, warmup=2, validate_every=3, rank=4)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Models that read texts to their end, instructions included."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_clip, "LENGTH", 80)
        return {kind: str(tiny_clip.save(kind, tmp_path_factory.mktemp(kind))) for kind in tiny_clip.FAMILIES}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    root = tmp_path_factory.mktemp("bench")
    write_tiny_benchmark(root, tasks=(0, 4, 7))
    return TrainingData([root], 0, 0.2)


@pytest.fixture
def encoder(folders: dict[str, str]) -> ClipEncoder:
    return ClipEncoder.from_hub(folders["clip"])


@pytest.fixture
def make_stage(folders: dict[str, str], data: TrainingData) -> Iterator[Callable[..., ClipStage]]:
    """Stages with an encoder of their own each, all equal."""
    made: list[ClipStage] = []

    def make(kind: str = "clip", precision: str = "float32", **changes: Any) -> ClipStage:
        cpu = torch.device("cpu")
        compute = Compute(cpu, choose_precision(precision, cpu))
        made.append(ClipStage(ClipEncoder.from_hub(folders[kind]), data, replace(CONFIG, **changes), 1, compute))
        return made[-1]

    yield make
    for stage in made:
        stage.__exit__()


def vectors_of(encoder: ClipEncoder) -> Vectors:
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (30, 40, 3)).astype(np.uint8)) for _ in range(3)]
    texts = ("a", "Two words.", "three")
    return encoder.encode([Prepared(encoder.pixels(p), text) for p, text in zip(images, texts, strict=True)])


def differ(one: Vectors, two: Vectors) -> float:
    return float(max(np.abs(one.image - two.image).max(), np.abs(one.text - two.text).max()))


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


# Low-rank pairs


def shake(network: nn.Module) -> None:
    """As after some training."""
    for module in network.modules():
        if isinstance(module, LoraLinear):
            nn.init.normal_(module.up, std=0.1)


@pytest.mark.parametrize("kind", tiny_clip.FAMILIES)
def test_merged_pairs_do_what_they_did_beside_the_frozen_maps(folders: dict[str, str], kind: str) -> None:
    encoder = ClipEncoder.from_hub(folders[kind])
    plain, names = vectors_of(encoder), encoder.model.state_dict().keys()
    add_adapters(encoder.model, 4)
    assert differ(vectors_of(encoder), plain) == 0  # they start at nothing
    shake(encoder.model)
    tuned = vectors_of(encoder)
    merge_adapters(encoder.model)
    assert differ(tuned, plain) > 0.01
    assert differ(vectors_of(encoder), tuned) < 1e-5
    assert encoder.model.state_dict().keys() == names


@pytest.mark.parametrize("kind", tiny_clip.FAMILIES)
def test_every_attention_layer_has_its_pairs_and_all_of_them_learn(
    make_stage: Callable[..., ClipStage], kind: str
) -> None:
    """Two towers of two blocks with four maps each; torch's own attention in SigLIP's head is left alone."""
    stage = make_stage(kind, tune="lora")
    pairs = {n: m for n, m in stage.network.named_modules() if isinstance(m, LoraLinear)}
    assert len(pairs) == 16
    assert {name.split(".")[-1] for name in pairs} == set(ATTENTION)
    shake(stage.network)
    stage.module.train()
    stage.loss(0)[0].backward()
    for name, pair in pairs.items():
        for part in (pair.up, pair.down):
            assert part.grad is not None, name
            if "k_proj" not in name:
                assert part.grad.any(), name
    trained = {id(p) for group in stage.groups for p in group["params"]}
    assert trained == {id(p) for pair in pairs.values() for p in (pair.up, pair.down)}


def test_training_pairs_leaves_the_frozen_weights_alone(make_stage: Callable[..., ClipStage], tmp_path: Path) -> None:
    stage = make_stage(tune="lora")
    before = {name: value.detach().clone() for name, value in stage.network.named_parameters()}
    run_stage(stage, tmp_path, QUIET)
    for name, value in stage.network.named_parameters():
        moved = not torch.equal(value, before[name])
        assert moved == name.endswith((".up", ".down")), name
    kept = [name for name in load_file(tmp_path / "encoder.safetensors") if name.startswith("module.")]
    assert len(kept) == 32  # 16 pairs, and nothing of what is frozen
    stage.finish()
    assert not stage.encoder.text_vectors(["a"]).requires_grad
    changed = {
        name
        for name, value in stage.network.named_parameters()
        if not torch.equal(value, before.get(name, before.get(name.replace("proj.", "proj.linear."), value)))
    }
    assert changed == {n for n in stage.network.state_dict() if n.endswith("proj.weight") and "self_attn" in n}


# The loss


def by_hand(stage: ClipStage, step: int) -> Tensor:
    """Eq. 2 on vectors that the encoder makes one by one."""
    queries, targets = stage.pairs.draw(np.random.default_rng([1, *b"pairs", step]), CONFIG.batch)
    train = stage.data.train

    def phi(text: np.ndarray, image: np.ndarray) -> Tensor:
        rows = []
        for t, i in zip(text, image, strict=True):
            pixels = None if i < 0 else stage.encoder.pixels(load_image(stage.data.images.names[i]))
            one = stage.encoder.encode([Prepared(pixels, "" if t < 0 else stage.data.texts.names[t])])
            rows.append(torch.from_numpy(one.embedding()[0]))
        return torch.stack(rows)

    q = phi(stage.pairs.text[queries], stage.pairs.image[queries])
    c = phi(train.text[targets], train.image[targets])
    masked = torch.from_numpy(stage.pairs.false_negatives(queries, targets))
    assert masked.any()
    return contrastive_loss(q, c, 0.01, masked)


@pytest.mark.parametrize("kind", tiny_clip.FAMILIES)
def test_the_loss_is_eq_2_on_the_encoders_vectors(make_stage: Callable[..., ClipStage], kind: str) -> None:
    stage = make_stage(kind)
    for step in (0, 1, 4):  # the second was read ahead, the third was not
        assert stage.loss(step)[0].item() == pytest.approx(by_hand(stage, step).item(), rel=1e-4)


def test_all_weights_but_those_of_clips_own_loss_are_trained(make_stage: Callable[..., ClipStage]) -> None:
    stage = make_stage()
    stage.module.train()
    stage.loss(0)[0].backward()
    without = {name for name, value in stage.network.named_parameters() if value.grad is None}
    assert without == {"logit_scale"}
    decayed = {id(p) for p in stage.groups[0]["params"]}
    for name, value in stage.network.named_parameters():
        assert (id(value) in decayed) == (value.ndim > 1), name


def test_checkpointing_changes_the_memory_and_nothing_else(make_stage: Callable[..., ClipStage]) -> None:
    gradients, calls = [], []
    for checkpointing in (False, True):
        stage = make_stage(checkpointing=checkpointing)
        seen: list[int] = []
        block = stage.network.vision_model.encoder.layers[0]
        block.self_attn.register_forward_hook(lambda *_, seen=seen: seen.append(1))
        stage.module.train()
        stage.loss(0)[0].backward()
        gradients.append({n: p.grad for n, p in stage.network.named_parameters() if p.grad is not None})
        calls.append(len(seen))
    assert calls[1] == calls[0] + 1  # computed again on the way back
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_computes_about_the_same_and_keeps_whole_weights(
    make_stage: Callable[..., ClipStage], tmp_path: Path, precision: str
) -> None:
    whole = make_stage(temperature=0.1).loss(0)[0].item()
    stage = make_stage(precision=precision, temperature=0.1)
    stage.module.train()
    assert stage.loss(0)[0].item() == pytest.approx(whole, rel=0.1)
    assert stage.loss(0)[0].item() != whole
    assert (stage.scaler is not None) == (precision == "fp16")
    before = state(stage.module)
    run_stage(stage, tmp_path, QUIET)
    assert any(not torch.equal(before[name], value) for name, value in stage.module.state_dict().items())
    for name, value in stage.network.named_parameters():
        assert value.dtype == torch.float32, name
        assert value.isfinite().all(), name
    stage.finish()
    assert stage.encoder.dtype == torch.float32


@pytest.mark.parametrize("kind", ["clip", "siglip"])  # in SigLIP 2, transformers itself asks whether a mask is full
@pytest.mark.parametrize("changes", [{"tune": "full", "accumulate": 2}, {"tune": "lora", "checkpointing": False}])
def test_a_step_copies_nothing_back_from_its_device(
    make_stage: Callable[..., ClipStage], kind: str, changes: dict[str, Any]
) -> None:
    """See test_compute.py. Pixels and tokens are made on the CPU."""
    stage = make_stage(kind, **changes)
    to_meta(stage)
    stage.encoder.device = torch.device("meta")
    run = loop.StageRun(stage, Path("unused"))
    stage.module.train()
    for _ in range(2):
        assert run.take_step()["loss"].device.type == "meta"


def test_a_batch_in_parts_has_the_gradients_of_the_whole(make_stage: Callable[..., ClipStage]) -> None:
    found = []
    for accumulate in (1, 3):
        stage = make_stage(accumulate=accumulate, temperature=0.1)
        losses = [part() for part in stage.parts(0)]
        assert len(losses) == accumulate
        for loss, _ in losses:
            loss.backward()
        gradient = torch.cat([p.grad.flatten() for p in stage.network.parameters() if p.grad is not None])
        found.append((losses[0][1]["loss"].item(), gradient))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    torch.testing.assert_close(found[1][1], found[0][1], rtol=1e-3, atol=1e-6)


def test_device_and_precision_are_chosen_or_as_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_device("cpu").type == "cpu"
    assert choose_precision("auto", torch.device("cpu")) == torch.float32
    assert choose_precision("bf16", torch.device("cpu")) == torch.bfloat16
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto").type == "cuda"
    for able, best in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda able=able: able)
        assert choose_precision("auto", torch.device("cuda")) == best
    with pytest.raises(BadData, match="setting device is 'gpu'"):
        choose_device("gpu")


def test_training_finds_what_belongs_together(make_stage: Callable[..., ClipStage]) -> None:
    """Not only the loss of a batch falls: so does that of all batches on average."""
    stage = make_stage(tune="lora", steps=40, warmup=4, rate=3e-3, temperature=0.1, rank=8)
    stage.module.eval()

    def mean() -> float:
        with torch.no_grad():
            return float(np.mean([stage.loss(step)[0].item() for step in range(100, 110)]))

    before = mean()
    run = loop.StageRun(stage, Path("unused"))
    stage.module.train()
    for _ in range(stage.steps):
        run.take_step()
    assert mean() < 0.8 * before


# Interrupted and resumed


class Killed(BaseException):
    pass


def run_to_the_end(make: Callable[[], Stage], folder: Path, dies_at: tuple[int, ...]) -> Stage:
    """Runs a stage that dies before some steps, each time with everything made anew."""
    for moment in (*dies_at, None):
        stage = make()
        loss = stage.loss

        def deadly(step: int, loss: Any = loss, moment: int | None = moment) -> Any:
            if step == moment:
                raise Killed
            return loss(step)

        stage.loss = deadly  # type: ignore[method-assign]
        try:
            run_stage(stage, folder, QUIET)
        except Killed:
            assert moment is not None
    return stage


@pytest.mark.parametrize("changes", [{"tune": "full"}, {"tune": "lora", "average": 0.9}, {"precision": "fp16"}])
def test_a_run_killed_on_its_way_ends_like_one_that_was_not(
    make_stage: Callable[..., ClipStage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    ends = []
    for name, moments in (("whole", ()), ("killed", (2, 4))):
        (tmp_path / name).mkdir()
        ends.append(run_to_the_end(lambda: make_stage(**changes), tmp_path / name, moments))
    for name, value in ends[0].module.state_dict().items():
        torch.testing.assert_close(ends[1].module.state_dict()[name], value, rtol=0, atol=1e-6, msg=name)
    if ends[0].scaler is not None:
        assert ends[1].scaler is not None
        assert ends[1].scaler.state_dict() == ends[0].scaler.state_dict()


# Linear maps of frozen vectors


@pytest.fixture
def frozen(data: TrainingData) -> FrozenVectors:
    rng = np.random.default_rng(0)
    texts = rng.standard_normal((len(data.texts.names) + 1, DIM)).astype(np.float16)
    images = rng.standard_normal((len(data.images.names) + 1, DIM)).astype(np.float16)
    texts[-1] = images[-1] = 0
    return FrozenVectors(texts, images)


def test_heads_start_as_the_frozen_encoder_and_learn(data: TrainingData, frozen: FrozenVectors, tmp_path: Path) -> None:
    stage = HeadsStage(data, frozen, replace(CONFIG, tune="heads", steps=60, rate=1e-2, temperature=0.1), 0)
    text, image = np.array([0, -1, 2]), np.array([1, 2, -1])
    sums = Vectors(frozen.images[image].astype(np.float32), frozen.texts[text].astype(np.float32))
    np.testing.assert_allclose(stage._phi(*tensor_pair(frozen, text, image)).detach(), sums.embedding(), atol=1e-6)
    first = stage.loss(0)[0].item()
    run_stage(stage, tmp_path, QUIET)
    assert stage.loss(0)[0].item() < 0.8 * first


def test_merged_heads_are_the_maps_behind_the_encoder(encoder: ClipEncoder, data: TrainingData) -> None:
    before = vectors_of(encoder)
    stage = HeadsStage(data, FrozenVectors(np.zeros((1, DIM)), np.zeros((1, DIM))), CONFIG, 0)
    for weight in stage.maps.parameters():
        nn.init.normal_(weight)
    for kind in ("image", "text"):
        stage.merge(kind, last_linear(encoder.model, kind))
    after = vectors_of(encoder)
    for kind in ("image", "text"):
        mapped = getattr(before, kind) @ stage.maps[kind].detach().numpy().T
        np.testing.assert_allclose(getattr(after, kind), mapped, atol=1e-4)


def test_a_network_without_a_last_linear_map_has_no_heads(
    folders: dict[str, str], data: TrainingData, tmp_path: Path
) -> None:
    config = replace(CONFIG, model=folders["siglip"], tune="heads")
    with pytest.raises(BadData, match=r'SiglipModel does not end in a linear map.*tune = "lora"'):
        train_clip(data, tmp_path, tmp_path / "cache", config, 0, StageTimes(tmp_path / "times.json"), QUIET)


# The vectors that the later stages learn from


@pytest.mark.parametrize("tune", ["full", "lora", "heads", "none"])
def test_later_stages_get_the_vectors_that_the_tuned_encoder_gives(
    folders: dict[str, str], data: TrainingData, tmp_path: Path, tune: str
) -> None:
    config = replace(CONFIG, model=folders["clip"], tune=tune)
    encoder, vectors = train_clip(data, tmp_path, tmp_path / "cache", config, 0, StageTimes(tmp_path / "t.json"), QUIET)
    untuned = ClipEncoder.from_hub(folders["clip"])
    texts = encoder.encode([Prepared(None, name) for name in data.texts.names]).text
    pixels = [encoder.pixels(load_image(name)) for name in data.images.names]
    images = encoder.encode([Prepared(image, "") for image in pixels]).image
    np.testing.assert_allclose(vectors.texts[:-1], texts, atol=4e-3)
    np.testing.assert_allclose(vectors.images[:-1], images, atol=4e-3)
    assert not vectors.texts[-1].any()
    assert not vectors.images[-1].any()
    before = untuned.encode([Prepared(image, "") for image in pixels]).image
    assert (np.abs(images - before).max() > 0.01) == (tune != "none")
    for name, value in encoder.model.state_dict().items():
        assert torch.equal(value, value.half().float()), name  # as a model folder will hold it
    assert encoder.model.state_dict().keys() == untuned.model.state_dict().keys()


def test_an_encoder_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"encoder": {}}')
    other = SimpleNamespace(encoder=SimpleNamespace(kind="mini"))
    monkeypatch.setattr("genius.train.clip.Genius.from_pretrained", lambda name: other)
    with pytest.raises(BadData, match="is 'mini'"):
        load_clip(str(tmp_path), torch.device("cpu"))
