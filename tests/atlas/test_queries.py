from pathlib import Path

import numpy as np
import pytest
from fakes import tiny_model
from tiny_benchmark import write_benchmark

from genius import Index
from genius.atlas import writing
from genius.atlas.collection import Collection
from genius.atlas.queries import QuerySample, alignment, candidates_of, check_comparable, cloud, generated_agreement
from genius.data.mbeir import Benchmark
from genius.errors import BadData
