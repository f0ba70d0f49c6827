"""Builds whose workers and drivers are killed at random moments. Every item is counted at the end of each build."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from sources import write_csv, write_folder

from genius.data.readers import read_items
from genius.index.index import Index
from genius.model.genius import Genius
from genius.scale.state import FOLDER

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("GENIUS_KILLS", "20"))
SEED = int(os.environ.get("GENIUS_SEED", "0"))
PATIENCE = 600.0  # seconds
DRIVER = """
import sys
from genius.model.genius import Genius
from genius.scale.build import Workers, build

path, *sources = sys.argv[1:]
build(path, Genius.from_pretrained("mini"), sources, workers=Workers(2), block_items=4)
"""


class Driver:
    """A build in a process of its own, with the processes of Ray below it."""

    def __init__(self, path: Path, sources: list[Path]) -> None:
        command = [sys.executable, "-c", DRIVER, str(path), *map(str, sources)]
        self.began = time.monotonic()
        self.process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def workers(self) -> list[psutil.Process]:
        found = []
        for one in self._below():
            try:
                if "BlockWorker" in " ".join(one.cmdline()):
                    found.append(one)
            except psutil.Error:
                continue
        return found

    def _below(self) -> list[psutil.Process]:
        try:
            return self.process.children(recursive=True)
        except psutil.Error:
            return []

    def kill(self) -> None:
        """kill -9. The processes of Ray end when they notice; those that do not are killed."""
        below = self._below()
        self.process.kill()
        self.process.wait()
        _, alive = psutil.wait_procs(below, timeout=30)
        for one in alive:
            try:
                one.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(alive, timeout=30)

    def wait(self) -> float:
        """Wait for its end. Returns its seconds."""
        _, errors = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0 or "exists already" in errors, errors
        return time.monotonic() - self.began


def test_no_item_is_lost_or_doubled_when_workers_and_drivers_are_killed(tmp_path: Path) -> None:
    generator = random.Random(SEED)
    sources = [write_folder(tmp_path / "folder", 40), write_csv(tmp_path / "rows.csv", 160)]
    plain = Index.create(tmp_path / "plain", Genius.from_pretrained("mini"))
    for source in sources:
        plain.add(read_items(source))
    expected = list(plain)

    def check(path: Path) -> None:
        index = Index.open(path)
        assert list(index) == expected
        assert index.verify() == []
        assert not (path / FOLDER).exists()

    seconds = Driver(tmp_path / "first", sources).wait()
    check(tmp_path / "first")
    killed, builds = {"worker": 0, "driver": 0}, 0
    while sum(killed.values()) < KILLS:
        builds += 1
        path = tmp_path / f"build{builds}"
        driver = Driver(path, sources)
        while driver.running:
            time.sleep(generator.uniform(0, seconds if sum(killed.values()) < KILLS else 1))
            if sum(killed.values()) >= KILLS or not driver.running:
                continue
            workers = driver.workers()
            if workers and generator.random() < 0.6:
                try:
                    generator.choice(workers).kill()
                    killed["worker"] += 1
                except psutil.Error:
                    continue
            else:
                driver.kill()
                killed["driver"] += 1
                driver = Driver(path, sources)
        driver.wait()
        check(path)
    (tmp_path / "killed.json").write_text(json.dumps({**killed, "builds": builds}))
    assert min(killed.values()) > 0
