"""What the service can bear: many clients at once, with batches and without, and its memory after many requests.

    python benchmarks/serve.py OUT INDEX [--clients 64] [--seconds 120] [--requests 20000] [--pictures 0.2] [--quick]
    python benchmarks/serve.py OUT --page docs/serve.md     # write what was measured into the page

Service (`genius serve INDEX`) and clients are two processes on one machine and share its cores. Every client asks
again as soon as it has its answer. No text is asked twice: each is made of some of twenty thousand words. Three loads:

- `together`: as it comes;
- `one by one`: the same with `--max-batch 1`, so that every query is encoded and answered alone;
- `memory`: so many requests to a fresh service, and the memory that it has before and after.

Figures go to OUT/serve.json. Run it on an idle machine: rows during which other processes were at work are marked.
"""

import argparse
import base64
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from machine import others_at_work, processor, resident
from PIL import Image, ImageDraw
from rich.console import Console
from serve_figures import Figures, Row, sheets, write_page
from serve_load import Load, load

from genius.errors import GeniusError

START = 120.0  # seconds that the service may take to be ready
WORDS = range(2, 8)  # in a query
WARM = 500  # requests before any that count
ENOUGH = 1000  # queries a second that are made in advance
PICTURE = 128  # pixels a side


@dataclass(frozen=True)
class Settings:
    index: Path
    clients: int
    seconds: float
    requests: int
    pictures: float  # the part of the queries that have one
    threads: int | None = None
