"""The quick start of the README needs nothing but the base install."""

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]

BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r} (not in the base install)", name=name)

sys.meta_path.insert(0, Blocker())
"""


def base_packages() -> set[str]:
    """The distributions that `pip install genius-search` installs, without extras."""
    found: set[str] = set()
    waiting = ["genius-search"]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        found.add(name)
        try:
            needed = [Requirement(line) for line in requires(name) or []]
        except PackageNotFoundError:  # of another platform
            continue
        waiting += [one.name for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def test_the_readme_example_runs_with_the_base_install(tmp_path: Path) -> None:
    lines = [Requirement(line) for line in requires("genius-search") or []]
    direct = {canonicalize_name(one.name) for one in lines if one.marker is None}
    extra = {canonicalize_name(one.name) for one in lines} - direct
    base = base_packages() - extra  # also those that a package of the base install happens to bring
    providers = packages_distributions().items()
    blocked = {module for module, names in providers if base.isdisjoint(map(canonicalize_name, names))}
    assert {"matplotlib", "fastapi", "faiss", "pytest", "transformers"} <= blocked
    assert not {"numpy", "lance", "PIL"} & blocked
    readme = (ROOT / "README.md").read_text()
    (example,) = re.findall(r"```python\n(from PIL.*?)```", readme, re.DOTALL)
    (shown,) = re.findall(r"```python\nfrom PIL.*?```\n\n```text\n(.*?)```", readme, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", BLOCKER.replace("BLOCKED", repr(blocked)) + example],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    ids = [line.split()[0] for line in done.stdout.splitlines()]
    assert ids == [line.split()[0] for line in shown.splitlines()]
