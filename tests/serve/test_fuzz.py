"""The service against Schemathesis: requests made from its own description, right ones and wrong ones, in any order.

Every answer must be one that the description promises, and none may be an accident of the server. Afterwards the
service must answer as the index itself does: it has not been harmed by what it was asked.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from hostile import CONDITIONS, drawing, encoded, images, saved
from prometheus_client.parser import text_string_to_metric_families
from serving import PATIENCE, RunningServer, copy_index, drawn_items, mini_model, png, running_server

from genius.data.items import Query
from genius.index.index import Index

QUESTIONS = ("a red circle", "a blue star", "how to draw", "tomato soup", "猫")
IMAGES = [encoded(one.data) for one in images().values() if one.fate != "read" and len(one.data) < 2_000]
CHOICES: dict[str, list[str]] = {
    "index": ["shapes"],
    "id": [item.id for item in drawn_items()],
    "image": [encoded(png("red circle")), encoded(saved(drawing(), "WEBP")), *IMAGES],
    "where": ["colour = 'red'", "number > 5 AND modality = 'image'", "`long` IS NULL", *CONDITIONS],
    "pattern": [
        "0",
        "*",
        "2-*",
        "0-1-2",
        "0-17-203",
        "9",
        "*-*-*-*-*-*-*-*-*-*-*-*-*",
        "*-*-*-*-*-*-*-*-*-*-*-*-*-*",
        "-1",
    ],
}
"""Values that are tried beside those made up: they lead further into the service."""
BOUND = {
    "query.index": ("index", 0.95),
    "path.id": ("id", 0.7),
    "path.pattern": ("pattern", 0.7),
    "query.where": ("where", 0.8),
    **{f"body.{place}image": ("image", 0.8) for place in ("", "queries[*].", "items[*].")},
    **{f"body.{place}where": ("where", 0.6) for place in ("", "queries[*].")},
    **{f"body.{place}like": ("id", 0.6) for place in ("", "queries[*].")},
}
CHECKED = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance"),
    *("response_schema_conformance", "negative_data_rejection", "unsupported_method", "allow_header_conformance"),
)
"""All that Schemathesis has for a service like this, but for positive_data_acceptance: no schema says what is SQL."""


def write_config(folder: Path) -> Path:
    lines = []
    for name, values in CHOICES.items():
        lines += [f"[dictionaries.{name}]", f"values = {json.dumps([one for one in values if one.isprintable()])}"]
    lines.append("[parameters]")
    lines += [f'"{at}" = {{dictionary = "{name}", probability = {often}}}' for at, (name, often) in BOUND.items()]
    # Too much at once is answered 503, and the description says so; `statuses` tells how often.
    lines += ["[checks]", 'not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 503]']
    file = folder / "schemathesis.toml"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def fuzz(server: RunningServer, folder: Path, examples: int, seed: int, *options: str) -> int:
    """How many requests were made. Fails with what Schemathesis says."""
    report = folder / "report.json"
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(write_config(folder)), "run"]
    command += [f"{server.url}/openapi.json", "--max-examples", str(examples), "--seed", str(seed), "--no-color"]
    command += ["--checks", ",".join(CHECKED), "--request-timeout", "60", "--no-shrink", *options]
    command += ["--generation-database", "none", "--report", "json", "--report-json-path", str(report)]
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=3600, env={**os.environ, "NO_PROXY": "*"}
    )
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-5_000:]
    found = json.loads(report.read_text())
    assert found["complete"]
    assert found["operations"]["tested"] == found["operations"]["total"] >= 17
    return int(found["test_cases"]["generated"])


def measured(server: RunningServer) -> tuple[Counter[int], float]:
    """How many answers of each status there were, and the bytes of memory that are used."""
    text = httpx.get(f"{server.url}/metrics", timeout=PATIENCE, trust_env=False).text
    statuses, memory = Counter[int](), 0.0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "genius_requests_total" and sample.labels["route"] != "/readyz":
                statuses[int(sample.labels["status"])] += int(sample.value)
            elif sample.name == "process_resident_memory_bytes":
                memory = sample.value
    return statuses, memory


def ask(client: httpx.Client, body: Mapping[str, Any]) -> list[tuple[str, float]]:
    answer = client.post("/v1/search", json=body)
    assert answer.status_code == 200, answer.text
    return [(hit["id"], hit["score"]) for hit in answer.json()["hits"]]


def check_still_right(server: RunningServer, path: Path) -> None:
    """The service finds what the index finds, the index is in order, and nothing unforeseen is in the log."""
    with httpx.Client(base_url=server.url, timeout=PATIENCE, trust_env=False) as client:
        wait_for_jobs(client)
        index = Index.open(path, mini_model())
        for question in QUESTIONS:
            found = ask(client, {"text": question, "k": 20})
            hits = index.search(Query(text=question), k=20)
            assert [score for _, score in found] == pytest.approx([hit.score for hit in hits], abs=1e-3)
            assert {id for id, _ in found[:5]} & {hit.id for hit in hits[:5]}
        assert ask(client, {"image": encoded(png("red circle")), "k": 1})[0][1] > 0.5
        assert client.get("/v1/items").json()["total"] == len(index)
    assert index.verify() == []
    assert server.process.poll() is None
    assert "Traceback" not in server.log


def wait_for_jobs(client: httpx.Client) -> None:
    deadline = time.monotonic() + PATIENCE
    while any(job["state"] in ("waiting", "running") for job in client.get("/v1/jobs").json()["jobs"]):
        assert time.monotonic() < deadline, "the jobs do not end"
        time.sleep(0.1)


def test_no_request_that_the_description_allows_or_forbids_breaks_the_service(tmp_path: Path) -> None:
    path = copy_index(tmp_path)
    with running_server(path, options=("--quiet",)) as server:
        assert fuzz(server, tmp_path, 4, seed=1) > 500
        statuses, _ = measured(server)
        assert not [status for status in statuses if status >= 500 and status != 503]
        assert statuses[503] <= 20
        assert statuses[200] > 100
        check_still_right(server, path)


@pytest.mark.slow
def test_ten_thousand_requests_break_nothing_and_leave_nothing_behind(tmp_path: Path) -> None:
    path = copy_index(tmp_path)
    with running_server(path, options=("--quiet",)) as server:
        made = fuzz(server, tmp_path, 10, seed=2)
        _, before = measured(server)
        for seed in (3, 4, 5, 6):
            made += fuzz(server, tmp_path, 150, seed)
        statuses, after = measured(server)
        print(f"{made:,} requests; {dict(sorted(statuses.items()))}; memory {before / 1e6:.0f} -> {after / 1e6:.0f} MB")  # noqa: T201
        assert made >= 10_000
        assert not [status for status in statuses if status >= 500 and status != 503]
        assert after < 1.2 * before
        check_still_right(server, path)
