"""Modality-decoupled residual quantization: a vector becomes a short sequence of codes (Sec. 4.2.3, Eqs. 4-7).

The first code is the modality (0 image, 1 text, 2 image-text), or learned like the others; the semantic levels after it
refine the residual.
Codebooks start from k-means and follow the data by exponential moving averages (EMA); dead codes are revived.
"""

from collections.abc import Callable
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from genius.errors import GeniusError
from genius.model.quantizer_runtime import MODALITIES, QuantizerRuntime
from genius.networks.kmeans import ROWS, count_codes, kmeans, nearest, nearest_in_block, sums_by_code, wide_type
from genius.networks.precision import on_device
from genius.networks.threads import over_blocks

EPSILON = 1e-5  # Laplace smoothing of the EMA counts


class Quantized(NamedTuple):
    """Result of a training step."""

    vectors: Tensor  # (n, d) sums of code vectors, with straight-through gradient
    codes: Tensor  # (n, levels + 1) int64
    loss: Tensor  # Eq. 7


class Codebook(nn.Module):
    """K code vectors with their EMA statistics, all in buffers and thus in the state dict."""

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
        """Set the code vectors (K, d), and the EMA statistics to `count` (K,) vectors at each (default: one)."""
        self.codes.copy_(codes)
        self.ema_count.copy_(torch.ones_like(self.ema_count) if count is None else count)
        self.ema_sum.copy_(self.codes * self.ema_count[:, None])

    @torch.no_grad()
    def weigh(self, total: float) -> None:
        """Scale the statistics to `total` vectors, as if they came from many batches of that size."""
        scale = total / self.ema_count.sum().clamp_min(EPSILON)
        self.ema_count.mul_(scale)
        self.ema_sum.mul_(scale)

    @torch.no_grad()
    def update(self, residuals: Tensor, assigned: Tensor, decay: float) -> None:
        """Move the codes to the moving average of their residuals. residuals: (n, d); assigned: (n,) codes."""
        count, total = sums_by_code(residuals, assigned, len(self.codes))
        self.ema_count.lerp_(count, 1 - decay)
        self.ema_sum.lerp_(total, 1 - decay)
        mass = self.ema_count.sum()
        smoothed = (self.ema_count + EPSILON) / (mass + len(self.codes) * EPSILON) * mass
        # A code that this batch does not use stays as it is: smoothing would slowly pull it to zero.
        self.codes.copy_(torch.where(count[:, None] > 0, self.ema_sum / smoothed[:, None], self.codes))

    @torch.no_grad()
    def revive(self, residuals: Tensor, below: float, order: Tensor) -> None:
        """Move codes used less than `below` times the average to residuals (n, d), taken in a random order (n,)."""
        average = self.ema_count.mean()
        dead = self.ema_count < below * average
        if dead.is_cpu and not dead.any():  # another device would wait for the answer
            return
        number = dead.cumsum(0) - 1  # of each dead code among the dead
        dead &= number < len(residuals)
        revived = residuals[order[number.clamp(0, len(residuals) - 1)]]  # (K, d): shapes do not depend on the numbers
        self.codes.copy_(torch.where(dead[:, None], revived, self.codes))
        self.ema_count.copy_(torch.where(dead, average, self.ema_count))
        self.ema_sum.copy_(torch.where(dead[:, None], revived * average, self.ema_sum))


class Quantizer(nn.Module):
    """Vectors of `dim` numbers <-> IDs of 1 + `levels` codes.

    Revival depends only on `seed` and the number of updates, which are in the state dict, so that resumed training
    continues exactly. New code vectors are random: call `initialise`, or load a state dict.

    Args:
        dim: Dimensions of the vectors.
        codes_per_level: K, codes of each semantic level.
        levels: Number of semantic levels after the modality level.
        shared: Use one codebook for all semantic levels.
        decay: Decay of the moving averages.
        revive_below: A semantic code used less than this times the average is dead and restarts from a residual of the
            batch (0: never).
        seed: Seed of the random choices.
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

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the codebooks only: a device would have to wait whenever `seed` and `updates` are read."""
        numbers = self.seed, self.updates
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.seed, self.updates = numbers
        return self

    def book(self, level: int) -> Codebook:
        """The codebook of a level; level 0 is the modality level."""
        return cast(Codebook, self.books[min(level, 1) if self.shared else level])

    @property
    def codebooks(self) -> list[Tensor]:
        """Code vectors level by level: (3, d), then (K, d) for each semantic level (the same one when shared)."""
        return [self.book(level).codes for level in range(len(self.sizes))]

    @property
    def own_codebooks(self) -> list[Tensor]:
        """As `codebooks`, but a shared codebook only once."""
        return [cast(Codebook, book).codes for book in self.books]

    def set_codebooks(self, codebooks: list[Tensor]) -> None:
        """Set the code vectors, in the form of `own_codebooks`.

        Raises:
            GeniusError: Their shapes differ from the quantizer's.
        """
        expected = [tuple(codes.shape) for codes in self.own_codebooks]
        given = [tuple(codes.shape) for codes in codebooks]
        if given != expected:
            raise GeniusError(f"The quantizer has codebooks of shapes {expected}, but was given {given}.")
        for book, codes in zip(self.books, codebooks, strict=True):
            cast(Codebook, book).restart(codes)
        self.updates.zero_()

    def runtime(self) -> QuantizerRuntime:
        """The quantizer for indexing and search, with a copy of the codebooks."""
        books = [codes.detach().cpu().float().numpy().copy() for codes in self.own_codebooks]
        return QuantizerRuntime(books, self.levels, self.shared)

    # Codes

    @torch.no_grad()
    def encode(self, z: Tensor, modality: Tensor | None = None, beams: int = 1) -> Tensor:
        """Codes of vectors.

        With one beam, the nearest code level by level (greedy, Eqs. 4-6). With more, beam search keeps that many
        partial sums for each vector: slower, and never worse than greedy. An item's codes do not depend on its batch.

        Args:
            z: (n, d) vectors.
            modality: (n,) integers, the first codes, or None for the nearest of the three.
            beams: Beam width.

        Returns:
            (n, levels + 1) int64.

        Raises:
            GeniusError: The input has the wrong shape, type or range, or is not finite.
        """
        z = self._checked(z)
        modality = None if modality is None else self._checked_modality(modality, len(z))
        codes = torch.empty(len(z), len(self.sizes), dtype=torch.int64, device=z.device)
        squares = [codebook.square().sum(dim=1) for codebook in self.codebooks]

        @torch.no_grad()  # each thread has a gradient mode of its own
        def encode_block(block: slice) -> None:
            codes[block] = self._encode_greedy(z[block], None if modality is None else modality[block], squares)
            if beams > 1:
                codes[block] = self._encode_beams(z[block], codes[block], beams, squares)

        over_blocks(encode_block, len(z), max(32, ROWS // beams), z.device)
        return codes

    @torch.no_grad()
    def assign(self, z: Tensor, modality: Tensor | None = None) -> Tensor:
        """Codes (n, levels + 1) of a training batch z (n, d): `encode` with one beam, on the CPU.

        On another device nothing is checked and codes that are equally near up to rounding are not told apart, so that
        the device never waits for the CPU.
        """
        if z.is_cpu:
            return self.encode(z, modality)
        squares = [codebook.square().sum(dim=1) for codebook in self.codebooks]
        return self._encode_greedy(z, None if modality is None else modality.long(), squares, exact=False)

    def _encode_greedy(self, z: Tensor, modality: Tensor | None, squares: list[Tensor], exact: bool = True) -> Tensor:
        residual = z.clone()  # r_0 = z
        codes = torch.empty(len(z), len(self.sizes), dtype=torch.int64, device=z.device)
        for level, codebook in enumerate(self.codebooks):
            known = modality if level == 0 else None
            code = known if known is not None else nearest_in_block(residual, codebook, squares[level], exact)  # Eq. 5
            codes[:, level] = code
            residual -= codebook.index_select(0, code)  # Eq. 6
        return codes

    def _encode_beams(self, z: Tensor, greedy: Tensor, beams: int, squares: list[Tensor]) -> Tensor:
        """Beam search over the semantic levels. greedy: (n, levels + 1), for the modality and the error to beat."""
        codes = greedy[:, None, :1]  # (n, beams so far, levels so far)
        residual = (z - self.codebooks[0][greedy[:, 0]])[:, None]  # (n, beams so far, d)
        for level, codebook in list(enumerate(self.codebooks))[1:]:
            # 1. Squared distance of each partial sum to each code
            scores = torch.addmm(squares[level], residual.flatten(0, 1), codebook.T, alpha=-2)  # (n x beams, K)
            scores += residual.flatten(0, 1).square().sum(dim=1, keepdim=True)
            scores = scores.view(len(z), -1)  # (n, beams x K)
            # 2. The best pairs of partial sum and code
            best = scores.topk(min(beams, scores.shape[1]), dim=1, largest=False, sorted=False).indices
            parent, code = best // len(codebook), best % len(codebook)
            residual = _take(residual, parent) - codebook[code]
            codes = torch.cat([_take(codes, parent), code[:, :, None]], dim=2)
        winner = residual.square().sum(dim=2).argmin(dim=1, keepdim=True)
        found = _take(codes, winner)[:, 0]
        better = self._error(z, found) < self._error(z, greedy)
        return torch.where(better[:, None], found, greedy)

    def _error(self, z: Tensor, codes: Tensor) -> Tensor:
        wide = wide_type(z.device)
        return (z.to(wide) - self._sum(codes).to(wide)).square().sum(dim=1)

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Sum of the code vectors: codes (n, m) integers, m <= levels + 1 -> (n, d). Fewer levels are coarser."""
        return self._sum(self._checked_codes(codes))

    def _sum(self, codes: Tensor) -> Tensor:
        total = self.codebooks[0][codes[:, 0]]
        for level in range(1, codes.shape[1]):
            total += self.codebooks[level][codes[:, level]]
        return total

    # Training

    def forward(
        self, z: Tensor, modality: Tensor | None = None, update: bool = True, codes: Tensor | None = None
    ) -> Quantized:
        """Quantize a batch; in training mode, the codebooks then follow it.

        Args:
            z: (n, d) vectors.
            modality: As in `encode`.
            update: False leaves the codebooks alone even in training mode.
            codes: (n, levels + 1) as `assign` returns them, or None to assign them here.
        """
        if codes is None:
            codes = self.assign(z.detach(), modality)
        residual, residuals, loss = z, [], z.new_zeros(())
        for level, codebook in enumerate(self.codebooks):
            residuals.append(residual.detach())
            residual = residual - codebook[codes[:, level]]  # codes carry no gradient: sg(.) in Eq. 7
            loss = loss + residual.square().sum(dim=1).mean()  # Eq. 7
        vectors = z - residual.detach()  # the sum of the code vectors; its gradient goes straight through to z
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
                order = torch.randperm(len(vectors), generator=generator)
                book.revive(vectors, self.revive_below, on_device(order, vectors.device))
        self.updates += 1

    @torch.no_grad()
    def initialise(
        self, z: Tensor, modality: Tensor | None, seed: int = 0, iterations: int = 20, points_per_code: int = 256
    ) -> None:
        """Start all codebooks from data.

        Modality codes are the mean vector of each modality (of all vectors where a modality is absent). Semantic levels
        are k-means of the residuals, level by level.

        Args:
            z: (n, d) vectors, 40 per code or more.
            modality: (n,) integers, or None to start the first codes from k-means too.
            seed: Seed of the random choices.
            iterations: Maximum number of k-means iterations.
            points_per_code: k-means uses at most this times K vectors.

        Raises:
            GeniusError: There are fewer vectors than codes.
        """
        z = self._checked(z)
        modality = None if modality is None else self._checked_modality(modality, len(z))
        if len(z) < self.codes_per_level:
            raise GeniusError(
                f"{len(z)} vectors cannot start codebooks of {self.codes_per_level} codes. "
                f"Give more training data, or set fewer codes per level."
            )
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randperm(len(z), generator=generator)[: points_per_code * self.codes_per_level].to(z.device)
        first = modality if modality is not None else nearest(z, kmeans(z[rows], MODALITIES, generator, iterations))
        count, total = sums_by_code(z, first, MODALITIES)
        means = torch.where(count[:, None] > 0, total / count.clamp_min(1)[:, None], z.mean(dim=0))
        self.book(0).restart(means, count)
        residual = z[rows] - means[first[rows]]
        if self.shared:
            self._initialise_shared(residual, generator, iterations)
        else:
            self._initialise_levels(residual, generator, iterations)
        self.updates.zero_()

    def _initialise_levels(self, residual: Tensor, generator: torch.Generator, iterations: int) -> None:
        for level in range(1, len(self.sizes)):
            codes = kmeans(residual, self.codes_per_level, generator, iterations)
            assigned = nearest(residual, codes)
            self.book(level).restart(codes, count_codes(assigned, len(codes)).to(codes.dtype))
            residual = residual - codes[assigned]

    def _initialise_shared(self, residual: Tensor, generator: torch.Generator, iterations: int) -> None:
        """Residuals shrink level by level: each level first gets a part of the codes, then all levels refine all."""
        parts, left = [], residual
        for level in range(self.levels):
            size = self.codes_per_level // self.levels + (level < self.codes_per_level % self.levels)
            if size > 0:
                parts.append(kmeans(left, size, generator, iterations))
                left = left - parts[-1][nearest(left, parts[-1])]
        codes = torch.cat(parts)
        for _ in range(iterations):
            count, total = self._shared_sums(residual, codes)
            codes = torch.where(count[:, None] > 0, total / count.clamp_min(1)[:, None], codes)
        count, _ = self._shared_sums(residual, codes)
        self.book(1).restart(codes, count)

    def _shared_sums(self, residual: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Number (K,) and sum (K, d) of the residuals assigned to each code, over all semantic levels."""
        count, total = torch.zeros_like(codes[:, 0]), torch.zeros_like(codes)
        for _ in range(self.levels):
            assigned = nearest(residual, codes)
            level_count, level_total = sums_by_code(residual, assigned, len(codes))
            count, total = count + level_count, total + level_total
            residual = residual - codes[assigned]
        return count, total

    # Checks

    def _checked(self, z: Tensor) -> Tensor:
        if z.ndim != 2 or z.shape[1] != self.dim:
            raise GeniusError(f"The quantizer needs vectors of shape (n, {self.dim}), but got {tuple(z.shape)}.")
        z = z.to(self.codebooks[0].dtype)
        if not torch.isfinite(z.sum()):
            bad = (~torch.isfinite(z).all(dim=1)).nonzero()[:, 0]
            if len(bad):
                raise GeniusError(
                    f"{len(bad)} of {len(z)} vectors hold NaN or infinity (the first is row {int(bad[0])}), so that "
                    "they have no codes. Check the input of these rows; in training, lower the learning rate."
                )
        return z

    def _checked_modality(self, modality: Tensor, n: int) -> Tensor:
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


def _take(beams: Tensor, which: Tensor) -> Tensor:
    """beams: (n, b, x), which: (n, c) -> (n, c, x): the chosen beams of each row."""
    first = torch.arange(len(beams), device=beams.device)[:, None] * beams.shape[1]
    return beams.flatten(0, 1)[first + which]
