"""The command line from arguments to tables and exit status, with a tiny model in place of the bundled one."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from fakes import draw_image, tiny_model
from tiny_benchmark import write_tiny_benchmark

import genius
import genius.evaluation.evaluate
from genius.cli.app import main
from genius.data.items import Modality
from genius.index.index import Index
from genius.model.genius import Genius


class Result:
    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs the command as the shell would, with the tiny model wherever a model is loaded."""

    def from_pretrained(name: str, int8: bool = True, device: str = "cpu") -> Genius:
        model = tiny_model(seed=0 if name == "mini" else 1)
        model.source = str(name)
        return model

    monkeypatch.setattr(Genius, "from_pretrained", from_pretrained)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> Result:
        with pytest.raises(SystemExit) as exit:
            main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        return Result(int(exit.value.code or 0), shown.out, shown.err)

    return call


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A folder of two images (one with a caption) and two broken ones."""
    folder = tmp_path / "images"
    folder.mkdir()
    draw_image("red").save(folder / "red.png")
    draw_image("blue").save(folder / "blue.png")
    (folder / "blue.txt").write_text("a blue [bold] square")
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "page.jpg").write_text("<html>")
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "texts.jsonl"
    rows = [{"id": f"t{i}", "text": f"{word} number {i}", "lang": "en"} for i, word in enumerate(["cat", "dog", "owl"])]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


@pytest.fixture
def path(tmp_path: Path, table: Path, run) -> Path:
    """An index with three texts."""
    index = tmp_path / "my.genius"
    assert run("index", "create", index, table).status == 0
    return index


def test_create_makes_an_empty_index(run, tmp_path):
    result = run("index", "create", tmp_path / "i")
    assert result.status == 0
    assert "Created" in result.out
    assert len(Index.open(tmp_path / "i")) == 0


def test_create_passes_its_options_on(run, tmp_path, table):
    run("index", "create", tmp_path / "i", table, "--codes-only", "--store-images", "--model", "other")
    header = Index.open(tmp_path / "i").header
    assert (header.embeddings, header.store_images, header.model) == (False, True, "other")
    assert header.fingerprint == tiny_model(seed=1).fingerprint


def test_create_does_not_begin_with_a_source_that_cannot_be_read(run, tmp_path):
    result = run("index", "create", tmp_path / "i", tmp_path / "nowhere")
    assert result.status == 1
    assert "nowhere: there is no such file or folder" in result.err
    assert not (tmp_path / "i").exists()


def test_adding_with_bad_items_adds_the_good_ones_lists_the_bad_and_exits_with_2(run, path, images):
    result = run("index", "add", path, images)
    assert result.status == 2
    assert "2 added" in result.out
    assert "now holds 5 items" in result.out
    assert "2 bad items, not added" in result.err
    assert "empty.jpg" in result.err
    assert "0 bytes" in result.err
    assert "page.jpg" in result.err
    assert Index.open(path).get("blue.png").text == "a blue [bold] square"


def test_adding_again_changes_nothing(run, path, table):
    result = run("index", "add", path, table)
    assert result.status == 0
    assert "0 added, 3 unchanged" in result.out
    assert "now holds 3 items" in result.out


def test_other_content_for_an_id_needs_upsert(run, path, table):
    table.write_text('{"id": "t1", "text": "a cow"}\n{"id": "t2", "text": "owl number 2", "lang": "en"}')
    result = run("index", "add", path, table)
    assert result.status == 2
    assert "1 unchanged" in result.out
    assert "1 bad item, not added" in result.err
    assert "upsert" in result.err
    result = run("index", "upsert", path, table)
    assert result.status == 0
    assert "1 added, 1 unchanged" in result.out
    assert Index.open(path).get("t1").text == "a cow"
    assert len(Index.open(path)) == 3


def test_an_interrupted_add_says_what_is_safe_and_goes_on(run, path, table, tmp_path, monkeypatch):
    more = tmp_path / "more.jsonl"
    more.write_text('{"id": "m0", "text": "a cow"}\n{"id": "m1", "text": "a hen"}')

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Index, "add", interrupt)
        result = run("index", "add", path, more)
    assert result.status == 130
    assert "holds 3 items" in result.err
    assert "the same command" in result.err
    assert run("index", "add", path, more).status == 0
    assert len(Index.open(path)) == 5


def test_a_long_list_of_bad_items_is_cut(run, path, tmp_path):
    (tmp_path / "bad.jsonl").write_text("\n".join(f'{{"id": "b{i}"}}' for i in range(50)))
    result = run("index", "add", path, tmp_path / "bad.jsonl")
    assert result.status == 2
    assert "50 bad items" in result.err
    assert "and 30 more" in result.err


def test_delete_names_what_is_not_there(run, path):
    assert run("index", "delete", path, "t0").status == 0
    result = run("index", "delete", path, "t1", "t7")
    assert result.status == 2
    assert "1 item deleted" in result.out
    assert "now holds 1 item." in result.out
    assert "t7: there is no item with this id" in result.err
    assert "t2" in Index.open(path)
    assert len(Index.open(path)) == 1


def test_delete_reads_ids_from_a_file(run, path, tmp_path):
    (tmp_path / "gone.txt").write_text("t0\nt2\n")
    result = run("index", "delete", path, "--ids-from", tmp_path / "gone.txt")
    assert result.status == 0
    assert "2 items deleted" in result.out
    assert [item.id for item in Index.open(path)] == ["t1"]
    assert "nothing to delete" in run("index", "delete", path).err


def test_delete_by_a_filter(run, path):
    where = ("--where", "id IN ('t0', 't2')")
    assert "2 items would be deleted" in run("index", "delete", path, *where, "--dry-run").out
    assert "1 item would be deleted" in run("index", "delete", path, "t0", "--dry-run").out
    assert len(Index.open(path)) == 3
    assert "2 items deleted" in run("index", "delete", path, *where).out
    assert [item.id for item in Index.open(path)] == ["t1"]
    assert "0 items deleted" in run("index", "delete", path, *where).out
    assert "exclude each other" in run("index", "delete", path, "t1", *where).err
    result = run("index", "delete", path, "--where", "lang = en")
    assert (result.status, len(Index.open(path))) == (1, 1)
    assert "put quotes around it: 'en'" in result.err


def test_get_shows_items_and_names_missing_ones(run, path, images):
    run("index", "add", path, images)
    result = run("index", "get", path, "t1", "blue.png")
    assert result.status == 0
    for shown in ("dog number 1", "lang: en", "a blue [bold] square", str(images / "blue.png"), "image,text"):
        assert shown in result.out
    result = run("index", "get", path, "t1", "nobody", "--json")
    assert result.status == 2
    assert "nobody: there is no item with this id" in result.err
    assert json.loads(result.out) == [
        {"id": "t1", "modality": "text", "text": "dog number 1", "image": None, "metadata": {"lang": "en"}}
    ]


def test_filter_shows_items_that_satisfy_a_condition(run, path, tmp_path):
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps({"id": "m0", "text": "gatto", "lang": "it", "year": 1999}))
    run("index", "add", path, more)

    def found(*options: object) -> list[str]:
        return [item["id"] for item in json.loads(run("index", "filter", path, *options, "--json").out)]

    assert found("--where", "year < 2000") == ["m0"]
    assert found("--where", "lang = 'en'") == ["t0", "t1", "t2"]
    assert found("--where", "lang = 'en'", "--limit", 2) == ["t0", "t1"]
    assert found() == ["t0", "t1", "t2", "m0"]
    assert "gatto" in run("index", "filter", path, "--where", "lang = 'it'").out
    assert "No item matches" in run("index", "filter", path, "--where", "lang = 'fr'").out
    result = run("index", "filter", path, "--limit", 3)
    assert "first 3 of 4 items" in result.err
    assert "gatto" not in result.out
    result = run("index", "filter", path, "--where", "colour = 'red'")
    assert result.status == 1
    assert "The fields of this index are" in result.err


def test_older_versions_can_be_looked_at(run, path):
    (first,) = [one for one in json.loads(run("index", "versions", path, "--json").out) if one["items"] == 3][-1:]
    run("index", "delete", path, "t0", "t1")
    shown = run("index", "versions", path).out
    assert str(first["number"]) in shown
    at = ("--version", first["number"])
    assert run("index", "count", path).out == "1\n"
    assert run("index", "count", path, *at).out == "3\n"
    assert "cat number 0" in run("index", "get", path, "t0", *at).out
    assert len(json.loads(run("index", "filter", path, "--where", "lang = 'en'", *at, "--json").out)) == 3
    assert json.loads(run("index", "info", path, *at, "--json").out)["items"] == 3
    hits = json.loads(run("search", path, "cat number 0", "--instruction", "", "--json", *at).out)
    assert hits[0]["id"] == "t0"
    result = run("index", "export", path, path.parent / "old.jsonl", *at)
    assert "3 items written" in result.out
    result = run("index", "count", path, "--version", 999)
    assert result.status == 1
    assert "no version 999" in result.err


def test_compact_frees_what_old_versions_hold(run, path):
    run("index", "delete", path, "t0")
    result = run("index", "compact", path, "--keep", 0)
    assert result.status == 0
    assert "old versions removed" in result.out
    assert "Kept" not in result.out
    assert len(json.loads(run("index", "versions", path, "--json").out)) == 1
    assert run("index", "count", path).out == "2\n"
    assert run("index", "verify", path).status == 0


def test_reindex_changes_the_model(run, path):
    result = run("index", "reindex", path, "--model", "other")
    assert result.status == 0, result.err
    assert "3 encoded again" in result.out
    index = Index.open(path)
    assert (index.header.model, index.header.fingerprint) == ("other", tiny_model(seed=1).fingerprint)
    hits = json.loads(run("search", path, "cat number 0", "--instruction", "", "--json").out)
    assert hits[0]["id"] == "t0"
    assert "3 encoded again" in run("index", "reindex", path).out


@pytest.mark.parametrize(
    ("name", "options", "source"),
    [
        ("out.jsonl", (), "out.jsonl"),
        ("out.parquet", (), "out.parquet"),
        ("bench", ("--format", "mbeir", "--copy-images"), "bench/cand_pool/global/mbeir_union_test_cand_pool.jsonl"),
    ],
)
def test_an_export_can_be_added_to_another_index(run, path, images, tmp_path, name, options, source):
    run("index", "add", path, images)
    result = run("index", "export", path, tmp_path / name, *options)
    assert result.status == 0
    assert "5 items written" in result.out
    again = run("index", "create", tmp_path / "again", tmp_path / source)
    assert again.status == 0, again.err
    ids = [sorted(item.id for item in Index.open(one).items()) for one in (path, tmp_path / "again")]
    assert ids[0] == ids[1]
    result = run("index", "export", path, tmp_path / name, *options)
    assert result.status == 1
    assert "exists already" in result.err


def test_an_export_names_images_that_are_gone(run, path, images, tmp_path):
    run("index", "add", path, images)
    (images / "red.png").unlink()
    result = run("index", "export", path, tmp_path / "out.jsonl", "--copy-images")
    assert result.status == 2
    assert "red.png" in result.err
    assert (tmp_path / "out.jsonl").exists()


def test_info_for_people_and_programs(run, path):
    shown = run("index", "info", path).out
    assert "mini" in shown
    assert "3 text" in shown
    info = json.loads(run("index", "info", path, "--json").out)
    assert info["items"] == 3
    assert info["modalities"] == {"image": 0, "text": 3, "image,text": 0}
    assert info["fingerprint"] == tiny_model().fingerprint


def test_verify_says_what_is_wrong_and_what_mends_it(run, path, images):
    result = run("index", "verify", path, "--deep")
    assert result.status == 0
    assert "in order: 3 items" in result.out
    run("index", "add", path, images)
    (images / "red.png").unlink()
    result = run("index", "verify", path)
    assert result.status == 1
    assert "red.png is missing" in result.err
    assert "1 problem: 1 image" in result.err
    assert f"genius index delete {path} red.png" in result.err
    result = run("index", "verify", path, "--sample", 0, "--json")
    assert result.status == 1
    found = json.loads(result.out)
    assert found["items"] == 5
    assert [(one["kind"], one["id"]) for one in found["problems"]] == [("image", "red.png")]
    assert run("index", "delete", path, "red.png").status == 0
    assert json.loads(run("index", "verify", path, "--json").out) == {
        "items": 4,
        "files_without_checksum": 0,
        "unfinished": [],
        "problems": [],
    }


def test_verify_cuts_long_lists(run, path, tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(30):
        draw_image("red").save(folder / f"{i}.png")
    run("index", "add", path, folder)
    for file in folder.iterdir():
        file.unlink()
    result = run("index", "verify", path)
    assert "and 10 more image problems" in result.err
    assert "30 problems: 30 image" in result.err
    assert len(json.loads(run("index", "verify", path, "--json").out)["problems"]) == 30


def test_verify_drops_what_cannot_be_read_when_told(run, path, tmp_path):
    more = tmp_path / "more.jsonl"
    more.write_text('{"id": "m0", "text": "a cow"}')
    files = set((path / "items.lance" / "data").iterdir())
    run("index", "add", path, more)
    (file,) = set((path / "items.lance" / "data").iterdir()) - files
    file.unlink()
    result = run("index", "verify", path)
    assert result.status == 1
    assert str(file) in result.err
    assert "--drop-damaged" in result.err
    result = run("index", "verify", path, "--drop-damaged")
    assert result.status == 0
    assert "1 item removed" in result.out
    assert "in order: 3 items" in result.out


def test_search_shows_a_card_for_each_hit(run, path):
    result = run("search", path, "cat number 0", "--instruction", "", "-k", "2")
    assert result.status == 0
    lines = result.out.splitlines()
    assert lines[:3] == ["1   1.000  text        t0", "    cat number 0", "    lang: en"]
    assert [line[0] for line in lines if not line.startswith(" ")] == ["1", "2"]
    codes = "codes: " + " ".join(map(str, Index.open(path).codes[0]))
    assert codes not in result.out
    assert codes in run("search", path, "cat number 0", "--instruction", "", "--codes").out


def test_compact_says_why_versions_are_kept(run, path):
    run("index", "delete", path, "t0")
    result = run("index", "compact", path, "--keep", 7)
    older = len(json.loads(run("index", "versions", path, "--json").out)) - 1
    assert "0 old versions removed" in result.out
    assert f"Kept {older} older versions, younger than 7 days; --keep 0 keeps only the latest." in result.out


def test_search_prints_json(run, path):
    hits = json.loads(run("search", path, "cat number 0", "--instruction", "", "--json").out)
    assert hits[0] == {
        "id": "t0",
        "score": pytest.approx(1, abs=1e-3),
        "modality": "text",
        "codes": Index.open(path).codes[0].tolist(),
        "text": "cat number 0",
        "image": None,
        "metadata": {"lang": "en"},
    }


def test_search_with_an_image_for_images(run, path, images):
    run("index", "add", path, images)
    draw_image("red").save(path.parent / "query.png")
    options = ("--image", path.parent / "query.png", "--instruction", "", "--json")
    hits = json.loads(run("search", path, *options, "--target", "image").out)
    assert [hit["id"] for hit in hits] == ["red.png"]
    assert hits[0]["image"] == str(images / "red.png")
    for mode in ("generate", "rerank", "fast"):
        hits = json.loads(run("search", path, "blue", *options, "--target", "pair", "--mode", mode).out)
        assert [hit["modality"] for hit in hits] == [Modality.IMAGE_TEXT.label]


def test_search_shows_text_as_it_is(run, path, images):
    run("index", "add", path, images)
    assert "a blue [bold] square" in run("search", path, "a blue square", "--target", "pair").out


def test_search_and_count_with_filters(run, path, tmp_path):
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps({"id": "m0", "text": "gatto", "lang": "it", "year": 1999}))
    run("index", "add", path, more)

    def found(*options: object) -> list[str]:
        return sorted(hit["id"] for hit in json.loads(run("search", path, "cat", "--json", *options).out))

    assert found("--where", "lang = 'it' AND year < 2000") == ["m0"]
    assert found("--where", "lang = 'en'") == ["t0", "t1", "t2"]
    (tmp_path / "ids.txt").write_text("t1\r\nm0\nnobody\n\n", encoding="utf-8-sig")
    assert found("--ids-from", tmp_path / "ids.txt") == ["m0", "t1"]
    assert found("--ids-from", tmp_path / "ids.txt", "--where", "lang = 'en'") == ["t1"]
    assert "Nothing found" in run("search", path, "cat", "--where", "lang = 'fr'").out
    assert run("index", "count", path).out == "4\n"
    assert run("index", "count", path, "--where", "year IS NULL").out == "3\n"
    assert "lang (text), year (number)" in run("index", "info", path).out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--where", "colour = 'red'"], "The fields of this index are id (text), text (text)"),
        (["--where", "lang ="], "cannot be used"),
        (["--ids-from", "missing.txt"], "missing.txt cannot be read"),
    ],
)
def test_filters_that_cannot_be_used_are_explained(run, path, options, sentence):
    result = run("search", path, "cat", *options)
    assert result.status == 1
    assert sentence in result.err


def test_search_that_finds_nothing_says_so(run, path):
    result = run("search", path, "cat", "--target", "image")
    assert result.status == 0
    assert "Nothing found" in result.out
    assert run("search", path, "cat", "--target", "image", "--json").out == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["cat", "--mode", "best"], "There is no search mode 'best'. Choose one of generate, rerank, fast."),
        (["cat", "-k", "0"], "k is 0; it must be at least 1."),
        (["cat", "--target", "video"], "'video' is not a modality"),
        ([], "there is neither text nor an image to search with"),
        (["--image", "missing.png"], "missing.png: there is no such file"),
    ],
)
def test_a_search_that_cannot_be_done_is_one_sentence_on_stderr(run, path, arguments, sentence):
    result = run("search", path, *arguments)
    assert result.status == 1
    assert sentence in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""
    assert "Traceback" not in result.err


def test_every_command_names_a_missing_index(run, tmp_path, table):
    missing = tmp_path / "missing.genius"
    commands = {
        ("index", "add"): [table],
        ("index", "upsert"): [table],
        ("index", "delete"): ["t1"],
        ("index", "get"): ["t1"],
        ("index", "filter"): ["--where", "lang = 'en'"],
        ("index", "export"): [tmp_path / "out.jsonl"],
        ("search",): ["cat"],
        **{("index", name): [] for name in ("count", "info", "versions", "verify", "reindex", "compact")},
    }
    for command, arguments in commands.items():
        result = run(*command, missing, *arguments)
        assert result.status == 1
        assert f"There is no index at {missing}" in result.err
    assert not missing.exists()


def test_an_index_of_another_model_is_refused(run, path, monkeypatch):
    monkeypatch.setattr(Genius, "from_pretrained", lambda name: tiny_model(seed=5))
    result = run("search", path, "cat")
    assert result.status == 1
    assert "was made with mini" in result.err
    assert tiny_model(seed=5).fingerprint in result.err


def test_demo_uses_the_given_folder(run, monkeypatch, tmp_path):
    called = []
    monkeypatch.setattr("genius.demo.run.run_demo", called.append)
    assert run("demo", "--folder", tmp_path).status == 0
    assert called == [tmp_path]


def test_train_reads_its_configuration(run, monkeypatch, tmp_path):
    called = []
    monkeypatch.setattr("genius.train.run.train", lambda *arguments: called.append(arguments))
    (tmp_path / "my.toml").write_text("seed = 5")
    data, out = tmp_path / "data", tmp_path / "out"
    assert run("train", data, "--out", out, "--config", tmp_path / "my.toml").status == 0
    assert called[0][:2] == ([data], out)
    assert called[0][2].seed == 5
    (tmp_path / "my.toml").write_text('seed = 5\nprecision = "fp16"')
    assert run("train", data, "--out", out, "--config", tmp_path / "my.toml", "--device", "cuda").status == 0
    assert (called[1][2].device, called[1][2].precision) == ("cuda", "fp16")
    assert run("train", data, "--out", out, "--config", tmp_path / "my.toml", "--precision", "bf16").status == 0
    assert (called[2][2].device, called[2][2].precision) == ("auto", "bf16")
    (tmp_path / "my.toml").write_text("sed = 5")
    assert run("train", data, "--out", out, "--config", tmp_path / "my.toml").status == 1


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    write_tiny_benchmark(tmp_path / "bench")
    return tmp_path / "bench"


def test_evaluate_prints_tables_and_keeps_a_run(run, bench, tmp_path):
    out = tmp_path / "run"
    asked = ("--tasks", "shapes_task0, shapes_task3", "--methods", "fast,exact", "--limit", 3, "--prompts", "all")
    result = run("evaluate", bench, *asked, "--beam", 20, "--budget", 30, "--out", out)
    assert result.status == 0, result.err
    for words in ("local pools", "global pools", "shapes_task3", "ratio to exact", "MRR@10", "nDCG@10", "spread", "±"):
        assert words in result.out
    assert f"genius report {out}" in result.out
    written = json.loads((out / "run.json").read_text())
    assert [written[name] for name in ("beam", "budget", "limit", "prompts", "split")] == [20, 30, 3, "all", "test"]
    asked = [(s["setting"], s["task"], s["method"]) for s in written["results"]]
    tasks, methods = ("shapes_task0", "shapes_task3"), ("exact", "fast")
    assert asked == [(s, t, m) for s in ("local", "global") for t in tasks for m in methods]


def test_evaluate_in_one_setting_with_groups_of_methods(run, bench, monkeypatch):
    seen = []
    monkeypatch.setattr(genius.evaluation.evaluate, "evaluate", lambda *arguments: seen.append(arguments) or [])
    for methods in ((), ("--methods", "all"), ("--methods", "rq,baselines,exact")):
        assert run("evaluate", bench, "--setting", "global", "--split", "val", *methods).status == 0
    assert {(arguments[2], arguments[3]) for arguments in seen} == {("val", ("global",))}
    ours, baselines = genius.evaluation.runs.METHODS, genius.evaluation.runs.BASELINES
    assert seen[0][4] is None  # `evaluate` chooses, by what the model has
    assert [tuple(arguments[4]) for arguments in seen[1:]] == [ours + baselines, ("exact", *baselines)]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (("--setting", "all"), "no setting 'all'"),
        (("--methods", "best"), "no method 'best'"),
        (("--methods", ","), "No method was given"),
        (("--tasks", "mscoco"), "begins with 'mscoco'"),
        (("--prompts", "second"), "'second'"),
        (("--split", "dev"), "no dev queries"),
    ],
)
def test_evaluate_names_what_it_does_not_know(run, bench, wrong, sentence):
    result = run("evaluate", bench, *wrong)
    assert result.status == 1
    assert sentence in result.err


def test_ablate_and_report_pass_their_options_on(run, tmp_path, monkeypatch):
    ablated, reported = [], []
    monkeypatch.setattr(
        "genius.evaluation.ablations.ablate",
        lambda *arguments, precision: ablated.append((*arguments[:-1], precision)),
    )
    monkeypatch.setattr("genius.evaluation.report.write_report", lambda *arguments: reported.append(arguments[:-1]))
    out, cache, page = tmp_path / "out", tmp_path / "cache", tmp_path / "page.html"
    assert run("ablate", tmp_path, "--out", out).status == 0
    options = ("--model", "my", "--cache", cache, "--table", "beams,ids", "--table", "components", "--size", "quick")
    options += ("--seeds", 2, "--rows", "beam-1,beam-50", "--limit", 9, "--precision", "bf16")
    assert run("ablate", tmp_path, out, "--out", out, *options).status == 0
    chosen = (["beams", "ids", "components"], "quick", 2, ["beam-1", "beam-50"], 9, "bf16")
    assert ablated == [
        ([tmp_path], out, "mini", None, None, None, None, None, None, "auto"),
        ([tmp_path, out], out, "my", cache, *chosen),
    ]
    assert run("report", out, cache, "--out", page).status == 0
    assert run("report", out).status == 0
    assert reported == [([out, cache], page), ([out], Path("report.html"))]


def test_version(run):
    assert run("--version").out == f"genius {genius.__version__}\n"


@pytest.mark.parametrize(
    "command",
    [
        *("", "index", "index create", "index add", "index upsert", "index delete", "index get", "index filter"),
        *("index count", "index info", "index versions", "index verify", "index reindex", "index compact"),
        *("index export", "search", "demo", "train", "evaluate", "ablate", "report", "serve", "mcp", "convert"),
        *("model push", "model card", "model onnx", "model t5", "mbeir check", "mbeir karpathy"),
        "dataset make",
    ],
)
def test_every_command_has_help_with_an_example(run, command):
    result = run(*command.split(), "--help")
    assert result.status == 0
    assert (
        "genius demo" in result.out
        if command == ""
        else command == "index" or f"Example: genius {command}" in result.out
    )


def test_help_needs_no_heavy_modules():
    program = (
        "import sys\n"
        "try:\n    from genius.cli.app import main; main(['--help'])\n"
        "except SystemExit:\n    print([m for m in ('torch', 'lance', 'pyarrow', 'numpy') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "[]"


def test_the_installed_command_is_this_one():
    project = tomllib.loads((Path(genius.__file__).parents[1] / "pyproject.toml").read_text())
    assert project["project"]["scripts"]["genius"] == "genius.cli.app:main"


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="this system has no priorities")
def test_long_work_makes_way_for_others() -> None:
    """In a process of its own: nobody may raise a priority again."""
    code = "import os; from genius.cli.console import lower_priority; lower_priority(); lower_priority(); "
    code += "print(os.getpriority(os.PRIO_PROCESS, 0))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == max(5, os.getpriority(os.PRIO_PROCESS, 0))
