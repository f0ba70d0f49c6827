"""Builds whose workers and drivers are killed at random moments. Every item is counted at the end of each build."""

import logging
import os
import random
import subprocess
import sys
import time
from contextlib import suppress
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

log = logging.getLogger(__name__)
KILLS = int(os.environ.get("GENIUS_KILLS", "20"))
SEED = int(os.environ.get("GENIUS_SEED", "0"))
PATIENCE = 600.0  # seconds
MOMENT = 8.0  # seconds within which the next process is killed
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
        self.errors = path.with_suffix(".log")
        with open(self.errors, "w") as file:
            environment = os.environ | {"RAY_worker_niceness": "0"}  # else workers starve beside other work
            self.process = psutil.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=file)

    def lives(self, seconds: float, working: bool) -> bool:
        """Wait some seconds, of work if asked, or until it ends. Returns whether it runs."""
        while working and self.process.poll() is None and not self.workers():
            time.sleep(0.1)
        with suppress(psutil.TimeoutExpired):
            self.process.wait(seconds)
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

    def kill_worker(self, generator: random.Random) -> bool:
        """kill -9 of one of its workers. Returns whether there was one."""
        if not (workers := self.workers()):
            return False
        try:
            generator.choice(workers).kill()
        except psutil.NoSuchProcess:
            return False
        return True

    def kill(self) -> list[psutil.Process]:
        """kill -9. Returns the processes of Ray that it leaves: they end when they notice."""
        below = self._below()
        self.process.kill()
        self.process.wait()
        return below

    def wait(self) -> None:
        """Wait for its end."""
        self.process.wait(PATIENCE)
        errors = self.errors.read_text()
        assert self.process.returncode == 0 or "exists already" in errors, errors


def test_no_item_is_lost_or_doubled_when_workers_and_drivers_are_killed(tmp_path: Path) -> None:
    generator, began = random.Random(SEED), time.monotonic()
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

    killed, builds = {"worker": 0, "driver": 0}, 0
    orphans: list[psutil.Process] = []
    while sum(killed.values()) < KILLS:
        builds += 1
        path = tmp_path / f"build{builds}"
        driver = Driver(path, sources)
        while sum(killed.values()) < KILLS:
            victim = "worker" if generator.random() < 0.6 else "driver"
            working = victim == "worker" or generator.random() < 0.5  # otherwise also while Ray starts
            if not driver.lives(generator.uniform(0, MOMENT), working):
                break
            if victim == "driver":
                end(orphans)
                orphans = driver.kill()  # they are still there when the next driver starts
                driver = Driver(path, sources)
            elif not driver.kill_worker(generator):
                continue
            killed[victim] += 1
            log.info("%.0f s, build %d: %s", time.monotonic() - began, builds, killed)
        driver.wait()
        check(path)
    end(orphans)
    assert min(killed.values()) > 0


def end(processes: list[psutil.Process]) -> None:
    """Kill the processes that still run."""
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(processes, timeout=30)
