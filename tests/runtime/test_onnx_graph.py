"""ONNX Runtime reports nothing to its maker."""

import os
import subprocess
import sys
from pathlib import Path


def test_no_usage_is_reported_and_no_device_id_is_kept(tmp_path: Path) -> None:
    code = "import os, genius.encoders.mini, genius.runtime.onnx_graph; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    # Releases that report usage do not do so in tests and continuous integration, which these variables tell them.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ORT_", "CI", "GITHUB", "XDG"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=kept | {"HOME": str(tmp_path)}, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "1", done.stderr
    assert not list(tmp_path.rglob("*onnxruntime*"))
