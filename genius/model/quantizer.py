"""Modality-decoupled residual quantization: a vector becomes a short sequence of codes (Sec. 4.2.3, Eqs. 4-7).

The first code *is* the modality (0 image, 1 text, 2 image-text); the semantic levels after it refine the residual.
Codebooks start from k-means, follow the data by exponential moving averages, and dead codes are revived.

Knows fused vectors and their modality only: nothing of encoders, queries, the decoder or the trie.
"""

from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from genius.errors import GeniusError
from genius.runtime.threads import over_blocks

MODALITIES = 3
ROWS = 1024  # vectors given codes at once: enough for a fast matrix product, few enough to stay in the cache
EPSILON = 1e-5  # Laplace smoothing of the EMA counts


class Quantized(NamedTuple):
    """What training needs: `vectors` (n, d) with straight-through gradient, `codes` (n, levels + 1), `loss` (Eq. 7)."""

    vectors: Tensor
    codes: Tensor
    loss: Tensor


@dataclass(frozen=True)
class CodeReport:
    """How well a collection uses the codes. Per-level figures start with the modality level."""

    items: int
    distinct: int  # different IDs
    collisions: int  # items whose ID is not theirs alone
    largest_bucket: int  # items that share the most common ID
    utilisation: tuple[float, ...]  # part of the level's codes in use
    perplexity: tuple[float, ...]  # exp(entropy): number of codes in use, had all been equally common


class Codebook(nn.Module):
    """K code vectors with their EMA statistics, all in buffers: a state dict holds everything that matters."""

    codes: Tensor  # (K, d)
    ema_count: Tensor  # (K,)
    ema_sum: Tensor  # (K, d)

    def __init__(self, codes: Tensor) -> None:
        super().__init__()
        self.register_buffer("codes", codes.clone())
        self.register_buffer("ema_count", torch.ones(len(codes)))
        self.register_buffer("ema_sum", codes.clone())

    @torch.no_grad()
    def restart(self, codes: Tensor, count: Tensor | None = None) -> None:
        """Set the code vectors, and the EMA statistics to `count` (K,) vectors at each (one, unless told)."""
        self.codes.copy_(codes)
        self.ema_count.copy_(torch.ones_like(self.ema_count) if count is None else count)
        self.ema_sum.copy_(self.codes * self.ema_count[:, None])

    @torch.no_grad()
    def weigh(self, total: float) -> None:
        """Scale the statistics to `total` vectors: what they would hold after many batches of that size."""
        scale = total / self.ema_count.sum().clamp_min(EPSILON)
        self.ema_count.mul_(scale)
        self.ema_sum.mul_(scale)

    @torch.no_grad()
    def update(self, residuals: Tensor, assigned: Tensor, decay: float) -> None:
        """Move the codes to the moving average of what they stand for. residuals: (n, d); assigned: (n,)."""
        count, total = _sums(residuals, assigned, len(self.codes))
        self.ema_count.lerp_(count, 1 - decay)
        self.ema_sum.lerp_(total, 1 - decay)
        mass = self.ema_count.sum()
        smoothed = (self.ema_count + EPSILON) / (mass + len(self.codes) * EPSILON) * mass
        # A code unused in this batch stays where it is: smoothing would slowly pull it to zero.
        self.codes.copy_(torch.where(count[:, None] > 0, self.ema_sum / smoothed[:, None], self.codes))

    @torch.no_grad()
    def revive(self, residuals: Tensor, below: float, generator: torch.Generator) -> int:
        """Put codes used less than `below` times the average onto random rows of residuals (n, d); how many were."""
        average = self.ema_count.mean()
        dead = (self.ema_count < below * average).nonzero()[:, 0][: len(residuals)]
        rows = torch.randperm(len(residuals), generator=generator)[: len(dead)].to(residuals.device)
        self.codes[dead] = residuals[rows]
        self.ema_count[dead] = average
        self.ema_sum[dead] = residuals[rows] * average
        return len(dead)


class Quantizer(nn.Module):
    """A vector of `dim` numbers <-> an ID of 1 + `levels` codes: the modality, then `levels` of `codes_per_level`.

    `shared` uses one codebook for all semantic levels. `decay` is that of the moving averages. A semantic code used
    less than `revive_below` times the average of its codebook is dead and starts again from a residual of the batch
    (0: never). The random choices of revival depend on `seed` and the number of updates so far, which are in the state
    dict: training resumed from it continues as if it had not stopped. Fresh codes are random: call `initialise`, or
    load.
    """

    seed: Tensor
    updates: Tensor

    def __init__(
        self,
        dim: int,
        codes_per_level: int,
        levels: int,
        shared: bool = False,
        decay: float = 0.99,
        revive_below: float = 0.02,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.codes_per_level = codes_per_level
        self.levels = levels
        self.shared = shared
        self.decay = decay
        self.revive_below = revive_below
        self.sizes: tuple[int, ...] = (MODALITIES, *[codes_per_level] * levels)
        generator = torch.Generator().manual_seed(seed)
        sizes = self.sizes[:2] if shared else self.sizes
        self.books = nn.ModuleList(Codebook(torch.randn(size, dim, generator=generator) / dim**0.5) for size in sizes)
        self.register_buffer("seed", torch.tensor(seed))
        self.register_buffer("updates", torch.tensor(0))

    def book(self, level: int) -> Codebook:
        """The codebook of a level; level 0 is the modality."""
        return cast(Codebook, self.books[min(level, 1) if self.shared else level])

    @property
    def codebooks(self) -> list[Tensor]:
        """Code vectors level by level: (3, d), then (K, d) for each semantic level (the same one when shared)."""
        return [self.book(level).codes for level in range(len(self.sizes))]

    def set_codebooks(self, codebooks: list[Tensor]) -> None:
        """Use these code vectors: (3, d), then (K, d) for each semantic level, or a single one of these when shared."""
        expected = [tuple(cast(Codebook, book).codes.shape) for book in self.books]
        given = [tuple(codes.shape) for codes in codebooks]
        if given != expected:
            raise GeniusError(f"The quantizer has codebooks of shapes {expected}, but was given {given}.")
        for book, codes in zip(self.books, codebooks, strict=True):
            cast(Codebook, book).restart(codes)
        self.updates.zero_()

    # --- codes -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode(self, z: Tensor, modality: Tensor | None = None, beams: int = 1) -> Tensor:
        """z: (n, d); modality: (n,) integers, or None for the nearest of the three -> codes (n, levels + 1) int64.

        Greedy (`beams=1`, Eqs. 4-6): the nearest code level by level, the lowest index where two are equally near. An
        item's codes do not depend on the batch it is in. With `beams` > 1 that many partial sums are kept for each item
        and the best whole one wins: slower, and for no item a larger error than greedy.
        """
        z = self.checked(z)
        modality = None if modality is None else self.checked_modality(modality, len(z))
        codes = torch.empty(len(z), len(self.sizes), dtype=torch.int64, device=z.device)
        lengths = [codebook.square().sum(dim=1) for codebook in self.codebooks]

        @torch.no_grad()  # each thread has a gradient mode of its own
        def encode_block(block: slice) -> None:
            codes[block] = self._encode_greedy(z[block], None if modality is None else modality[block], lengths)
            if beams > 1:
                codes[block] = self._encode_beams(z[block], codes[block], beams, lengths)

        over_blocks(encode_block, len(z), max(32, ROWS // beams))
        return codes

    def _encode_greedy(self, z: Tensor, modality: Tensor | None, lengths: list[Tensor]) -> Tensor:
        residual = z.clone()  # r_0 = z
        codes = torch.empty(len(z), len(self.sizes), dtype=torch.int64, device=z.device)
        for level, codebook in enumerate(self.codebooks):
            known = modality if level == 0 else None
            code = known if known is not None else _nearest(residual, codebook, lengths[level])  # Eq. 5
            codes[:, level] = code
            residual -= codebook.index_select(0, code)  # Eq. 6
        return codes

    def _encode_beams(self, z: Tensor, greedy: Tensor, beams: int, lengths: list[Tensor]) -> Tensor:
        """Beam search over the semantic levels; `greedy` (n, levels + 1) gives the modality and the error to beat."""
        codes = greedy[:, None, :1]  # (n, beams so far, levels so far)
        residual = (z - self.codebooks[0][greedy[:, 0]])[:, None]  # (n, beams so far, d)
        for level, codebook in list(enumerate(self.codebooks))[1:]:
            scores = torch.addmm(lengths[level], residual.flatten(0, 1), codebook.T, alpha=-2)  # (n x beams, K)
            scores += residual.flatten(0, 1).square().sum(dim=1, keepdim=True)
            scores = scores.view(len(z), -1)  # (n, beams x K)
            best = scores.topk(min(beams, scores.shape[1]), dim=1, largest=False, sorted=False).indices
            parent, code = best // len(codebook), best % len(codebook)
            residual = _take(residual, parent) - codebook[code]
            codes = torch.cat([_take(codes, parent), code[:, :, None]], dim=2)
        winner = residual.square().sum(dim=2).argmin(dim=1, keepdim=True)
        found = _take(codes, winner)[:, 0]
        better = self._error(z, found) < self._error(z, greedy)
        return torch.where(better[:, None], found, greedy)

    def _error(self, z: Tensor, codes: Tensor) -> Tensor:
        return (z.double() - self._sum(codes).double()).square().sum(dim=1)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """codes: (n, levels + 1) integers -> (n, d), the sum of the code vectors. Fewer levels give a coarser sum."""
        return self._sum(self._checked_codes(codes))

    def _sum(self, codes: Tensor) -> Tensor:
        total = self.codebooks[0][codes[:, 0]]
        for level in range(1, codes.shape[1]):
            total += self.codebooks[level][codes[:, level]]
        return total

    # --- training ----------------------------------------------------------------------------------------------------

    def forward(self, z: Tensor, modality: Tensor | None = None, update: bool = True) -> Quantized:
        """z: (n, d), modality: (n,) or None -> vectors, codes and loss. In training mode the codebooks then follow z.

        `update=False` leaves the codebooks alone even in training mode.
        """
        codes = self.encode(z.detach(), modality)
        residual, residuals, loss = z, [], z.new_zeros(())
        for level, codebook in enumerate(self.codebooks):
            residuals.append(residual.detach())
            residual = residual - codebook[codes[:, level]]  # codes carry no gradient: sg(.) in Eq. 7
            loss = loss + residual.square().sum(dim=1).mean()  # Eq. 7
        vectors = z - residual.detach()  # the sum of codes; its gradient goes straight through to z
        if self.training and update:
            self._follow(residuals, codes)
        return Quantized(vectors, codes, loss)

    @torch.no_grad()
    def _follow(self, residuals: list[Tensor], codes: Tensor) -> None:
        """One EMA update of every codebook from the residuals (n, d) of each level, then revival of dead codes."""
        generator = torch.Generator().manual_seed(int(self.seed) * 1_000_003 + int(self.updates))
        first_update = int(self.updates) == 0
        groups = (
            [[0], list(range(1, len(self.sizes)))] if self.shared else [[level] for level in range(len(self.sizes))]
        )
        for levels in groups:
            book = self.book(levels[0])
            vectors = torch.cat([residuals[level] for level in levels])
            if first_update:
                book.weigh(len(vectors))
            book.update(vectors, torch.cat([codes[:, level] for level in levels]), self.decay)
            if levels[0] > 0:
                book.revive(vectors, self.revive_below, generator)
        self.updates += 1

    @torch.no_grad()
    def initialise(
        self, z: Tensor, modality: Tensor, seed: int = 0, iterations: int = 20, points_per_code: int = 256
    ) -> None:
        """Start all codebooks from data. z: (n, d), modality: (n,). Give a large sample: 40 vectors a code, or more.

        Modality codes are the mean vector of each modality (of everything, where one has no vectors); semantic levels
        are k-means of the residuals, level after level, on at most `points_per_code` x K vectors chosen by `seed`.
        """
        z = self.checked(z)
        modality = self.checked_modality(modality, len(z))
        if len(z) < self.codes_per_level:
            raise GeniusError(
                f"{len(z)} vectors cannot start codebooks of {self.codes_per_level} codes. "
                f"Give more training data, or set fewer codes per level."
            )
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randperm(len(z), generator=generator)[: points_per_code * self.codes_per_level].to(z.device)
        count, total = _sums(z, modality, MODALITIES)
        means = torch.where(count[:, None] > 0, total / count.clamp_min(1)[:, None], z.mean(dim=0))
        self.book(0).restart(means, count)
        residual = z[rows] - means[modality[rows]]
        if self.shared:
            self._initialise_shared(residual, generator, iterations)
        else:
            self._initialise_levels(residual, generator, iterations)
        self.updates.zero_()

    def _initialise_levels(self, residual: Tensor, generator: torch.Generator, iterations: int) -> None:
        for level in range(1, len(self.sizes)):
            codes = kmeans(residual, self.codes_per_level, generator, iterations)
            assigned = _nearest_blocks(residual, codes)
            self.book(level).restart(codes, torch.bincount(assigned, minlength=len(codes)).to(codes.dtype))
            residual = residual - codes[assigned]

    def _initialise_shared(self, residual: Tensor, generator: torch.Generator, iterations: int) -> None:
        """Residuals shrink level by level, so each level first gets a part of the codes; then the levels share all."""
        parts, left = [], residual
        for level in range(self.levels):
            size = self.codes_per_level // self.levels + (level < self.codes_per_level % self.levels)
            if size > 0:
                parts.append(kmeans(left, size, generator, iterations))
                left = left - parts[-1][_nearest_blocks(left, parts[-1])]
        codes = torch.cat(parts)
        for _ in range(iterations):
            count, total = self._shared_sums(residual, codes)
            codes = torch.where(count[:, None] > 0, total / count.clamp_min(1)[:, None], codes)
        count, _ = self._shared_sums(residual, codes)
        self.book(1).restart(codes, count)

    def _shared_sums(self, residual: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Number (K,) and sum (K, d) of the residuals that each code stands for, over all semantic levels."""
        count, total = torch.zeros_like(codes[:, 0]), torch.zeros_like(codes)
        for _ in range(self.levels):
            assigned = _nearest_blocks(residual, codes)
            level_count, level_total = _sums(residual, assigned, len(codes))
            count, total = count + level_count, total + level_total
            residual = residual - codes[assigned]
        return count, total

    # --- report and checks -------------------------------------------------------------------------------------------

    def report(self, codes: Tensor) -> CodeReport:
        """codes: (n, levels + 1) of a collection -> how many codes it uses and how many items share an ID."""
        codes = self._checked_codes(codes)
        if len(codes) == 0 or codes.shape[1] != len(self.sizes):
            raise GeniusError(
                f"A report needs codes of shape (n, {len(self.sizes)}), n > 0, but got {tuple(codes.shape)}."
            )
        bucket = codes.new_zeros(len(codes))
        for level, size in enumerate(self.sizes):  # number the prefixes level by level; cheaper than sorting whole rows
            bucket = (bucket * size + codes[:, level]).unique(return_inverse=True)[1]
        sharing = torch.bincount(bucket)
        used = [torch.bincount(codes[:, level], minlength=size) for level, size in enumerate(self.sizes)]
        return CodeReport(
            items=len(codes),
            distinct=len(sharing),
            collisions=int(sharing[sharing > 1].sum()),
            largest_bucket=int(sharing.max()),
            utilisation=tuple(float((count > 0).double().mean()) for count in used),
            perplexity=tuple(_perplexity(count) for count in used),
        )

    def checked(self, z: Tensor) -> Tensor:
        """Vectors that can be given codes, or GeniusError."""
        if z.ndim != 2 or z.shape[1] != self.dim:
            raise GeniusError(f"The quantizer needs vectors of shape (n, {self.dim}), but got {tuple(z.shape)}.")
        z = z.to(self.codebooks[0].dtype)
        if not torch.isfinite(z.sum()):
            check_finite(torch.isfinite(z).all(dim=1))
        return z

    def checked_modality(self, modality: Tensor, n: int) -> Tensor:
        """First codes for n vectors, or GeniusError."""
        if modality.shape != (n,) or modality.is_floating_point():
            raise GeniusError(
                f"There are {n} vectors, so modality must be {n} integers, but it has shape "
                f"{tuple(modality.shape)} and type {modality.dtype}."
            )
        self._check_range(modality.long()[:, None])
        return modality.long()

    def _checked_codes(self, codes: Tensor) -> Tensor:
        if codes.ndim != 2 or not 1 <= codes.shape[1] <= len(self.sizes) or codes.is_floating_point():
            raise GeniusError(
                f"Codes must be integers of shape (n, {len(self.sizes)}), but have shape "
                f"{tuple(codes.shape)} and type {codes.dtype}."
            )
        self._check_range(codes.long())
        return codes.long()

    def _check_range(self, codes: Tensor) -> None:
        limits = torch.tensor(self.sizes[: codes.shape[1]], device=codes.device)
        wrong = ((codes < 0) | (codes >= limits)).nonzero()
        if len(wrong):
            row, level = (int(number) for number in wrong[0])
            name = "modality" if level == 0 else f"level {level}"
            raise GeniusError(
                f"Row {row} has {name} code {int(codes[row, level])}, but only 0 to {self.sizes[level] - 1} exist. "
                f"Codes must come from this quantizer."
            )


def check_finite(finite: Tensor) -> None:
    """finite: (n,) bool, whether a vector is made of numbers."""
    bad = (~finite).nonzero()[:, 0]
    if len(bad):
        raise GeniusError(
            f"{len(bad)} of {len(finite)} vectors hold NaN or infinity (the first in row {int(bad[0])}) and cannot be "
            f"given codes. Check the input of these rows; in training, lower the learning rate."
        )


def kmeans(points: Tensor, k: int, generator: torch.Generator, iterations: int) -> Tensor:
    """Lloyd's k-means. points: (n, d), n >= k -> centres (k, d), each the mean of its points.

    Starts from k different points; a centre that loses all its points moves to one of the worst represented points.
    """
    centres = points[torch.randperm(len(points), generator=generator)[:k].to(points.device)]
    before: Tensor | None = None
    for _ in range(iterations):
        assigned = _nearest_blocks(points, centres)
        if before is not None and torch.equal(assigned, before):
            break
        count, total = _sums(points, assigned, k)
        empty = (count == 0).nonzero()[:, 0]
        error = (points - centres[assigned]).square().sum(dim=1) if len(empty) else count
        centres = total / count.clamp_min(1)[:, None]
        centres[empty] = points[error.topk(len(empty)).indices]
        before = assigned
    return centres


def _sums(vectors: Tensor, assigned: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Number (k,) and sum (k, d) of the vectors (n, d) assigned (n,) to each code."""
    count = torch.bincount(assigned, minlength=k).to(vectors.dtype)
    return count, vectors.new_zeros(k, vectors.shape[1]).index_add_(0, assigned, vectors)


def _nearest_blocks(vectors: Tensor, codebook: Tensor) -> Tensor:
    """`_nearest` for any number of vectors, in blocks that stay in the cache."""
    lengths = codebook.square().sum(dim=1)
    nearest = torch.empty(len(vectors), dtype=torch.int64, device=vectors.device)

    @torch.no_grad()
    def work(block: slice) -> None:
        nearest[block] = _nearest(vectors[block], codebook, lengths)

    over_blocks(work, len(vectors), ROWS)
    return nearest


def _nearest(vectors: Tensor, codebook: Tensor, lengths: Tensor) -> Tensor:
    """Nearest code of each vector, the lowest index of equally near ones. (n, d), (K, d), |e|^2 (K,) -> (n,) int64.

    |r - e|^2 is |e|^2 - 2 r.e up to a constant, one matrix product. Its rounding depends on the size of the batch, so
    rows whose two best scores are closer than rounding can tell apart are decided by exact distances.
    """
    scores = torch.addmm(lengths, vectors, codebook.T, alpha=-2)
    nearest = _lowest(scores)
    lowest = scores.gather(1, nearest[:, None])[:, 0]
    longest = lengths.max().sqrt()
    # Eight standard deviations, and more, of the error of a float32 sum of d products.
    rounding = 4 * torch.finfo(scores.dtype).eps * vectors.shape[1] ** 0.5
    limit = lowest + rounding * longest * (longest + 2 * torch.linalg.vector_norm(vectors, dim=1))
    runner_up = scores.scatter_(1, nearest[:, None], torch.inf).amin(dim=1)
    close = (runner_up <= limit).nonzero()[:, 0]
    if len(close):
        candidates = (scores[close] <= limit[close, None]).scatter_(1, nearest[close, None], True)
        nearest[close] = _nearest_exactly(vectors[close], codebook, candidates)
    return nearest


def _lowest(scores: Tensor) -> Tensor:
    """Index of each row's lowest score, (n, K) -> (n,) int64. On a CPU, NumPy's is five times as fast as torch's."""
    return torch.from_numpy(scores.numpy().argmin(axis=1)) if scores.is_cpu else scores.argmin(dim=1)


def _nearest_exactly(vectors: Tensor, codebook: Tensor, candidates: Tensor) -> Tensor:
    """Nearest of the candidate codes, by float64 distances. (m, d), (K, d), candidates (m, K) bool -> (m,) int64."""
    distances = torch.full(candidates.shape, torch.inf, dtype=torch.float64, device=vectors.device)
    for row, code in (pairs.unbind(1) for pairs in candidates.nonzero().split(4096)):
        distances[row, code] = (vectors[row].double() - codebook[code].double()).square().sum(dim=1)
    return distances.argmin(dim=1)  # the first of equal ones


def _take(beams: Tensor, which: Tensor) -> Tensor:
    """beams: (n, b, x), which: (n, c) -> (n, c, x): the chosen beams of each row."""
    first = torch.arange(len(beams), device=beams.device)[:, None] * beams.shape[1]
    return beams.flatten(0, 1)[first + which]


def _perplexity(count: Tensor) -> float:
    share = count[count > 0].double() / count.sum()
    return float(torch.exp(-(share * share.log()).sum()))
