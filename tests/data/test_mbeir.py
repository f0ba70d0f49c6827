import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genius.data.items import Modality
from genius.data.mbeir import TASKS, Benchmark, Candidate, Instruction, MBQuery, Task
from genius.data.mbeir_writer import write_global_pool, write_instructions, write_pool, write_queries
from genius.errors import BadData

IMAGE, TEXT, PAIR = Modality.IMAGE, Modality.TEXT, Modality.IMAGE_TEXT
BENCH = Path(__file__).parents[3] / "shared" / "bench"


def lines(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture
def root(tmp_path):
    """A tiny layout with the published set's names and traps."""
    lines(
        tmp_path / "query/test/mbeir_mscoco_task0_test.jsonl",
        {
            "qid": "9:1",
            "query_txt": "a cat",
            "query_img_path": None,
            "query_modality": "text",
            "query_src_content": None,
            "pos_cand_list": ["9:10", {"did": "9:11"}],
            "neg_cand_list": [{"did": "9:12"}],
            "task_id": 0,
        },
        "",
        {"qid": "9:2", "query_txt": "Ein Hündchen", "query_modality": "text", "pos_cand_list": [{"did": "9:12"}]},
    )
    lines(
        tmp_path / "qrels/test/mbeir_mscoco_task0_test_qrels.txt", "9:1 0 9:10 1 0", "9:1 0 9:11 1 0", "9:2 0 9:12 1 0"
    )
    lines(
        tmp_path / "cand_pool/local/mbeir_mscoco_task0_test_cand_pool.jsonl",
        *({"did": f"9:{n}", "txt": None, "img_path": f"images/{n}.jpg", "modality": "image"} for n in (10, 11, 12)),
    )
    lines(
        tmp_path / "query/test/mbeir_cirr_task7_test.jsonl",
        {
            "qid": "8:1",
            "query_txt": "in red",
            "query_img_path": "images/q.jpg",
            "query_modality": "text,image",
            "pos_cand_list": ["8:5"],
        },
    )
    lines(tmp_path / "qrels/test/mbeir_cirr_task7_test_qrels.txt", "8:1\t0\t8:5\t1\t7", "8:1 0 8:6 0 7")
    lines(
        tmp_path / "cand_pool/local/mbeir_cirr_task7_cand_pool.jsonl",
        {"did": "8:5", "txt": "", "img_path": "images/5.jpg", "modality": "image"},
    )
    lines(
        tmp_path / "query/train/mbeir_webqa_train.jsonl",
        {"qid": "2:1", "query_txt": "who?", "query_modality": "text", "pos_cand_list": ["2:7"]},
        {"qid": "2:2", "query_txt": "where?", "query_modality": "text", "pos_cand_list": ["2:8"]},
        {"qid": "2:3", "query_txt": "when?", "query_modality": "text", "pos_cand_list": ["2:8"], "task_id": 2},
    )
    lines(tmp_path / "qrels/train/mbeir_webqa_train_qrels.txt", "2:1 0 2:7 1 1", "2:2 0 2:8 1 2", "2:3 0 2:8 1 2")
    lines(
        tmp_path / "cand_pool/global/mbeir_union_train_cand_pool.jsonl",
        {"did": "2:7", "txt": "a text", "img_path": None, "modality": "text", "src_content": "{}"},
        {"did": "2:8", "txt": "a title", "img_path": "images/8.jpg", "modality": "text,image"},
        {"did": "2:9", "txt": "a title", "img_path": "images/8.jpg", "modality": "image,text"},
    )
    lines(tmp_path / "query/union_train/mbeir_union_up_train.jsonl", {"qid": "2:1"})
    lines(
        tmp_path / "instructions/query_instructions.tsv",
        "query_modality\tcand_modality\tdataset_name\tdataset_id\tprompt_1\tprompt_2\tprompt_3\tprompt_4",
        "text\timage\tMSCOCO\t9\tFind the photo.\tShow it.\tPick it.\tGet it.",
        "image,text\timage\tCIRR\t8\tFind the changed photo.\tShow it.\tPick it.\tGet it.",
        "text\ttext,image\tWebQA\t2\tFind a page.\tShow one.\t\t",
    )
    return tmp_path


def test_tasks_come_from_the_file_names_and_from_the_qrels_of_mixed_files(root):
    bench = Benchmark(root)
    assert bench.splits() == ["test", "train"]
    assert bench.tasks("test") == [Task("mscoco", 0), Task("cirr", 7)]
    assert bench.tasks("train") == [Task("webqa", 1), Task("webqa", 2)]


def test_tasks_of_a_mixed_file_whose_lines_name_them_need_no_qrels(root):
    file, qrels = root / "query/train/mbeir_webqa_train.jsonl", next((root / "qrels/train").glob("*webqa*"))
    tasks = {qid: task_id for qid, _, _, _, task_id in (line.split() for line in qrels.read_text().splitlines())}
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row | {"task_id": int(tasks[row["qid"]])}) + "\n" for row in rows))
    qrels.unlink()
    assert Benchmark(root).tasks("train") == [Task("webqa", 1), Task("webqa", 2)]


def test_task_knows_its_modalities():
    assert sorted(TASKS) == [0, 1, 2, 3, 4, 6, 7, 8]
    kinds = {id: (Task("x", id).query_modality.label, Task("x", id).target_modality.label) for id in TASKS}
    assert kinds[2] == ("text", "image,text")
    assert kinds[3] == ("image", "text")
    assert kinds[7] == ("image,text", "image")
    assert Task("cirr", 7).name == "cirr_task7"
    with pytest.raises(BadData, match="no task 5"):
        Task("x", 5)


def test_queries_with_positives_as_strings_and_as_objects(root):
    assert Benchmark(root).queries(Task("mscoco", 0), "test") == [
        MBQuery("9:1", "a cat", None, TEXT, ("9:10", "9:11"), 0, "mscoco", negatives=("9:12",)),
        MBQuery("9:2", "Ein Hündchen", None, TEXT, ("9:12",), 0, "mscoco"),
    ]


def test_both_spellings_of_a_pair(root):
    bench = Benchmark(root)
    (query,) = bench.queries(Task("cirr", 7), "test")
    assert query.modality is PAIR
    assert [candidate.modality for candidate in bench.global_pool("train")] == [TEXT, PAIR, PAIR]


def test_queries_of_one_task_in_a_mixed_file(root):
    bench = Benchmark(root)
    assert [query.qid for query in bench.queries(Task("webqa", 1), "train")] == ["2:1"]
    queries = bench.queries(Task("webqa", 2), "train")
    assert [(query.qid, query.task_id) for query in queries] == [("2:2", 2), ("2:3", 2)]
    assert bench.qrels(Task("webqa", 2), "train") == {"2:2": {"2:8"}, "2:3": {"2:8"}}


def test_pool_is_named_with_or_without_the_split(root):
    bench = Benchmark(root)
    assert [candidate.did for candidate in bench.pool(Task("mscoco", 0), "test")] == ["9:10", "9:11", "9:12"]
    assert list(bench.pool(Task("cirr", 7), "test")) == [Candidate("8:5", None, "images/5.jpg", IMAGE)]
    assert next(bench.global_pool("train")) == Candidate("2:7", "a text", None, TEXT)


def test_qrels_keep_the_relevant(root):
    bench = Benchmark(root)
    assert bench.qrels(Task("mscoco", 0), "test") == {"9:1": {"9:10", "9:11"}, "9:2": {"9:12"}}
    assert bench.qrels(Task("cirr", 7), "test") == {"8:1": {"8:5"}}


def test_prompts_by_dataset_and_both_modalities(root):
    bench = Benchmark(root)
    assert bench.prompts("mscoco", TEXT, IMAGE) == ("Find the photo.", "Show it.", "Pick it.", "Get it.")
    assert bench.prompts("mscoco", TEXT, IMAGE) == bench.prompts("MSCOCO", TEXT, IMAGE)
    assert bench.prompts("webqa", TEXT, PAIR) == ("Find a page.", "Show one.")
    with pytest.raises(BadData, match=r"query_instructions\.tsv: there is no row for webqa, text -> text"):
        bench.prompts("webqa", TEXT, TEXT)


def test_items_and_queries_point_to_the_images_and_carry_the_prompt(root):
    bench = Benchmark(root)
    (candidate,) = bench.pool(Task("cirr", 7), "test")
    item = bench.item(candidate)
    assert (item.id, item.image, item.modality) == ("8:5", str(root / "images/5.jpg"), IMAGE)
    (query,) = bench.queries(Task("cirr", 7), "test")
    asked = bench.query(query)
    assert asked.prompt() == "Find the changed photo. in red."
    assert asked.image == str(root / "images/q.jpg")
    assert asked.target_modality is None
    assert bench.query(query, "Show it.").prompt() == "Show it. in red."


@pytest.mark.parametrize(
    ("missing", "ask"),
    [
        ("query/val", lambda bench: bench.tasks("val")),
        ("no queries for mscoco_task3", lambda bench: bench.queries(Task("mscoco", 3), "test")),
        ("mbeir_mscoco_task3_test_cand_pool.jsonl", lambda bench: bench.pool(Task("mscoco", 3), "test")),
        ("mbeir_webqa_task1_train_cand_pool.jsonl", lambda bench: bench.pool(Task("webqa", 1), "train")),
        ("mbeir_mscoco_task3_test_qrels.txt", lambda bench: bench.qrels(Task("mscoco", 3), "test")),
    ],
)
def test_what_is_missing_is_named(root, missing, ask):
    with pytest.raises(BadData, match=missing):
        ask(Benchmark(root))


def test_folder_that_is_no_benchmark_is_refused(tmp_path):
    with pytest.raises(BadData, match="no `query` folder"):
        Benchmark(tmp_path)
    with pytest.raises(BadData, match="no such folder"):
        Benchmark(tmp_path / "nowhere")


def test_missing_instructions_file_is_named(root):
    (root / "instructions/query_instructions.tsv").unlink()
    with pytest.raises(BadData, match=r"query_instructions\.tsv"):
        Benchmark(root).prompts("mscoco", TEXT, IMAGE)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"did": "9:1", "txt": "cut o', "not JSON"),
        ('{"txt": "a"}', "the field 'did' is missing"),
        ('{"did": 7, "txt": "a"}', "did is 7, not a string"),
        ('{"did": "9:1", "txt": "a", "modality": "video"}', "'video' is not a modality"),
        ('{"did": "9:1", "txt": null, "img_path": ""}', "neither text nor an image"),
        ('{"did": "9:1", "txt": 5}', "int, not a string"),
        ("[1, 2]", "not a record"),
        ("5", "not a record"),
        ("\udcff", "not JSON"),
        ("version https://git-lfs.github.com/spec/v1", "git lfs pull"),
    ],
)
def test_broken_line_is_named_by_file_and_number(root, line, words):
    path = root / "cand_pool/global/mbeir_union_train_cand_pool.jsonl"
    good = path.read_bytes()
    path.write_bytes(good + line.encode("utf-8", "surrogateescape") + b"\n")
    with pytest.raises(BadData, match=words) as caught:
        list(Benchmark(root).global_pool("train"))
    assert f"{path}, line 4: " in str(caught.value)


def test_broken_query_and_qrels_and_instruction_lines(root):
    bench = Benchmark(root)
    path = lines(root / "query/test/mbeir_mscoco_task0_test.jsonl", {"qid": "9:1", "query_txt": "a"})
    with pytest.raises(BadData, match=r"mscoco_task0_test\.jsonl, line 1: the field 'pos_cand_list' is missing"):
        bench.queries(Task("mscoco", 0), "test")
    path = lines(root / "qrels/test/mbeir_mscoco_task0_test_qrels.txt", "9:1 0 9:10 1 0", "9:1 0 9:10 one 0")
    with pytest.raises(BadData, match=r"qrels\.txt, line 2"):
        bench.qrels(Task("mscoco", 0), "test")
    path = lines(root / "qrels/test/mbeir_mscoco_task0_test_qrels.txt", "9:1 9:10")
    with pytest.raises(BadData, match=r"qrels\.txt, line 1"):
        bench.qrels(Task("mscoco", 0), "test")
    path = root / "instructions/query_instructions.tsv"
    header = path.read_text("utf-8").splitlines()[0]
    for row in (
        "text\timage\tmscoco\tnine\tFind it.",
        "text\tvideo\tmscoco\t9\tFind it.",
        "text\timage\tmscoco\t9",
        "x",
    ):
        lines(path, header, row)
        with pytest.raises(BadData, match=r"query_instructions\.tsv, line 2"):
            Benchmark(root).prompts("mscoco", TEXT, IMAGE)
    lines(path, "text\timage\tmscoco\t9\tFind it.")
    with pytest.raises(BadData, match=r"line 1: the columns must be"):
        Benchmark(root).prompts("mscoco", TEXT, IMAGE)


words = st.text(st.characters(exclude_categories=("Cs",)), min_size=1).filter(lambda text: bool(text.strip()))
ids = st.integers(0, 99).map(lambda number: f"9:{number}")


@st.composite
def contents(draw):
    modality = draw(st.sampled_from(Modality))
    text = None if modality is IMAGE else draw(words)
    image = None if modality is TEXT else f"images/{draw(st.integers(0, 9))}.jpg"
    return text, image, modality


@st.composite
def some_queries(draw):
    return [
        MBQuery(f"9:{n}", *draw(contents()), tuple(draw(st.lists(ids))), 6, "tiny", tuple(draw(st.lists(ids))))
        for n in range(draw(st.integers(0, 4)))
    ]


@given(queries=some_queries(), candidates=st.lists(contents(), max_size=4))
def test_what_is_written_is_read_back_equal(tmp_path_factory, queries, candidates):
    root = tmp_path_factory.mktemp("written")
    task = Task("tiny", 6)
    pool = [Candidate(f"9:{n}", *content) for n, content in enumerate(candidates)]
    write_queries(root, task, "val", queries)
    write_pool(root, task, "val", pool)
    write_global_pool(root, "val", [*pool, *pool])
    bench = Benchmark(root)
    assert bench.tasks("val") == [task]
    assert bench.queries(task, "val") == queries
    assert list(bench.pool(task, "val")) == list(bench.global_pool("val")) == pool
    assert bench.qrels(task, "val") == {query.qid: set(query.positives) for query in queries if query.positives}


def test_instructions_are_read_back_equal(tmp_path):
    rows = [
        Instruction("tiny", 14, TEXT, IMAGE, ("Find a picture.", "Zeig’s mir!")),
        Instruction("tiny", 14, PAIR, PAIR, ('"Find" the pair.', "Show\tboth\u2028?")),
    ]
    write_instructions(tmp_path, rows)
    write_queries(tmp_path, Task("tiny", 0), "val", [])
    bench = Benchmark(tmp_path)
    assert bench.instructions == rows
    assert bench.prompts("tiny", PAIR, PAIR) == rows[1].prompts


def test_writers_refuse_what_could_not_be_read_back(tmp_path):
    query = MBQuery("9:1", "a", None, TEXT, ("9:1",), 0, "tiny")
    with pytest.raises(BadData, match="does not belong"):
        write_queries(tmp_path, Task("other", 0), "val", [query])
    with pytest.raises(BadData, match="white space"):
        write_queries(tmp_path, Task("tiny", 0), "val", [MBQuery("9 1", "a", None, TEXT, ("9:1",), 0, "tiny")])
    with pytest.raises(BadData, match="prompt is empty"):
        write_instructions(tmp_path, [Instruction("tiny", 1, TEXT, TEXT, ("a", " "))])
    with pytest.raises(BadData, match="same number of prompts"):
        write_instructions(
            tmp_path, [Instruction("a", 1, TEXT, TEXT, ("a",)), Instruction("b", 2, TEXT, TEXT, ("a", "b"))]
        )


def test_failed_write_leaves_the_old_file(tmp_path):
    good = [Candidate("9:1", "a", None, TEXT)]
    write_global_pool(tmp_path, "val", good)
    with pytest.raises(BadData):
        write_global_pool(tmp_path, "val", [Candidate("9:2", "b", None, TEXT), Candidate("", "c", None, TEXT)])
    (folder,) = (tmp_path / "cand_pool").iterdir()
    (path,) = folder.iterdir()
    assert "9:1" in path.read_text("utf-8")


@pytest.mark.skipif(not BENCH.is_dir(), reason="the benchmark is not beside the repository")
def test_the_real_benchmark():
    bench = Benchmark(BENCH)
    counts = json.loads((BENCH / "counts.json").read_text())
    for split in ("val", "test"):
        union = {candidate.did: candidate.modality for candidate in bench.global_pool(split)}
        assert len(union) == counts[f"cand_pool/global/mbeir_union_{split}_cand_pool.jsonl"]
        for task in bench.tasks(split):
            queries, qrels = bench.queries(task, split), bench.qrels(task, split)
            assert len(queries) == counts[f"query/{split}/mbeir_{task.name}_{split}.jsonl"]
            assert {query.qid: set(query.positives) for query in queries} == qrels
            assert {query.modality for query in queries} == {task.query_modality}
            assert {union[did] for dids in qrels.values() for did in dids} == {task.target_modality}
            assert {candidate.did for candidate in bench.pool(task, split)} >= {
                d for dids in qrels.values() for d in dids
            }
            assert len(bench.prompts(task.dataset, task.query_modality, task.target_modality)) == 4
    assert len(bench.tasks("test")) == 10
    first = next(candidate for candidate in bench.global_pool("train") if candidate.image_path)
    assert Path(bench.image(first.image_path)).is_file()
