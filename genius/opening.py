"""The beginning of a search for one query: log-probabilities of the first two levels and of the linear path.

With one query, the time goes into fetching the decoder's weights, not into multiplying by them. So they are kept in
half precision, each is fetched once for all first codes, and what is the same for all queries is computed once.
For decoders that fit; all others, and many queries at once, are the business of `genius.engine`. Knows nothing of
beams. Compiled when first called, once on a machine.
"""

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from genius.decoder import Block, Decoder, merge_heads, split_heads
from genius.halves import single
from genius.walk import half_products

Floats = NDArray[np.float32]
Bits = NDArray[np.int16]
ROWS = 4  # tokens that go through the layers together: the start of every ID, and the first codes behind it
ZERO, LEAST = np.float32(0), np.finfo(np.float32).min
EPSILON = np.float32(1e-6)  # of the norms


class Opening:
    """A decoder's weights, copied; many threads may call it at once."""

    def __init__(self, decoder: Decoder) -> None:
        c, linear, skip = decoder.config, decoder.prefix_network[0], decoder.skip
        assert skip is not None
        self._bounds = [*decoder.starts.tolist(), c.vocabulary]
        first, both = np.cumsum(c.sizes[:2])
        self._written = np.append(np.arange(ROWS)[:, None] * both + [0, first], ROWS * both)
        self._left = np.array(self._bounds[2:]) - self._bounds[2]
        self._path = bits(torch.cat([skip, linear.weight]))
        self._all = np.arange(len(self._path))
        self._prefix_bias = floats(linear.bias).reshape(c.prefix, c.d_model)
        self._prefix_norm = floats(decoder.prefix_norm.weight)
        self._begun, self._wanted = begun(decoder)
        self._bias = floats(decoder.causal_bias(2)[:, 1].diff()[:, 0])
        inner = c.heads * c.d_kv
        self._heads = (ROWS, 3, c.heads, c.d_kv)
        self._shapes = [
            *((ROWS, size) for size in (c.d_model, c.d_model, c.d_model, 3 * inner, inner)),
            (c.heads * ROWS, c.d_model), (c.heads * ROWS, c.d_model), (ROWS, c.d_ff), (ROWS, int(both)),
        ]
        self._layers = [_Layer(block) for block in decoder.blocks]
        self._final_norm = floats(decoder.scaled(decoder.final_norm.weight))
        self._output = bits(decoder.output_table[decoder.rows(0).start : decoder.rows(1).stop])

    @staticmethod
    def fits(decoder: Decoder) -> bool:
        """Whether the layers write just two levels, the first of few codes, and all weights are half-precision."""
        c = decoder.config
        shape = c.written == 2 < len(c.sizes) and c.sizes[0] < ROWS and not c.prefix_hidden
        return shape and all(bool((weight.half() == weight).all()) for weight in decoder.parameters())

    def __call__(self, z: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """z: (dim,) -> the log-probabilities of level 0 and, behind each of its codes, of level 1;

        (sizes[0],) and (sizes[0], sizes[1]). Then what the linear path adds to the logits, (vocabulary,), and its
        log-probabilities of all other levels, one after the other.
        """
        bounds = self._bounds
        products = half_products(self._path, self._all, z)
        direct, prefix = products[: bounds[-1]], products[bounds[-1] :].reshape(self._prefix_bias.shape)
        normed(prefix, self._prefix_bias, self._prefix_norm, prefix)
        x, y, change, qkv, seen, mixed, wanted, wide, written = (np.empty(shape, np.float32) for shape in self._shapes)
        x[:] = self._begun
        look(prefix, self._wanted, mixed)
        for i, layer in enumerate(self._layers):
            if i:
                normed(x, change, layer.self_norm, y)
                multiply(layer.self_qkv, y, qkv, LEAST)
                look_back(qkv.reshape(self._heads), self._bias, seen)
                multiply(layer.self_out, seen, change, LEAST)
                normed(x, change, layer.cross_norm, y)
                multiply(layer.cross_q, y, seen, LEAST)
                turn(layer.keys, seen, wanted)
                look(prefix, wanted, mixed)
            multiply(layer.values, mixed, seen, LEAST)
            multiply(layer.cross_out, seen, change, LEAST)
            normed(x, change, layer.ff_norm, y)
            multiply(layer.ff_in, y, wide, ZERO)
            multiply(layer.ff_out, wide, change, LEAST)
        normed(x, change, self._final_norm, y)
        multiply(self._output, y, written, LEAST)
        written += direct[bounds[0] : bounds[2]]
        left = direct[bounds[2] :].copy()
        log_softmax(written.reshape(-1), self._written)
        log_softmax(left, self._left)
        size = bounds[1] - bounds[0]
        return written[0, :size], written[1 : size + 1, size:], direct, left


class _Layer:
    """Weights as the compiled functions want them."""

    def __init__(self, block: Block) -> None:
        keys, values = block.cross_kv.weight.chunk(2)
        self.self_norm, self.cross_norm, self.ff_norm = (
            floats(norm.weight) for norm in (block.self_norm, block.cross_norm, block.ff_norm)
        )
        self.self_qkv, self.self_out = bits(block.self_qkv.weight), bits(block.self_out.weight)
        self.cross_q, self.cross_out = bits(block.cross_q.weight), bits(block.cross_out.weight)
        self.keys, self.values = bits(keys), bits(values)
        self.ff_in, self.ff_out = bits(block.ff_in.weight), bits(block.ff_out.weight)


def begun(decoder: Decoder) -> tuple[Floats, Floats]:
    """The tokens when they first turn to the prefix, (ROWS, d_model), and what they look for there, as from `turn`."""
    block, codes = decoder.blocks[0], decoder.table[decoder.rows(0)]
    with torch.inference_mode():
        codes = torch.cat([codes, codes.new_zeros(ROWS - 1 - len(codes), codes.shape[1])])
        tokens = torch.stack([decoder.table[:1].expand_as(codes), codes], dim=1)
        q, k, v = (split_heads(part, block.heads) for part in block.self_qkv(block.self_norm(tokens)).chunk(3, dim=-1))
        tokens = tokens + block.self_out(merge_heads(block.attend(q, k, v, decoder.causal_bias(2))))
        x = torch.cat([tokens[:1, 0], tokens[:, 1]])
        q = block.cross_q(block.cross_norm(x)).unflatten(1, (block.heads, -1))
        keys = block.cross_kv.weight.chunk(2)[0].unflatten(0, (block.heads, -1))
        return floats(x), floats(torch.einsum("nhk,hkd->hnd", q, keys).flatten(0, 1))


def floats(weight: Tensor) -> Floats:
    values: Floats = np.ascontiguousarray(weight.detach().float().cpu().numpy())
    return values


def bits(weight: Tensor) -> Bits:
    values: Bits = np.ascontiguousarray(weight.detach().half().cpu().numpy()).view(np.int16)
    return values


# Compiled. Tokens are always ROWS together, so that a weight is fetched once for all; weights are taken by twos, because
# adding up is then the longest part of the work. With heads, rows of vectors stand head by head.


@njit(cache=True, nogil=True, fastmath=True)
def multiply(weights, x, y, least):  # type: ignore[no-untyped-def]
    """y = max(x weights^T, least)

    weights: (m, d) bits; x: (ROWS, d), or (heads * ROWS, d) for the weights of each head; y: (ROWS, m).
    """
    rows, dim = weights.shape
    size = rows * ROWS // len(x)
    for n in range(0, len(x), ROWS):
        a, b, c, d = x[n], x[n + 1], x[n + 2], x[n + 3]
        start = n // ROWS * size
        for m in range(start, start + size, 2):
            other = min(m + 1, start + size - 1)
            one, two = weights[m], weights[other]
            one_a, one_b, one_c, one_d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            two_a, two_b, two_c, two_d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
            for i in range(dim):
                value = single(one[i])
                one_a += value * a[i]
                one_b += value * b[i]
                one_c += value * c[i]
                one_d += value * d[i]
                value = single(two[i])
                two_a += value * a[i]
                two_b += value * b[i]
                two_c += value * c[i]
                two_d += value * d[i]
            y[0, m], y[1, m] = max(one_a, least), max(one_b, least)
            y[2, m], y[3, m] = max(one_c, least), max(one_d, least)
            y[0, other], y[1, other] = max(two_a, least), max(two_b, least)
            y[2, other], y[3, other] = max(two_c, least), max(two_d, least)


@njit(cache=True, nogil=True, fastmath=True)
def turn(weights, x, y):  # type: ignore[no-untyped-def]
    """weights: (m, d) bits; x: (ROWS, m) -> (heads * ROWS, d), the sums of each head's weights, taken x times.

    A product with the key of something is the product of this sum with the thing itself.
    """
    rows, dim = weights.shape
    size = rows * ROWS // len(y)
    for n in range(0, len(y), ROWS):
        a, b, c, d = y[n], y[n + 1], y[n + 2], y[n + 3]
        for i in range(dim):
            a[i] = b[i] = c[i] = d[i] = np.float32(0)
        start = n // ROWS * size
        for m in range(start, start + size):
            row = weights[m]
            by_a, by_b, by_c, by_d = x[0, m], x[1, m], x[2, m], x[3, m]
            for i in range(dim):
                value = single(row[i])
                a[i] += by_a * value
                b[i] += by_b * value
                c[i] += by_c * value
                d[i] += by_d * value


@njit(cache=True, nogil=True, fastmath=True)
def look(prefix, wanted, seen):  # type: ignore[no-untyped-def]
    """Attention to the prefix (p, d). wanted: (n, d), as from `turn` -> (n, d), what each one sees of it."""
    shares = np.empty(len(prefix), np.float32)
    for n in range(len(wanted)):
        q, to, highest, total = wanted[n], seen[n], np.float32(-3e38), np.float32(0)
        for p in range(len(prefix)):
            at, product = prefix[p], np.float32(0)
            for i in range(len(q)):
                product += q[i] * at[i]
            shares[p] = product
            highest = max(highest, product)
        for p in range(len(prefix)):
            shares[p] = np.exp(shares[p] - highest)
            total += shares[p]
        for i in range(len(q)):
            to[i] = np.float32(0)
        for p in range(len(prefix)):
            at, share = prefix[p], shares[p] / total
            for i in range(len(q)):
                to[i] += share * at[i]


@njit(cache=True, nogil=True, fastmath=True)
def look_back(qkv, bias, seen):  # type: ignore[no-untyped-def]
    """Self-attention of tokens that see the first one and themselves.

    qkv: (ROWS, 3, heads, d_kv); bias: (heads,), how much more a token counts for itself -> (ROWS, heads * d_kv).
    """
    _, _, heads, size = qkv.shape
    for n in range(ROWS):
        for head in range(heads):
            q, key, start_key = qkv[n, 0, head], qkv[n, 1, head], qkv[0, 1, head]
            value, start_value = qkv[n, 2, head], qkv[0, 2, head]
            more = bias[head]
            for i in range(size):
                more += q[i] * (key[i] - start_key[i])
            share = np.float32(1) / (np.float32(1) + np.exp(-more))
            for i in range(size):
                seen[n, head * size + i] = share * value[i] + (np.float32(1) - share) * start_value[i]


@njit(cache=True, nogil=True, fastmath=True)
def normed(x, change, weight, y):  # type: ignore[no-untyped-def]
    """Adds the change to x, (n, d) -> T5's norm of each row."""
    for n in range(len(x)):
        row, added, to, square = x[n], change[n], y[n], np.float32(0)
        for i in range(len(weight)):
            row[i] += added[i]
            square += row[i] * row[i]
        factor = np.float32(1) / np.sqrt(square / np.float32(len(weight)) + EPSILON)
        for i in range(len(weight)):
            to[i] = row[i] * factor * weight[i]


@njit(cache=True, nogil=True, fastmath=True)
def log_softmax(scores, bounds):  # type: ignore[no-untyped-def]
    """scores: (n,), those that belong together from bounds[i] to bounds[i + 1]."""
    for part in range(len(bounds) - 1):
        highest, total = scores[bounds[part]], np.float32(0)
        for i in range(bounds[part], bounds[part + 1]):
            highest = max(highest, scores[i])
        for i in range(bounds[part], bounds[part + 1]):
            total += np.exp(scores[i] - highest)
        level = highest + np.log(total)
        for i in range(bounds[part], bounds[part + 1]):
            scores[i] -= level
