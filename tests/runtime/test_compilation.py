"""Kernels work where numba finds no folder for its cache: for users without a home, in read-only installations."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

USE = """
import sys
from kernel import double
assert double(21) == 42
print(double._cache.cache_path)
"""

SEARCH = """
import sys
from tests.support.fakes import tiny_model
from genius import Index, Item, Query
index = Index.create(sys.argv[1], tiny_model())
index.add([Item(str(n), text=f"number {n}") for n in range(4)])
print(len(index.search(Query(text="number 3"), k=2, mode="generate")))
"""


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    """Nothing that a cache could be written to, also for root: folders below a regular file do not exist."""
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "home")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA", "XDG", "COV"))}
    places = {"HOME": nowhere, "XDG_CACHE_HOME": nowhere, "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    return kept | places | {"PYTHONPATH": f"{tmp_path}:{ROOT}"} | more


def use_kernel(tmp_path: Path, **more: str) -> str:
    """Use a kernel of a module beside which nothing can be written; returns the folder of its cache."""
    if not (tmp_path / "kernel.py").exists():
        lines = [
            "from genius.runtime.compilation import compiled",
            "",
            "@compiled",
            "def double(n):",
            "    return n * 2",
        ]
        (tmp_path / "kernel.py").write_text("\n".join(lines))
        (tmp_path / "__pycache__").touch()
    done = subprocess.run(
        [sys.executable, "-c", USE], env=environment(tmp_path, **more), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.strip()


def test_a_private_temporary_folder_holds_the_cache(tmp_path: Path) -> None:
    folder = Path(use_kernel(tmp_path)).parent
    assert folder == tmp_path / f"genius-kernels-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.rglob("*.nbc"))


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    shared = tmp_path / f"genius-kernels-{os.getuid()}"
    shared.mkdir()
    shared.chmod(0o777)
    assert use_kernel(tmp_path) == "None"  # no cache
    assert not list(shared.iterdir())


def test_a_folder_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / f"genius-kernels-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    assert use_kernel(tmp_path) == "None"


def test_the_folder_of_the_administrator_is_preferred(tmp_path: Path) -> None:
    assert Path(use_kernel(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "given"))).parent == tmp_path / "given"


def test_damaged_and_unreadable_caches_are_replaced(tmp_path: Path) -> None:
    folder = Path(use_kernel(tmp_path))
    for pattern, content in (("*.nbi", b""), ("*.nbc", b"damaged")):
        for file in folder.glob(pattern):
            file.write_bytes(content)
        use_kernel(tmp_path)
    (index,) = folder.glob("*.nbi")
    index.unlink()
    index.mkdir()  # cannot be read or replaced
    use_kernel(tmp_path)


def test_an_index_is_made_and_searched_without_a_home(tmp_path: Path) -> None:
    """With these locators, numba looks only where `environment` lets nobody write: the package counts as read-only."""
    locators = "UserProvidedCacheLocator,UserWideCacheLocator"
    done = subprocess.run(
        [sys.executable, "-c", SEARCH, str(tmp_path / "index")],
        env=environment(tmp_path, NUMBA_CACHE_LOCATOR_CLASSES=locators),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "2"
    assert not done.stderr  # neither numba nor ONNX Runtime complains about the folder
    assert list(tmp_path.glob("genius-kernels-*/*/*.nbc"))
