"""Searching works for users without a home, who can write no cache."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SEARCH = """
import sys
from tests.support.fakes import tiny_model
from genius import Index, Item, Query
index = Index.create(sys.argv[1], tiny_model())
index.add([Item(str(n), text=f"number {n}") for n in range(4)])
print(len(index.search(Query(text="number 3"), k=2, mode="generate")))
"""


def test_an_index_is_made_and_searched_without_a_home(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "home")  # below a regular file, so that not even root can make it
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG", "COV"))}
    places = {"HOME": nowhere, "XDG_CACHE_HOME": nowhere, "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SEARCH, str(tmp_path / "index")],
        env=kept | places | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "2"
    assert not done.stderr  # ONNX Runtime does not complain about the folder
