"""Freed memory goes back to the system while serving, and is kept while training."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from genius.runtime import memory
getattr(memory, sys.argv[1])()
np.ones(1 << 22, np.float32)  # 16 MB
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    np.ones(1 << 22, np.float32)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(choice: str) -> int:
    """Pages that the system gave to a process which allocates the same block again and again."""
    done = subprocess.run([sys.executable, "-c", FAULTS, choice], capture_output=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_kept_memory_is_used_again_and_returned_memory_is_not() -> None:
    kept, returned = page_faults("keep_memory"), page_faults("return_memory")
    assert returned >= 20  # at least one for each block, however large pages are
    assert kept < returned / 2
