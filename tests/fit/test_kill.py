"""A refit that is killed leaves the index as it was, or with new codes: never in between."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from genius import Genius, Index, Vectors
from genius.fit.refit import refit
from genius.fit.run import fit
from genius.fit.settings import FitSettings
from tests.fit.test_run import clustered

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills are those of Unix")

QUICK = FitSettings(codes=8, levels=2, rounds=0, code_beams=1, check_queries=5)
VICTIM = """
import os, signal, sys
from genius import Index
from genius.fit.refit import refit
from genius.fit.run import fit
from genius.fit.settings import FitSettings
from genius.index import commits, models

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

place, name = {
    "model": (models.os, "replace"),
    "rows": (commits._Files, "commit"),
    "committed": (commits._Files, "after_commit"),
}[sys.argv[2]]
setattr(place, name, die)
refit(Index.open(sys.argv[1]), FitSettings(codes=8, levels=2, rounds=0, code_beams=1, check_queries=5, seed=1))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, vectors = tmp_path_factory.mktemp("made"), clustered(60)
    fit(vectors, out=folder / "model", settings=QUICK)
    index = Index.create(folder / "a.genius", Genius.from_pretrained(folder / "model"))
    index.add_vectors([f"v{i}" for i in range(60)], Vectors(np.zeros_like(vectors), vectors))
    return folder / "a.genius"


@pytest.mark.parametrize("point", ["model", "rows", "committed"])
def test_a_killed_refit(made: Path, point: str) -> None:
    before = Index.open(made)
    version, codes, fingerprint = before.version, before.codes, before.header.fingerprint
    ended = subprocess.run([sys.executable, "-c", VICTIM, str(made), point], check=False)
    assert ended.returncode == -9
    after = Index.open(made)
    vectors = clustered(60)[:3]
    found = after.search_vectors(Vectors(np.zeros_like(vectors), vectors), k=1)
    assert after.ids(found.rows[:, 0]) == ["v0", "v1", "v2"]
    if point == "committed":
        assert after.version == version + 1
        assert after.header.fingerprint != fingerprint
    else:
        assert after.version == version
        assert np.array_equal(after.codes, codes)
    refit(after, QUICK)  # what the killed process left is in nobody's way
    assert len(Index.open(made)) == 60
    assert not [problem for problem in after.verify() if problem.kind == "codes"]
