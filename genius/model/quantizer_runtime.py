"""Codes of vectors for indexing and search, on ONNX Runtime: those of `genius.networks.quantizer.Quantizer`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.runtime.onnx_graph import Graph, Inputs
from genius.runtime.threads import over_blocks

MODALITIES = 3
ROWS = 1024  # vectors of one matrix product: enough to be fast, few enough to stay in the cache
LARGEST_TABLES = 2**26  # bytes; the products of codes are not kept if they take more

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class CodeReport:
    """How well a collection uses the codes. Values per level start with the modality level."""

    items: int
    distinct: int  # different IDs
    collisions: int  # items that share their ID with another item
    largest_bucket: int  # items that share the most common ID
    utilisation: tuple[float, ...]  # fraction of the level's codes in use
    perplexity: tuple[float, ...]  # exp(entropy) of the level's codes


class CodebookRuntime:
    """Code vectors of one level, and the nearest of them."""

    def __init__(self, codes: Floats) -> None:
        self.codes = codes  # (K, d)
        self.squares: Floats = np.square(codes).sum(axis=1)
        self._longest = float(np.sqrt(self.squares.max()))

    # Sessions are made when they are first needed: searching assigns no codes.

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        g, (size, dim) = Graph(), self.codes.shape
        self.write_scores(g, "vectors", output="scores")
        return g.model({"vectors": (np.float32, ["n", dim])}, {"scores": ["n", size]}).session(threads=1)

    def write_scores(self, g: Graph, vectors: str, output: str | None = None) -> str:
        """Adds `scores` to a graph."""
        codes, squares = g.constant(self.codes), g.constant(self.squares)
        return g.node("Gemm", vectors, codes, squares, transB=1, alpha=-2.0, output=output)

    def scores(self, vectors: Floats) -> Floats:
        """|e|^2 - 2 r.e of each vector r (n, d) and code e -> (n, K)."""
        scores: Floats = self._session.run(None, {"vectors": vectors})[0]
        return scores

    def nearest(self, vectors: Floats) -> Ints:
        """Nearest code of each vector (Eq. 5), the lowest index among equally near ones: (n, d) -> (n,) int64.

        One matrix product in float32, since argmin |r - e|^2 = argmin |e|^2 - 2 r.e. Its rounding depends on the size
        of the batch, so rows whose best two scores are closer than that rounding are decided by float64 distances.
        """
        # 1. The lowest score of each row
        scores, every = self.scores(vectors), np.arange(len(vectors))
        codes: Ints = scores.argmin(axis=1)
        lowest = scores[every, codes]
        # 2. A bound on rounding: eight standard deviations, and more, of the error of a float32 sum of d products
        rounding = 4 * np.finfo(np.float32).eps * vectors.shape[1] ** 0.5
        limit = lowest + rounding * self._longest * (self._longest + 2 * np.linalg.norm(vectors, axis=1))
        # 3. Exact distances where the second best code is within the bound
        scores[every, codes] = np.inf
        close = np.flatnonzero(scores.min(axis=1, initial=np.inf) <= limit)
        for row in close:
            near = np.sort(np.append(np.flatnonzero(scores[row] <= limit[row]), codes[row]))
            distances = np.square(vectors[row].astype(np.float64) - self.codes[near]).sum(axis=1)
            codes[row] = near[distances.argmin()]
        return codes


class QuantizerRuntime:
    """Vectors of `dim` numbers <-> IDs of 1 + `levels` codes.

    Args:
        codebooks: Code vectors of the modality level (3, d), then of each semantic level (K, d), float32; a shared
            codebook only once.
        levels: Number of semantic levels.
        shared: One codebook serves all semantic levels.

    Raises:
        GeniusError: The codebooks do not have these shapes.
    """

    def __init__(self, codebooks: Sequence[Floats], levels: int, shared: bool = False) -> None:
        shapes = [book.shape for book in codebooks]
        wanted = [(MODALITIES, shapes[0][-1]), *[shapes[-1]] * (1 if shared else levels)]
        if shapes != wanted:
            raise GeniusError(f"A quantizer of {levels} levels needs codebooks of shapes {wanted}, but got {shapes}.")
        self.own_codebooks, self.levels, self.shared = list(codebooks), levels, shared
        self.codes_per_level, self.dim = shapes[-1]
        self.sizes: tuple[int, ...] = (MODALITIES, *[self.codes_per_level] * levels)
        books = [CodebookRuntime(codes) for codes in codebooks]
        self._books = [books[0], *(books[1:] * levels if shared else books[1:])]

    @property
    def codebooks(self) -> list[Floats]:
        """Code vectors level by level: (3, d), then (K, d) for each semantic level."""
        return [book.codes for book in self._books]

    def encode(self, z: Floats, modality: NDArray[np.integer] | None = None, beams: int = 1) -> NDArray[np.uint16]:
        """Codes of vectors.

        With one beam, the nearest code level by level (greedy, Eqs. 4-6). With more, beam search keeps that many
        partial sums for each vector: slower, and never worse than greedy. An item's codes do not depend on its batch.

        Args:
            z: (n, d) vectors.
            modality: (n,) the first codes, or None for the nearest of the three.
            beams: Beam width.

        Returns:
            (n, levels + 1)

        Raises:
            GeniusError: The input has the wrong shape or range, or is not finite.
        """
        z = self._checked(z)
        if modality is not None:
            self._check_codes(np.asarray(modality)[:, None])
        codes = np.empty((len(z), len(self.sizes)), np.uint16)

        def encode(block: slice) -> None:
            found = self._encode_greedy(z[block], None if modality is None else modality[block])
            codes[block] = self._encode_beams(z[block], found, beams) if beams > 1 else found

        over_blocks(encode, len(z), max(32, ROWS // beams))
        return codes

    def _encode_greedy(self, z: Floats, modality: NDArray[np.integer] | None) -> Ints:
        residual = z.copy()  # r_0 = z
        codes = np.empty((len(z), len(self.sizes)), np.int64)
        for level, book in enumerate(self._books):
            known = modality if level == 0 else None
            codes[:, level] = known if known is not None else book.nearest(residual)
            residual -= book.codes[codes[:, level]]  # Eq. 6
        return codes

    def _encode_beams(self, z: Floats, greedy: Ints, beams: int) -> Ints:
        """Beam search over the semantic levels. greedy: (n, levels + 1), for the modality and the error to beat."""
        residual = z - self._books[0].codes[greedy[:, 0]]
        (codes,) = self._beam_session.run(None, {"residual": residual, "width": np.array([beams])})
        found = np.concatenate([greedy[:, :1], codes.astype(np.int64)], axis=1)
        better = self._error(z, found) < self._error(z, greedy)
        return np.where(better[:, None], found, greedy)

    @cached_property
    def _beam_session(self) -> onnxruntime.InferenceSession:
        """Beam search over the semantic levels.

        For a vector r and a beam with the codes c_1, ..., c_l, the squared distance to one more code e is
        |r - c_1 - ... - c_l|^2 + |e|^2 - 2 r.e + 2 c_1.e + ... + 2 c_l.e. The first term is the beam's error so far,
        r.e is one product for all beams, and the products of two codes are read from tables. If these would be too
        large, the residuals of the beams are multiplied instead.
        """
        g, tables = Graph(), self._product_tables()
        size = g.constant(np.array(self.codes_per_level))
        codes: list[str] = []  # (n, beams) of each level so far
        errors = g.constant(np.zeros((1, 1), np.float32))  # (n, beams), less |r|^2
        for level, book in enumerate(self._books[1:]):
            # 1. The error of each beam with each code: (n, beams, K)
            if tables is None and codes:
                totals = self._write_residual_scores(g, book, codes)
            else:
                totals = g.unsqueeze(book.write_scores(g, "residual"), 1)
            totals = g.node("Add", totals, g.unsqueeze(errors, 2))
            if tables is not None:
                for earlier, code in enumerate(codes):
                    table = tables[0, 0] if self.shared else tables[earlier, level]
                    totals = g.node("Add", totals, g.node("Gather", g.constant(table), code))
            # 2. The best pairs of a beam and a code
            pairs = g.reshape(totals, 0, -1)
            count = g.slice(g.node("Shape", pairs), 1, 2, axis=0)
            errors, best = g.lowest(pairs, g.node("Min", "width", count))
            parent = g.node("Div", best, size)
            codes = [g.node("GatherElements", code, parent, axis=1) for code in codes] + [g.node("Mod", best, size)]
        winner = g.node("ArgMin", errors, axis=1, keepdims=1)
        found = g.node("Concat", *[g.node("GatherElements", code, winner, axis=1) for code in codes], axis=1)
        g.node("Cast", found, to=onnx.TensorProto.FLOAT, output="codes")  # exact up to 2^24
        inputs: Inputs = {"residual": (np.float32, ["n", self.dim]), "width": (np.int64, [1])}
        return g.model(inputs, {"codes": ["n", self.levels]}).session(threads=1)

    def _product_tables(self) -> dict[tuple[int, int], Floats] | None:
        """2 c.e of the codes c of a level and e of a later one (K, K), by levels. None if they take too much memory."""
        books = [book.codes for book in self._books[1:]]
        levels = [(0, 0)] if self.shared else list(combinations(range(self.levels), 2))
        if 4 * len(levels) * self.codes_per_level**2 > LARGEST_TABLES:
            return None
        return {(first, second): 2 * books[first] @ books[second].T for first, second in levels}

    def _write_residual_scores(self, g: Graph, book: CodebookRuntime, codes: Sequence[str]) -> str:
        """Scores (n, beams, K) of a level's codes, from the residuals that beams with these codes leave."""
        books = self._books[1 : 1 + len(codes)]
        vectors = [g.node("Gather", g.constant(one.codes), code) for one, code in zip(books, codes, strict=True)]
        residuals = g.node("Sub", g.unsqueeze("residual", 1), g.node("Sum", *vectors))
        shape = g.node("Concat", g.node("Shape", codes[0]), g.constant([self.codes_per_level]), axis=0)
        return g.node("Reshape", book.write_scores(g, g.reshape(residuals, -1, self.dim)), shape)

    def _error(self, z: Floats, codes: Ints) -> NDArray[np.float64]:
        difference = z.astype(np.float64) - self._sum(codes)
        return np.asarray(np.square(difference).sum(axis=1))

    def decode(self, codes: NDArray[np.integer]) -> Floats:
        """Sum of the code vectors: codes (n, m), m <= levels + 1 -> (n, d). Fewer levels are coarser."""
        self._check_codes(codes)
        return self._sum(codes)

    def _sum(self, codes: NDArray[np.integer]) -> Floats:
        total: Floats = self._books[0].codes[codes[:, 0]]
        for level in range(1, codes.shape[1]):
            total += self._books[level].codes[codes[:, level]]
        return total

    def _checked(self, z: Floats) -> Floats:
        z = np.ascontiguousarray(z, np.float32)
        if z.ndim != 2 or z.shape[1] != self.dim:
            raise GeniusError(f"The quantizer needs vectors of shape (n, {self.dim}), but got {z.shape}.")
        bad = np.flatnonzero(~np.isfinite(z).all(axis=1))
        if len(bad):
            raise GeniusError(
                f"{len(bad)} of {len(z)} vectors hold NaN or infinity (the first is row {bad[0]}), so that they have "
                "no codes. Check the input of these rows."
            )
        return z

    def _check_codes(self, codes: NDArray[np.integer]) -> None:
        wrong = np.argwhere((codes < 0) | (codes >= np.array(self.sizes[: codes.shape[1]])))
        if len(wrong):
            row, level = wrong[0]
            name = "modality" if level == 0 else f"level {level}"
            raise GeniusError(
                f"Row {row} has {name} code {codes[row, level]}, but only 0 to {self.sizes[level] - 1} exist. "
                "Codes must come from this quantizer."
            )


def code_report(codes: NDArray[np.integer], sizes: Sequence[int]) -> CodeReport:
    """Statistics of the codes (n, levels) of a collection. sizes: number of codes of each level."""
    bucket = np.zeros(len(codes), np.int64)
    for level, size in enumerate(sizes):  # number the prefixes level by level; cheaper than sorting whole rows
        bucket = np.unique(bucket * size + codes[:, level], return_inverse=True)[1]
    sharing = np.bincount(bucket)
    used = [np.bincount(codes[:, level], minlength=size) for level, size in enumerate(sizes)]
    return CodeReport(
        items=len(codes),
        distinct=len(sharing),
        collisions=int(sharing[sharing > 1].sum()),
        largest_bucket=int(sharing.max()),
        utilisation=tuple(float((count > 0).mean()) for count in used),
        perplexity=tuple(_perplexity(count) for count in used),
    )


def _perplexity(count: Ints) -> float:
    share = count[count > 0] / count.sum()
    return float(np.exp(-(share * np.log(share)).sum()))
