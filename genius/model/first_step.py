"""The beginning of a search for few queries: log-probabilities of the first two levels and of the linear path.

For few queries, most of the time goes into fetching the decoder's weights, not into multiplying by them. So they are
kept in half precision, each is fetched once for all first codes of a query, and what all queries share is computed
once. For decoders that fit; all others are the business of `decoder_runtime`, as are many queries at once.
Knows nothing of beams. Compiled when first called, once on a machine.
"""

import itertools
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor, nn

from genius.model.decoder import Block, Decoder, merge_heads, split_heads
from genius.runtime.half_precision import widened

Floats = NDArray[np.float32]
ROWS = 4  # tokens that go through the layers together: the start of every ID, and the first codes behind it
WIDE = 8  # numbers in a register
LANES, PATH_LANES = 2 * WIDE, 8 * WIDE  # sums at a time for each of ROWS rows, and for one: as many as registers hold
EPSILON = np.float32(1e-6)  # of the norms


class Opening:
    """A decoder's weights, copied; many threads may call it at once."""

    def __init__(self, decoder: Decoder) -> None:
        c, linear, skip = decoder.config, decoder.prefix_network[0], decoder.skip
        assert isinstance(linear, nn.Linear)
        assert skip is not None
        d, inner, prefix = c.d_model, c.heads * c.d_kv, rounded(c.prefix)
        self._first, self._size, self._levels = c.sizes[0], c.sizes[1], len(c.sizes)
        self._start, self._vocabulary, self._end = int(decoder.starts[0]), c.vocabulary, c.vocabulary + c.prefix * d
        self._path = packed(half(torch.cat([skip, linear.weight])), PATH_LANES)
        self._prefix_bias, self._prefix_norm = floats(linear.bias).reshape(-1, d), floats(decoder.prefix_norm.weight)
        self._begun, self._wanted = begun(decoder)
        self._bias = floats(decoder.causal_bias(2)[:, 1].diff()[:, 0])
        self._layers = [_Layer(block) for block in decoder.blocks]
        self._final_norm = floats(decoder.scaled(decoder.final_norm.weight))
        self._output = Matrix.of(decoder.output_table[decoder.rows(0).start : decoder.rows(1).stop])
        self._scores = Layout(c.heads, prefix // LANES, d, 0, ROWS * d, d, ROWS * prefix, prefix)
        self._mix = Layout(c.heads, d // LANES, c.prefix, 0, ROWS * prefix, prefix, ROWS * d, d)
        self._heads = (ROWS, 3, c.heads, c.d_kv)
        widths = (d, d, d, 3 * inner, inner, c.d_ff, rounded(self._first + self._size))
        self._room = [(ROWS, width) for width in widths]
        self._head_room = [(c.heads * ROWS, width) for width in (d, prefix, d)]

    @staticmethod
    def fits(decoder: Decoder) -> bool:
        """Whether the layers write two of several levels, sizes are as usual, and all weights are half-precision."""
        c = decoder.config
        return (
            c.written == 2 < len(c.sizes)
            and c.sizes[0] < ROWS
            and len(set(c.sizes[1:])) == 1
            and not c.prefix_hidden
            and not any(size % LANES for size in (c.d_model, c.d_kv, c.d_ff))
            and all(bool((weight.half() == weight).all()) for weight in decoder.parameters())
        )

    def __call__(self, z: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """z: (q, dim) -> log-probabilities of level 0, (q, codes), and of level 1 behind each of its codes,
        (q, codes, sizes[1]); what the linear path adds to the logits, (q, vocabulary), and its log-probabilities of all
        other levels, one after the other.
        """
        z = np.ascontiguousarray(z, np.float32)
        products = np.empty((len(z), rounded(self._end, PATH_LANES)), np.float32)
        first = np.empty((len(z), 1, self._first), np.float32)
        finer = np.empty((len(z), self._first + self._levels - 2, self._size), np.float32)
        for query, *found in zip(z, products, first, finer, strict=True):
            self._open(query, *found)
        left = np.ascontiguousarray(finer[:, self._first :].reshape(len(z), -1))
        return first[:, 0], finer[:, : self._first], products[:, : self._vocabulary], left

    def _open(self, z: Floats, products: Floats, first: Floats, finer: Floats) -> None:
        """One query. Fills what the linear layers make of it; the first level, (1, codes); the others, row by row."""
        multiply_one(self._path, z, products)
        prefix = products[self._vocabulary : self._end].reshape(self._prefix_bias.shape)
        normed(prefix, self._prefix_bias, self._prefix_norm, prefix)
        keys, values = packed(prefix), packed(prefix.T)
        x, y, change, qkv, seen, wide, logits = (np.empty(shape, np.float32) for shape in self._room)
        wanted, shares, mixed = (np.empty(shape, np.float32) for shape in self._head_room)
        x[:] = self._begun
        for i, layer in enumerate(self._layers):
            if i:
                normed(x, change, layer.self_norm, y)
                multiply(*layer.self_qkv, y, qkv)
                look_back(qkv.reshape(self._heads), self._bias, seen)
                multiply(*layer.self_out, seen, change)
                normed(x, change, layer.cross_norm, y)
                multiply(*layer.cross_q, y, seen)
                multiply(*layer.keys, seen, wanted)
            multiply(keys, self._scores, wanted if i else self._wanted, shares)
            softmax(shares, len(prefix), False)
            multiply(values, self._mix, shares, mixed)
            multiply(*layer.values, mixed, seen)
            multiply(*layer.cross_out, seen, change)
            normed(x, change, layer.ff_norm, y)
            multiply(*layer.ff_in, y, wide)
            np.maximum(wide, 0, out=wide)
            multiply(*layer.ff_out, wide, change)
        normed(x, change, self._final_norm, y)
        multiply(*self._output, y, logits)
        codes, size = self._first, self._size
        direct, free = products[self._start : self._start + codes], products[self._start + codes : self._vocabulary]
        np.add(logits[:1, :codes], direct, out=first)
        np.add(logits[1 : 1 + codes, codes : codes + size], free[:size], out=finer[:codes])
        finer[codes:] = free[size:].reshape(-1, size)
        softmax(first, codes, True)
        softmax(finer, size, True)


class _Layer:
    """A block's weights."""

    def __init__(self, block: Block) -> None:
        keys, values = (part.unflatten(0, (block.heads, -1)) for part in block.cross_kv.weight.chunk(2))
        self.self_norm, self.cross_norm = floats(block.self_norm.weight), floats(block.cross_norm.weight)
        self.self_qkv, self.self_out = Matrix.of(block.self_qkv.weight), Matrix.of(block.self_out.weight)
        self.cross_q, self.cross_out = Matrix.of(block.cross_q.weight), Matrix.of(block.cross_out.weight)
        # A head's key of something, times its query, is the thing itself, times what the query becomes by the key's
        # weights turned round. So the prefix, which has more rows than there are tokens, is never made into keys.
        self.keys, self.values = Matrix.to_heads(keys.transpose(1, 2)), Matrix.of_heads(values)
        self.ff_norm = floats(block.ff_norm.weight)
        self.ff_in, self.ff_out = Matrix.of(block.ff_in.weight), Matrix.of(block.ff_out.weight)


def begun(decoder: Decoder) -> tuple[Floats, Floats]:
    """The tokens when they first turn to the prefix, (ROWS, d_model), and what each head of them looks for in it."""
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


def half(weight: Tensor) -> NDArray[np.int16]:
    """The bits of half-precision numbers."""
    return weight.detach().half().cpu().contiguous().numpy().view(np.int16)


def rounded(size: int, lanes: int = LANES) -> int:
    return -(-size // lanes) * lanes


def packed(weight: NDArray[Any], lanes: int = LANES) -> NDArray[Any]:
    """(m, d) -> flat, in the order in which they are multiplied; with zeros where the last sums would be too few."""
    m, d = weight.shape
    if m % lanes:
        weight = np.concatenate([weight, np.zeros((rounded(m, lanes) - m, d), weight.dtype)])
    return weight.reshape(-1, lanes, d).transpose(0, 2, 1).ravel()


class Layout(NamedTuple):
    """How the weights of a matrix, rows x and their products y with it stand in memory.

    groups: of ROWS rows, with weights of their own; panels: of LANES sums; dim: of d numbers each. Then, how far it is
    from one group's weights to the next, and from one group or row to the next in x and in y.
    """

    groups: int
    panels: int
    dim: int
    weights_group: int
    x_group: int
    x_row: int
    y_group: int
    y_row: int


class Matrix(NamedTuple):
    """Weights, packed."""

    weights: NDArray[np.int16]
    layout: Layout

    @classmethod
    def of(cls, weight: Tensor) -> "Matrix":
        """weight: (m, d), to multiply (ROWS, d) -> (ROWS, m)."""
        m, d = weight.shape
        return cls(packed(half(weight)), Layout(1, rounded(m) // LANES, d, 0, 0, d, 0, rounded(m)))

    @classmethod
    def of_heads(cls, weight: Tensor) -> "Matrix":
        """weight: (heads, m, d), to multiply (heads * ROWS, d) -> (ROWS, heads * m)."""
        heads, m, d = weight.shape
        return cls(packed(half(weight.flatten(0, 1))), Layout(heads, m // LANES, d, m * d, ROWS * d, d, m, heads * m))

    @classmethod
    def to_heads(cls, weight: Tensor) -> "Matrix":
        """weight: (heads, m, d), to multiply (ROWS, heads * d) -> (heads * ROWS, m)."""
        heads, m, d = weight.shape
        return cls(packed(half(weight.flatten(0, 1))), Layout(heads, m // LANES, d, m * d, d, heads * d, ROWS * m, m))


# The compiled part. What one loop over weights does is written as instructions, since no loop that a compiler is given
# makes it keep so many sums in registers.


def panel(rows: int, lanes: int) -> Any:
    """Products of some rows with the next `lanes` rows of packed weights, which are read from end to end."""
    vector, whole = ir.VectorType(ir.FloatType(), WIDE), types.int64

    @intrinsic
    def sums(_, weights, at, x, x_at, x_row, y, y_at, y_row, dim):  # type: ignore[no-untyped-def]
        """weights, x, y: arrays; at, x_at, y_at: where to begin in them; x_row, y_row: how far the next row is."""
        kinds = (weights, whole, x, whole, whole, y, whole, whole, whole)
        bits = isinstance(weights.dtype, types.Integer)
        kept = ir.VectorType(ir.IntType(16), WIDE) if bits else vector

        def codegen(context, builder, _, args):  # type: ignore[no-untyped-def]
            weights, x, y = (context.make_array(kinds[i])(context, builder, args[i]).data for i in (0, 2, 5))
            at, x_at, x_row, y_at, y_row, dim = (args[i] for i in (1, 3, 4, 6, 7, 8))

            def place(array, start, step, times, kind):  # type: ignore[no-untyped-def]
                index = builder.add(start, builder.mul(step, times))
                return builder.bitcast(builder.gep(array, [index]), kind.as_pointer())

            totals = [[cgutils.alloca_once(builder, vector) for _ in range(0, lanes, WIDE)] for _ in range(rows)]
            for total in itertools.chain(*totals):
                builder.store(ir.Constant(vector, [0.0] * WIDE), total)
            with cgutils.for_range(builder, dim) as loop:
                values = []
                for lane in range(0, lanes, WIDE):
                    from_lane = builder.add(at, whole_number(lane))
                    pointer = place(weights, from_lane, loop.index, whole_number(lanes), kept)
                    value = builder.load(pointer, align=2 if bits else 4)
                    values.append(widened(builder, value) if bits else value)
                for row in range(rows):
                    start = builder.add(x_at, loop.index)
                    factor = builder.load(place(x, start, x_row, whole_number(row), ir.FloatType()))
                    factor = spread(builder, factor, vector)
                    for value, total in zip(values, totals[row], strict=True):
                        product = builder.fmul(factor, value, flags=("contract",))
                        builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)
            for row in range(rows):
                for part, total in enumerate(totals[row]):
                    start = builder.add(y_at, whole_number(part * WIDE))
                    builder.store(builder.load(total), place(y, start, y_row, whole_number(row), vector), align=4)
            return context.get_dummy_value()

        return types.none(*kinds), codegen

    return sums


def whole_number(value: int) -> Any:
    return ir.IntType(64)(value)


def spread(builder: Any, value: Any, vector: Any) -> Any:
    """A vector with the value everywhere."""
    nothing, first = ir.Constant(vector, ir.Undefined), ir.IntType(32)(0)
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), WIDE), [0] * WIDE)
    return builder.shuffle_vector(builder.insert_element(nothing, value, first), nothing, everywhere)


sums_of_rows, sums_of_one = panel(ROWS, LANES), panel(1, PATH_LANES)


@njit(cache=True, nogil=True)
def multiply(weights, layout, x, y):  # type: ignore[no-untyped-def]
    """Fills y with the products of x and packed weights, float32 or the bits of half-precision numbers."""
    groups, panels, dim, weights_group, x_group, x_row, y_group, y_row = layout
    for group in range(groups):
        for at in range(panels):
            start = group * weights_group + at * dim * LANES
            sums_of_rows(weights, start, x, group * x_group, x_row, y, group * y_group + at * LANES, y_row, dim)


@njit(cache=True, nogil=True)
def multiply_one(weights, x, y):  # type: ignore[no-untyped-def]
    """The same for one row, with weights that are packed for it: x: (d,), y: (m,)."""
    for m in range(0, len(y), PATH_LANES):
        sums_of_one(weights, m * len(x), x, 0, 0, y, m, 0, len(x))


@njit(cache=True, nogil=True, fastmath=True)
def softmax(scores, count, log):  # type: ignore[no-untyped-def]
    """Of the first `count` in each row, or its logarithm, in their place."""
    for n in range(len(scores)):
        row, highest, total = scores[n], scores[n, 0], np.float32(0)
        for i in range(count):
            highest = max(highest, row[i])
        for i in range(count):
            row[i] -= highest
            total += exp(row[i])
        if log:
            level = np.log(total)
            for i in range(count):
                row[i] -= level
        else:
            for i in range(count):
                row[i] = exp(row[i]) / total


@njit(cache=True, nogil=True, fastmath=True)
def exp(x):  # type: ignore[no-untyped-def]
    """e^x for x <= 0, to the last digit or two; below -87 as of that. Unlike `np.exp`, computed for many at once.

    2^n e^r, with r no more than half of log 2 and its series as in Cephes' expf.
    """
    x = max(x, np.float32(-87))
    n = np.int32(x * np.float32(1.44269504) - np.float32(0.5))
    r = x - np.float32(n) * np.float32(0.693147181)
    series = np.float32(1.9875691500e-4)
    series = series * r + np.float32(1.3981999507e-3)
    series = series * r + np.float32(8.3334519073e-3)
    series = series * r + np.float32(4.1665795894e-2)
    series = series * r + np.float32(1.6666665459e-1)
    series = series * r + np.float32(5.0000001201e-1)
    return (series * r * r + r + np.float32(1)) * np.int32((n + np.int32(127)) << np.int32(23)).view(np.float32)


@njit(cache=True, nogil=True, fastmath=True)
def look_back(qkv, bias, seen):  # type: ignore[no-untyped-def]
    """Self-attention of tokens that see the first one and themselves.

    qkv: (ROWS, 3, heads, d_kv); bias: (heads,), how much more a token counts for itself; fills seen, (ROWS, inner).
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
    """Adds the change to x, (n, d), and fills y with T5's norm of each row."""
    for n in range(len(x)):
        row, added, to, square = x[n], change[n], y[n], np.float32(0)
        for i in range(len(weight)):
            row[i] += added[i]
            square += row[i] * row[i]
        factor = np.float32(1) / np.sqrt(square / np.float32(len(weight)) + EPSILON)
        for i in range(len(weight)):
            to[i] = row[i] * factor * weight[i]
