"""Indexing, searching, serving and evaluating never import torch; commands that need it say so in one sentence."""

import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import sys
from PIL import Image
import genius.cli.app, genius.demo.run, genius.evaluation.evaluate, genius.integrations.mcp, genius.serve.app
from genius import Genius, Index, Item, Query

index = Index.create(sys.argv[1], Genius.from_pretrained("mini"))
index.add([Item("red", image=Image.new("RGB", (224, 224), "red")), Item("cat", text="How to groom a cat")])
assert index.search(Query(text="brushing a kitten"), k=1, mode="fast")[0].id == "cat"
assert index.search(Query(image=Image.new("RGB", (64, 64), "red")), k=1, mode="generate")
assert not index.verify()
heavy = {"torch", "transformers", "sentence_transformers", "sklearn"}
print(sorted(heavy & {name.split(".")[0] for name in sys.modules}))
"""

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from genius.cli.app import main
main(sys.argv[1:])
"""


def test_a_whole_search_imports_no_torch(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", RUN, tmp_path / "index"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "command",
    [
        ("train", "data", "--out", "model"),
        ("ablate", "data", "--out", "rows"),
        ("convert", "--decoder", "file.pth", "model"),
        ("model", "onnx", "mini", "out"),
        ("model", "t5", "mini", "out"),
    ],
)
def test_commands_that_need_torch_say_how_to_install_it(command: tuple[str, ...], tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", WITHOUT, *command], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 1
    assert 'pip install "genius-search[train]"' in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr
    assert not any(tmp_path.iterdir())
