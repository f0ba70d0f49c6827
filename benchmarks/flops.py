"""How much arithmetic a search needs, and how long this machine takes for it at best.

A search is counted as its matrix products, from the decoder's shape and the number of beams at each level; each shape
is then timed alone, with nothing around it. Their sum is the physical limit of a search on this machine: no engine that
does the same arithmetic is quicker. Attention between tokens, softmax, sorting, the trie and re-ranking are not
counted: the limit is a little too low, never too high.
"""

import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch

from genius.model.decoder_config import DecoderConfig
from genius.runtime.onnx_graph import Graph
from genius.runtime.threads import set_thread_count

Shape = tuple[int, int, int]
"""(rows, inner, columns) of a matrix product."""
Products = Counter[Shape]
"""How often a product of each shape is computed."""
MODALITIES = 3


def flops(products: Products) -> int:
    """Two operations, multiply and add, per element."""
    return sum(2 * rows * inner * columns * times for (rows, inner, columns), times in products.items())


def ours(config: DecoderConfig, queries: int, width: int, decided: int, given: bool, tails: bool) -> Products:
    """The products of `queries` searched together, without waste: as `beam` does them, if it does no more.

    decided: how many codes the beams had when they were not followed level by level any more (`Beams.level`);
    given: the target modality is; tails: the codes left are scored too, in one pass.
    The start token is one row a query, the modalities one or three, both in one pass; each further level has `width`
    rows. Prefix keys and values are computed once a query, and a level's logits over its own codes only.
    """
    products = prefix(config, queries, queries)
    if config.residual_input:
        products[queries, config.dim, config.d_model] += 1
    if config.residual_gain:
        products[queries, config.dim, config.vocabulary] += 1
    modalities = queries * (1 if given else min(MODALITIES, config.sizes[0]))
    first = min(decided, 2)
    products += layers(config, queries + modalities * (first - 1))
    for level in range(int(given), first):
        products += logits(config, (queries, modalities)[level], level)
    for level in range(first, decided):
        products += layers(config, queries * width)
        products += logits(config, queries * width, level)
    left = range(max(first, decided), len(config.sizes)) if tails else range(0)
    if left:
        products += layers(config, queries * width * len(left))
    for level in left:
        products += logits(config, queries * width, level)
    return products


def published(config: DecoderConfig, queries: int, width: int) -> Products:
    """The products of the published path: every beam has its own prefix, every step all beams and all codes."""
    products = prefix(config, queries, queries * width)
    for _ in config.sizes:
        products += layers(config, queries * width)
        products[queries * width, config.d_model, config.vocabulary] += 1
    return products


def prefix(config: DecoderConfig, queries: int, copies: int) -> Products:
    """The prefix network (Eq. 9), and keys and values of that many copies of its output."""
    products: Products = Counter()
    if config.layers:
        products[queries, config.dim, config.prefix * config.d_model] += 1
    products[copies * config.prefix, config.d_model, 2 * config.heads * config.d_kv] += config.layers
    return products


def layers(config: DecoderConfig, rows: int) -> Products:
    """All layers, one token per row."""
    d, inner = config.d_model, config.heads * config.d_kv
    products: Products = Counter()
    products[rows, d, 3 * inner] += config.layers
    products[rows, d, inner] += config.layers  # queries of the attention to the prefix
    products[rows, inner, d] += 2 * config.layers
    products[rows, d, config.d_ff] += config.layers
    products[rows, config.d_ff, d] += config.layers
    if config.residual_input:
        products[rows, config.dim, d] += 1
    return products


def logits(config: DecoderConfig, rows: int, level: int) -> Products:
    codes = config.vocabulary if config.whole_vocabulary else config.sizes[level]
    products: Products = Counter({(rows, config.d_model, codes): 1} if config.layers else {})
    if config.residual_gain and level:
        products[rows, config.dim, codes] += 1
    return products


class Machine:
    """How quickly the machine computes matrix products, by measurement. Every shape is timed once for `threads`."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, Shape], float] = {}

    def seconds(self, products: Products, threads: int) -> float:
        """Seconds of all products in sequence on this many threads. Sets torch's threads."""
        use_threads(threads)
        return sum(times * self._product(shape, threads) for shape, times in products.items())

    def _product(self, shape: Shape, threads: int) -> float:
        if (threads, shape) not in self._seconds:
            self._seconds[threads, shape] = product_seconds(shape, threads)
        return self._seconds[threads, shape]


def use_threads(count: int) -> None:
    """Set the threads of GENIUS and of torch. NumPy's are those of OMP_NUM_THREADS when the process started."""
    set_thread_count(count)
    torch.set_num_threads(count)


def product_seconds(shape: Shape, threads: int) -> float:
    """Seconds of one product by torch or by ONNX Runtime with prepacked weights, the faster of the two."""
    rows, inner, columns = shape
    x, weight = torch.randn(rows, inner), torch.randn(inner, columns)
    out, given = torch.empty(rows, columns), {"x": x.numpy()}
    graph = Graph()
    graph.node("MatMul", "x", graph.constant(weight.numpy()), output="y")
    packed = graph.model({"x": (np.float32, shape[:2])}, {"y": (rows, columns)}).session(threads)
    by_torch = best_seconds(lambda: torch.mm(x, weight, out=out))
    return min(by_torch, best_seconds(lambda: packed.run(None, given)))


def best_seconds(work: Callable[[], object], runs: int = 5) -> float:
    """The best of some runs, after one to warm up."""
    work()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
