"""Indexes in an object store, against moto's S3 server in a process of its own."""

import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest
from fakes import tiny_model
from object_store import BUCKET, as_environment, s3, s3_server
from processes import Talk, other
from typer.testing import CliRunner

from genius import BadIndex, Index, Item
from genius.cli.app import app
from genius.index import lease
from genius.index.folder import LOCK, LocalFolder, open_folder
from genius.index.models import keep_model
from genius.model.genius import Genius


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    with s3_server() as options:
        yield options


@pytest.fixture(scope="module")
def model() -> Genius:
    return tiny_model()


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    return f"s3://{BUCKET}/{request.node.name}/photos.genius"


def texts(prefix: str, count: int = 8) -> list[Item]:
    return [Item(f"{prefix}{i}", f"thing {prefix} {i}", metadata={"n": i}) for i in range(count)]


def ids(index: Index) -> list[str]:
    return sorted(item.id for item in index)


def names(*prefixes: str, count: int = 8) -> list[str]:
    return sorted(f"{prefix}{i}" for prefix in prefixes for i in range(count))


def test_everything_an_index_does(url: str, store: dict[str, str], model: Genius, tmp_path: Path) -> None:
    index = Index.create(url, model, storage_options=store)
    assert index.path == url
    index.add(texts("a"))
    index.add(texts("b"))
    index.upsert([Item("a0", "another thing", metadata={"n": 100})])
    assert index.delete("b0") == 1
    fresh = Index.open(url, model, storage_options=store)
    assert len(fresh) == 15
    assert {hit.id for hit in fresh.search("thing a 1", k=15)} == set(ids(index))
    assert [item.id for item in fresh.filter("n = 100")] == ["a0"]
    assert fresh.verify(deep=True) == Index.verify_files(url, store) == fresh.files_without_checksum() == []
    info = fresh.info()
    assert (info.path, info.items, info.version) == (url, 15, index.version)
    assert info.bytes > 1000
    report = index.compact(keep=None)
    assert report.files_merged
    assert index.verify() == []
    index.export(tmp_path / "items.jsonl")
    assert len((tmp_path / "items.jsonl").read_text().splitlines()) == 15
    restored = Index.restore(url, 3, storage_options=store)
    assert fresh.refresh()
    assert fresh.version == restored.version
    assert ids(fresh) == names("a")
    assert index.compact(keep=timedelta(0)).versions_removed
    assert index.verify() == []
    index.reindex()
    assert fresh.refresh()
    assert fresh.header.generation == 1
    assert fresh.verify(deep=True) == []


def test_damage_is_found_and_repaired(url: str, store: dict[str, str], model: Genius) -> None:
    index = Index.create(url, model, storage_options=store)
    index.add(texts("a"))
    index.add(texts("b"))
    client, prefix = s3(store), url.removeprefix(f"s3://{BUCKET}/")
    listed = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/items.lance/_versions/")["Contents"]
    manifest = min(one["Key"] for one in listed if one["Key"].endswith(".manifest"))
    content = bytearray(client.get_object(Bucket=BUCKET, Key=manifest)["Body"].read())
    content[30] ^= 1
    client.put_object(Bucket=BUCKET, Key=manifest, Body=bytes(content))
    with pytest.raises(BadIndex, match="has changed since it was written"):
        Index.open(url, model, storage_options=store)
    (problem,) = Index.verify_files(url, store)
    assert f"genius index restore {url}" in problem.repair
    report = Index.restore(url, storage_options=store)
    assert any(path.endswith(".manifest") for path in report.set_aside)
    assert "quarantine" in open_folder(url, store).names()
    index = Index.open(url, model, storage_options=store)
    assert ids(index) == names("a")
    assert index.verify(deep=True) == []


def test_a_reader_sees_what_another_process_writes(url: str, store: dict[str, str], model: Genius) -> None:
    Index.create(url, model, storage_options=store)
    reader = Index.open(url, model, refresh=0, storage_options=store)
    assert len(reader) == 0
    with other(add, url, store, ["a"]) as writer:
        assert writer.hear() == 8
    assert len(reader) == 8
    assert reader.search("thing a 3", k=1)[0].id.startswith("a")


def add(talk: Talk, url: str, store: dict[str, str], prefixes: list[str], seconds: float = 20.0) -> int:
    lease.LEASE_SECONDS = seconds
    index = Index.open(url, tiny_model(), wait=60, storage_options=store)
    return sum(index.add(texts(prefix)).added for prefix in prefixes)


def test_two_writers_at_once_lose_and_double_nothing(url: str, store: dict[str, str], model: Genius) -> None:
    Index.create(url, model, storage_options=store)
    same = [f"s{i}" for i in range(3)]
    mine, theirs = [f"m{i}" for i in range(3)], [f"t{i}" for i in range(3)]
    first = [prefix for pair in zip(mine, same, strict=True) for prefix in pair]
    second = [prefix for pair in zip(same, theirs, strict=True) for prefix in pair]
    with other(add, url, store, first) as one, other(add, url, store, second) as two:
        added = one.hear() + two.hear()
    assert added == 8 * 9  # each item once, also those that both added
    index = Index.open(url, model, storage_options=store)
    assert ids(index) == names(*mine, *theirs, *same)
    assert index.verify() == []


def add_for_ever(talk: Talk, url: str, store: dict[str, str], prefix: str) -> None:
    lease.LEASE_SECONDS = 1.0
    index = Index.open(url, tiny_model(), storage_options=store)
    talk.say("ready")
    for number in range(1000):
        index.add(texts(f"{prefix}{number}-"))
        talk.say(number)


@pytest.mark.parametrize("kill", range(3))
def test_a_writer_that_is_killed(
    url: str, store: dict[str, str], model: Genius, kill: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 1.0)
    Index.create(url, model, storage_options=store)
    with other(add_for_ever, url, store, "k") as writer:
        assert writer.hear() == "ready"
        safe = writer.hear()
        time.sleep(0.07 * kill)
    index = Index.open(url, model, storage_options=store)
    found = ids(index)
    assert len(found) % 8 == 0  # a commit is there completely or not at all
    assert set(names(*(f"k{number}-" for number in range(safe + 1)))) <= set(found)
    assert index.verify() == []
    assert index.add(texts("after")).added == 8  # the lease of the killed writer runs out
    assert index.verify() == []


def test_a_living_writer_keeps_others_out(
    url: str, store: dict[str, str], model: Genius, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 2.0)
    index = Index.create(url, model, storage_options=store)
    waiting = Index.open(url, model, wait=0.1, storage_options=store)
    with index._session.writing():
        time.sleep(2.5)  # longer than the lease: it is renewed
        with pytest.raises(BadIndex, match=r"Another process is writing to s3://.* 0\.1 seconds"):
            waiting.add(texts("a"))
    assert waiting.add(texts("a")).added == 8


def test_a_writer_that_lost_its_lease_writes_nothing(
    url: str, store: dict[str, str], model: Genius, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 5.0)
    index = Index.create(url, model, storage_options=store)
    keep = lease.Lease._keep
    monkeypatch.setattr(lease.Lease, "_keep", lambda self, released: None)  # as if the process had been stopped
    with index._session.writing() as snapshot:
        monkeypatch.setattr(lease.Lease, "_keep", keep)
        other_writer = Index.open(url, model, wait=20, storage_options=store)
        assert other_writer.add(texts("a")).added == 8
        with pytest.raises(BadIndex, match="another process may have begun to write"):
            index._session.change(snapshot.row_ids_of(["a0"]), snapshot.dataset.schema.empty_table())
    assert index.add(texts("a")).unchanged == 8
    assert index.verify() == []


def test_items_that_another_writer_added_unseen_are_not_doubled(
    tmp_path: Path, model: Genius, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last defence: Lance puts an append behind one that it does not conflict with."""
    monkeypatch.setattr(LocalFolder, "locked", lambda self, wait: nullcontext())
    index = Index.create(tmp_path / "a.genius", model)
    index.add(texts("a", 2))
    before = index._session.snapshot
    Index.open(tmp_path / "a.genius", model).add(texts("b"))
    monkeypatch.setattr(index._session, "refresh", lambda: False)
    assert index._session.snapshot is before
    with pytest.raises(BadIndex, match="its items with these ids were kept: b0, b1"):
        index.add(texts("b", 2))
    fresh = Index.open(tmp_path / "a.genius", model)
    assert ids(fresh) == sorted([*names("b"), "a0", "a1"])
    assert fresh.verify() == []


def test_a_model_inside_an_index_comes_with_it(
    url: str, store: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.create(url, tiny_model(), storage_options=store)
    index.add(texts("a"))
    other_model = tiny_model(seed=3)
    index.reindex(keep_model(index._folder, other_model))
    assert index.header.model == f"models/{other_model.fingerprint}"
    loaded: list[set[str]] = []

    def from_pretrained(path: str) -> Genius:
        loaded.append({file.name for file in Path(path).iterdir()})
        return other_model

    monkeypatch.setattr(Genius, "from_pretrained", from_pretrained)
    fresh = Index.open(url, storage_options=store)
    assert fresh.model.fingerprint == other_model.fingerprint
    other_model.save_pretrained(tmp_path / "same")
    assert loaded == [{file.name for file in (tmp_path / "same").iterdir()}]
    index.reindex(tiny_model())
    index.compact(keep=timedelta(0))
    assert index._folder.names("models") == []


def test_old_versions_of_the_lease_are_removed(
    url: str, store: dict[str, str], model: Genius, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 0.05)
    held = lease.Lease(f"{url}/{LOCK}", store)
    monkeypatch.setattr(lease, "_KEPT", 6)
    for _ in range(8):
        assert held.acquire(5)
        held.release()
        time.sleep(0.2)
    assert len(open_folder(url, store).names(f"{LOCK}/_versions")) < 16


def test_a_missing_bucket(store: dict[str, str], model: Genius) -> None:
    for call in (Index.create, Index.open):
        with pytest.raises(BadIndex, match=r"^The bucket of the index does not exist\. Check the URL, or create the"):
            call("s3://no-such-bucket/photos.genius", model, storage_options=store)


def test_nothing_there(url: str, store: dict[str, str], model: Genius) -> None:
    with pytest.raises(BadIndex, match=rf"^There is no index at {url}\. Create one with `genius index create`\.$"):
        Index.open(url, model, storage_options=store)
    Index.create(url, model, storage_options=store)
    with pytest.raises(BadIndex, match="exists already: it is an index"):
        Index.create(url, model, storage_options=store)


def test_wrong_credentials(model: Genius) -> None:
    with s3_server(INITIAL_NO_AUTH_ACTION_COUNT="1") as options:  # creating the bucket needs no credentials
        for call in (Index.create, Index.open):
            with pytest.raises(BadIndex, match=r"^The object store refused the credentials\. Check them"):
                call(f"s3://{BUCKET}/photos.genius", model, storage_options=options)


def test_a_store_that_does_not_answer(store: dict[str, str], model: Genius) -> None:
    options = {**store, "aws_endpoint": "http://127.0.0.1:9", "client_max_retries": "0", "client_retry_timeout": "1"}
    with pytest.raises(BadIndex, match=r"^The object store cannot be reached\. Check the network and the endpoint"):
        Index.open(f"s3://{BUCKET}/photos.genius", model, storage_options=options)


def test_commands_take_urls_and_variables(
    url: str, store: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    for name, value in as_environment(store).items():
        monkeypatch.setenv(name, value)
    model.source = "mini"
    monkeypatch.setattr(Genius, "from_pretrained", lambda *_: model)
    (tmp_path / "items.jsonl").write_text("\n".join(json.dumps({"id": f"i{i}", "text": f"text {i}"}) for i in range(5)))

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == 0, result.output
        return result.output

    run("index", "create", url, str(tmp_path / "items.jsonl"))
    assert run("index", "count", url).strip() == "5"
    assert url in run("index", "info", url)
    run("index", "delete", url, "i0")
    assert "in order" in run("index", "verify", url)
    assert json.loads(run("index", "versions", url, "--json"))
    run("index", "compact", url)
    assert "i3" in run("search", url, "text 3", "--json")
