"""Nearest codes and k-means."""

import torch
from torch import Tensor

from genius.networks.threads import over_blocks

ROWS = 1024  # vectors of one matrix product: enough to be fast, few enough to stay in the cache


def kmeans(points: Tensor, k: int, generator: torch.Generator, iterations: int) -> Tensor:
    """Lloyd's k-means: points (n, d), n >= k -> centres (k, d).

    An empty centre moves to one of the points that are farthest from their centres.
    """
    centres = points[torch.randperm(len(points), generator=generator)[:k].to(points.device)]
    before: Tensor | None = None
    for _ in range(iterations):
        assigned = nearest(points, centres)
        if before is not None and torch.equal(assigned, before):
            break
        count, total = sums_by_code(points, assigned, k)
        empty = (count == 0).nonzero()[:, 0]
        error = (points - centres[assigned]).square().sum(dim=1) if len(empty) else count
        centres = total / count.clamp_min(1)[:, None]
        centres[empty] = points[error.topk(len(empty)).indices]
        before = assigned
    return centres


def sums_by_code(vectors: Tensor, assigned: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Number (k,) and sum (k, d) of the vectors (n, d) that are assigned (n,) to each code."""
    count, total = count_codes(assigned, k).to(vectors.dtype), vectors.new_zeros(k, vectors.shape[1])
    if vectors.is_cpu:
        return count, total.index_add_(0, assigned, vectors)
    # On a GPU the order in which `index_add_` adds, and so the last digit, is random; here it is not.
    return count, total.index_put_((assigned,), vectors, accumulate=True)


def count_codes(assigned: Tensor, k: int) -> Tensor:
    """How often each of k codes occurs in `assigned` (n,): (k,) int64."""
    if assigned.is_cpu:
        return torch.bincount(assigned, minlength=k)
    # `bincount` of another device waits for the largest code.
    return assigned.new_zeros(k).index_put_((assigned,), torch.ones_like(assigned), accumulate=True)


def nearest(vectors: Tensor, codebook: Tensor) -> Tensor:
    """Nearest code of each vector: (n, d), (K, d) -> (n,) int64."""
    squares = codebook.square().sum(dim=1)
    codes = torch.empty(len(vectors), dtype=torch.int64, device=vectors.device)

    @torch.no_grad()
    def work(block: slice) -> None:
        codes[block] = nearest_in_block(vectors[block], codebook, squares)

    over_blocks(work, len(vectors), ROWS, vectors.device)
    return codes


def nearest_in_block(vectors: Tensor, codebook: Tensor, squares: Tensor, exact: bool = True) -> Tensor:
    """Nearest code of each vector (Eq. 5), the lowest index among equally near ones.

    One matrix product in float32, since argmin |r - e|^2 = argmin |e|^2 - 2 r.e. Its rounding depends on the size of
    the batch, so rows whose best two scores are closer than that rounding are decided by float64 distances.
    vectors: (n, d), codebook: (K, d), squares: (K,) |e|^2 of the codes -> (n,) int64. With `exact` False, the matrix
    product decides alone, and a GPU does not wait for the number of such rows.
    """
    # 1. Scores |e|^2 - 2 r.e, (n, K), and the lowest of each row
    scores = torch.addmm(squares, vectors, codebook.T, alpha=-2)
    codes = _lowest(scores)
    if not exact:
        return codes
    lowest = scores.gather(1, codes[:, None])[:, 0]
    # 2. A bound on rounding: eight standard deviations, and more, of the error of a float32 sum of d products
    longest = squares.max().sqrt()
    rounding = 4 * torch.finfo(scores.dtype).eps * vectors.shape[1] ** 0.5
    limit = lowest + rounding * longest * (longest + 2 * torch.linalg.vector_norm(vectors, dim=1))
    # 3. Exact distances where the second best code is within the bound
    runner_up = scores.scatter_(1, codes[:, None], torch.inf).amin(dim=1)
    close = (runner_up <= limit).nonzero()[:, 0]
    if len(close):
        candidates = (scores[close] <= limit[close, None]).scatter_(1, codes[close, None], True)
        codes[close] = _nearest_exactly(vectors[close], codebook, candidates)
    return codes


def _lowest(scores: Tensor) -> Tensor:
    """Index of each row's lowest score, (n, K) -> (n,) int64. On a CPU, NumPy's is five times as fast as torch's."""
    return torch.from_numpy(scores.numpy().argmin(axis=1)) if scores.is_cpu else scores.argmin(dim=1)


def _nearest_exactly(vectors: Tensor, codebook: Tensor, candidates: Tensor) -> Tensor:
    """Nearest of the candidate codes by float64 distances: (m, d), (K, d), candidates (m, K) bool -> (m,) int64."""
    wide = wide_type(vectors.device)
    distances = torch.full(candidates.shape, torch.inf, dtype=wide, device=vectors.device)
    for row, code in (pairs.unbind(1) for pairs in torch.split(candidates.nonzero(), 4096)):
        distances[row, code] = (vectors[row].to(wide) - codebook[code].to(wide)).square().sum(dim=1)
    return distances.argmin(dim=1)  # the first of equal ones


def wide_type(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device that has no float64 (MPS)."""
    return torch.float32 if device.type == "mps" else torch.float64
