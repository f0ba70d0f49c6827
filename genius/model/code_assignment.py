"""Codes for many vectors, quickly: the nearest code level by level (Eqs. 4-6), for codebooks that no longer change.

Most codes are far from being the nearest one, and eight bits a number are enough to tell. Vectors and codes are
multiplied as bytes; with the lengths of what was rounded off, the product is certain up to a known error,
|r.e - r'.e'| <= |r - r'||e| + |r'||e - e'|. Only codes that may be the nearest are then compared by their distances, so
the codes found are those of `Quantizer.encode`, in about half of its time where a level has thousands of codes.

Knows vectors and codebooks only: nothing of fusion, items or training. Compiled when first called, once on a machine.
"""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from genius.model.quantizer import Quantizer
from genius.runtime.onnx_graph import Graph, session

ZERO = 64  # the byte that stands for 0 in a vector
STEPS = 63  # of a vector's bytes to either side: a byte is 127 at most, and two products fit into 16 bits
CODE_STEPS = 127  # of a code's bytes to either side
PRODUCTS = 2**20  # held at once: few enough to stay in the cache
CHUNK = 32  # codes looked at together
TINY, HUGE = 1e-15, 1e15  # where squares would leave float32, all codes are compared by their distances
MAGNITUDE = 0x7FFFFFFF  # the bits of a float32 without its sign: as integers, they have the order of the numbers
FAST = {"nnan", "nsz", "reassoc", "contract", "arcp"}  # what lets a compiler use wide registers; infinity is there


class QuantizerRuntime:
    """Gives codes to vectors, on the calling thread alone; many threads may call it at once.

    `rows`: as many vectors as are best given codes at once.
    """

    def __init__(self, quantizer: Quantizer) -> None:
        self._quantizer = quantizer
        self._first = _array(quantizer.codebooks[0])
        books = {id(codebook): _array(codebook) for codebook in quantizer.codebooks[1:]}  # one, if levels share it
        frozen = {name: _Book(codes) for name, codes in books.items()}
        self._books = [frozen[id(codebook)] for codebook in quantizer.codebooks[1:]]
        self.rows = max(128, min(1024, PRODUCTS // max(quantizer.sizes)))

    def __call__(self, z: np.ndarray, modality: np.ndarray | None = None) -> np.ndarray:
        """z: (n, d) float32; modality: (n,) the first codes, or None for the nearest -> (n, levels + 1) uint16."""
        z = self._quantizer.checked(torch.from_numpy(z)).numpy()
        known = modality is not None
        codes = np.zeros((1 + len(self._books), len(z)), np.uint16)
        if modality is not None:
            codes[0] = self._quantizer.checked_modality(torch.from_numpy(modality), len(z)).numpy()
        if not len(z):
            return codes.T
        residual, about = np.array(z, order="C"), np.empty((len(z), 3), np.float32)  # r_0 = z
        rounded, products = np.empty(z.shape, np.uint8), np.empty((len(z), self._quantizer.codes_per_level), np.float32)
        bits, about_bits = residual.view(np.int32), about.view(np.int32)
        first(residual, bits, rounded, about, about_bits, self._first, known, codes[0])
        for book, found in zip(self._books, codes[1:], strict=True):
            book.multiply(rounded, products)
            next_level(
                residual, bits, rounded, about, about_bits, products,
                book.codes, book.squares, book.lengths, book.looseness, found,
            )  # fmt: skip
        return np.ascontiguousarray(codes.T)


class _Book:
    """A codebook, its product with vectors of bytes, and how far from true that can be."""

    def __init__(self, codes: np.ndarray) -> None:
        self.codes = codes
        rounded, steps, self.squares, self.lengths, self.looseness = _rounded(codes)
        graph = Graph()
        one, zero = graph.constant(np.float32(1)), graph.constant(np.uint8(ZERO))
        graph.node(
            "MatMulIntegerToFloat", "rounded", graph.constant(rounded.T), one, graph.constant(steps), zero,
            output="products", domain="com.microsoft",
        )  # fmt: skip
        size, dim = codes.shape
        model = graph.model({"rounded": (np.uint8, ["n", dim])}, {"products": ["n", size]})
        self._session = session(model, threads=1)

    def multiply(self, rounded: np.ndarray, products: np.ndarray) -> None:
        """rounded: (n, d) uint8 -> products: (n, K) float32, of vectors whose bytes are in steps of one."""
        binding = self._session.io_binding()
        binding.bind_input("rounded", "cpu", 0, np.uint8, rounded.shape, rounded.ctypes.data)
        binding.bind_output("products", "cpu", 0, np.float32, products.shape, products.ctypes.data)
        self._session.run_with_iobinding(binding)


def _array(codebook: Tensor) -> np.ndarray:
    return np.ascontiguousarray(codebook.detach().numpy())


def _rounded(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.float32]:
    """codes: (K, d) -> them as bytes (K, d) int8, and each one's step, squared length and length (K,).

    And the largest share of its length that a code lost to rounding.
    """
    largest, squares = np.abs(codes).max(axis=1), np.square(codes, dtype=np.float64).sum(axis=1)
    # What is smaller counts as 0: it is less than what `next_level` allows for the rounding of sums.
    steps = np.where(largest > TINY * 1e-10, largest / CODE_STEPS, 0).astype(np.float32)
    some = np.where(steps > 0, steps, np.inf)[:, None]
    rounded = np.rint(codes / some)
    lost = np.square(codes - rounded * steps[:, None], dtype=np.float64).sum(axis=1)[steps > 0] / squares[steps > 0]
    looseness = np.float32(np.sqrt(lost.max(initial=0)))
    with np.errstate(over="ignore"):
        return (
            rounded.astype(np.int8),
            steps,
            squares.astype(np.float32),
            np.sqrt(squares).astype(np.float32),
            looseness,
        )


@njit(cache=True, nogil=True, fastmath=FAST)
def first(residual, bits, rounded, about, about_bits, codebook, known, codes):  # type: ignore[no-untyped-def]
    """The level of the modality: finds `codes` (n,), unless `known`, and leaves the rows as `next_level` does."""
    for n in range(len(residual)):
        if not known:
            codes[n] = nearest(residual[n], codebook)
        subtract(residual[n], bits[n], codebook[codes[n]], rounded[n], about[n], about_bits[n])


@njit(cache=True, nogil=True, fastmath=FAST)
def next_level(  # type: ignore[no-untyped-def]
    residual, bits, rounded, about, about_bits, products, codebook, squares, lengths, looseness, codes
):
    """One level: finds `codes` (n,), and replaces residuals (n, d), their bytes and what is known of them.

    about: (n, 3) the step of a residual's bytes, its length, and the length of what was rounded off.
    products: (n, K) of the bytes, in steps of one; squares, lengths, looseness: as from `_rounded`.
    """
    size, dim = codebook.shape
    longest = np.float32(0)
    for k in range(size):
        longest = max(longest, lengths[k])
    chunks = (size + CHUNK - 1) // CHUNK
    lower, lowest = np.full(chunks * CHUNK, np.inf, np.float32), np.empty(chunks, np.float32)
    lower_bits, lowest_bits = lower.view(np.int32).reshape(chunks, CHUNK), lowest.view(np.int32)
    near, distances = np.empty(size, np.int64), np.empty(size, np.float32)
    inexact = np.float32(8e-6 + dim * 2.4e-7)  # of float32 sums of d numbers: several times what it can be
    for n in range(len(residual)):
        row, product, step, length, lost = residual[n], products[n], about[n, 0], about[n, 1], about[n, 2]
        reach = longest + length + lost
        if np.float32(TINY) < reach < np.float32(HUGE):
            # |r - e|^2 is |e|^2 - 2 r.e + |r|^2. Any other constant does as well: here one that keeps bounds positive.
            constant = np.float32(4) * reach * reach
            error = np.float32(2.002) * (lost + (length + lost) * looseness)  # of a code of length one
            twice = step + step
            for k in range(size):
                lower[k] = constant + squares[k] - twice * product[k] - error * lengths[k]
            chunk = 0
            for c in range(chunks):
                smallest, values = np.int32(MAGNITUDE), lower_bits[c]
                for k in range(len(values)):
                    smallest = min(smallest, values[k])
                lowest_bits[c] = smallest
                if lowest[c] < lowest[chunk]:
                    chunk = c
            likely = chunk * CHUNK
            while likely < size - 1 and lower[likely] != lowest[chunk]:
                likely += 1
            least = quick_distance(row, codebook[likely])
            shift = constant - length * length + inexact * reach * reach
            limit, count = least + shift, 0
            for c in range(chunks):
                if lowest[c] <= limit:
                    for k in range(c * CHUNK, min(c * CHUNK + CHUNK, size)):
                        if lower[k] <= limit:
                            distance = least if k == likely else quick_distance(row, codebook[k])
                            near[count], distances[count] = k, distance
                            count += 1
                            if distance < least:
                                least = distance
                                limit = least + shift
            if count > 1:
                likely = nearest_of(row, codebook, near[:count], distances, least + least * inexact)
            codes[n] = likely
        else:
            codes[n] = nearest(row, codebook)
        subtract(row, bits[n], codebook[codes[n]], rounded[n], about[n], about_bits[n])


@njit(cache=True, nogil=True, fastmath=FAST)
def nearest_of(row, codebook, near, distances, limit):  # type: ignore[no-untyped-def]
    """The first of the nearest among some codes, by float64 distances where float32 ones are within the limit."""
    close, found = 0, 0
    for at in range(len(near)):
        if distances[at] <= limit + np.float32(TINY * TINY * 1e-3):
            near[close] = found = near[at]
            close += 1
    if close > 1:
        best = np.inf
        for at in range(close):
            distance = exact_distance(row, codebook[near[at]])
            if distance < best:
                best, found = distance, near[at]
    return found


@njit(cache=True, nogil=True, fastmath=FAST)
def nearest(row, codebook):  # type: ignore[no-untyped-def]
    """The first of the nearest codes."""
    best, found = np.inf, 0
    for k in range(len(codebook)):
        distance = exact_distance(row, codebook[k])
        if distance < best:
            best, found = distance, k
    return found


@njit(cache=True, nogil=True, fastmath=FAST)
def quick_distance(row, code):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for i in range(len(row)):
        total += (row[i] - code[i]) ** 2
    return total


@njit(cache=True, nogil=True, fastmath=FAST)
def exact_distance(row, code):  # type: ignore[no-untyped-def]
    total = np.float64(0)
    for i in range(len(row)):
        total += (np.float64(row[i]) - np.float64(code[i])) ** 2
    return total


@njit(cache=True, nogil=True, fastmath=FAST)
def subtract(row, bits, code, rounded, about, about_bits):  # type: ignore[no-untyped-def]
    """The next residual (Eq. 6) in place of the row, its bytes, and what `next_level` knows of it."""
    square = np.float32(0)
    for i in range(len(row)):
        value = row[i] - code[i]
        row[i] = value
        square += value * value
    largest = np.int32(0)
    for i in range(len(row)):
        largest = max(largest, np.int32(bits[i] & MAGNITUDE))
    about_bits[0] = largest
    length, step = np.sqrt(square), about[0] / np.float32(STEPS)
    if not np.float32(TINY * 1e-10) < step < np.float32(HUGE):
        rounded[:] = ZERO
        about[0], about[1], about[2] = 0, length, length
        return
    by, lost = np.float32(1) / step, np.float32(0)
    for i in range(len(row)):
        byte = np.int32(row[i] * by + np.float32(ZERO + 0.5))
        rounded[i] = np.uint8(byte)
        value = row[i] - step * (np.float32(byte) - np.float32(ZERO))
        lost += value * value
    about[0], about[1], about[2] = step, length, np.sqrt(lost)
