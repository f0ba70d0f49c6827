"""The beginning of a search for one query: log-probabilities of the first two levels and of the linear path.

With one query, the time goes into fetching the decoder's weights, not into multiplying by them. So they are kept in
half precision, each is fetched once for all first codes, and what is the same for all queries is computed once.
For decoders that fit; all others, and many queries at once, are the business of `genius.engine`. Knows nothing of
beams. Compiled when first called, once on a machine.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

from genius.decoder import Block, Decoder, merge_heads, split_heads
from genius.halves import single
from genius.walk import half_products

Floats = NDArray[np.float32]
ROWS = 4  # tokens that go through the layers together: the start of every ID, and the first codes behind it
WIDE = 8  # numbers in a register
LANES = 2 * WIDE  # results computed together for each row
EPSILON = np.float32(1e-6)  # of the norms
ZERO, LEAST = np.float32(0), np.finfo(np.float32).min


class Opening:
    """A decoder's weights, copied; many threads may call it at once."""

    def __init__(self, decoder: Decoder) -> None:
        c, linear, skip = decoder.config, decoder.prefix_network[0], decoder.skip
        assert skip is not None
        self._sizes, self._start, self._vocabulary = c.sizes, int(decoder.starts[0]), c.vocabulary
        self._path = linear_bits(torch.cat([skip, linear.weight]))
        self._all = np.arange(len(self._path))
        self._prefix_bias = floats(linear.bias).reshape(c.prefix, c.d_model)
        self._prefix_norm = floats(decoder.prefix_norm.weight)
        self._begun, self._wanted = begun(decoder)
        self._bias = floats(decoder.causal_bias(2)[:, 1].diff()[:, 0])
        self._layers = [_Layer(block) for block in decoder.blocks]
        self._final_norm = floats(decoder.scaled(decoder.final_norm.weight))
        self._output = Product.of(decoder.output_table[decoder.rows(0).start : decoder.rows(1).stop])
        d, inner, prefix = c.d_model, c.heads * c.d_kv, rounded(c.prefix)
        self._heads = (ROWS, 3, c.heads, c.d_kv)
        self._shapes = [(ROWS, d), (ROWS, d), (ROWS, d), (ROWS, 3 * inner), (ROWS, inner), (ROWS, c.d_ff)]
        self._shapes += [(c.heads * ROWS, d), (c.heads * ROWS, prefix), (c.heads * ROWS, d)]
        self._shapes += [(ROWS, rounded(c.sizes[0] + c.sizes[1]))]
        self._scores = Layout(c.heads, prefix // LANES, d, 0, ROWS * d, d, ROWS * prefix, prefix)
        self._mix = Layout(c.heads, d // LANES, prefix, 0, ROWS * prefix, prefix, ROWS * d, d)

    @staticmethod
    def fits(decoder: Decoder) -> bool:
        """Whether the layers write just two levels, the first of few codes, and all weights are half-precision."""
        c = decoder.config
        shape = c.written == 2 < len(c.sizes) and c.sizes[0] < ROWS and not c.prefix_hidden
        shape = shape and not any(size % LANES for size in (c.d_model, c.d_kv, c.d_ff)) and len(set(c.sizes[1:])) == 1
        return shape and all(bool((weight.half() == weight).all()) for weight in decoder.parameters())

    def __call__(self, z: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """z: (dim,) -> the log-probabilities of level 0 and, behind each of its codes, of level 1;

        (sizes[0],) and (sizes[0], sizes[1]). Then what the linear path adds to the logits, (vocabulary,), and its
        log-probabilities of all other levels, one after the other.
        """
        products = half_products(self._path, self._all, z)
        direct, prefix = products[: self._vocabulary], products[self._vocabulary :].reshape(self._prefix_bias.shape)
        normed(prefix, self._prefix_bias, self._prefix_norm, prefix)
        keys, values = packed(prefix), packed(np.ascontiguousarray(prefix.T))
        x, y, change, qkv, seen, wide, wanted, shares, mixed, logits = (np.empty(s, np.float32) for s in self._shapes)
        x[:] = self._begun
        for i, layer in enumerate(self._layers):
            if i:
                normed(x, change, layer.self_norm, y)
                multiply(*layer.self_qkv, y, qkv, LEAST)
                look_back(qkv.reshape(self._heads), self._bias, seen)
                multiply(*layer.self_out, seen, change, LEAST)
                normed(x, change, layer.cross_norm, y)
                multiply(*layer.cross_q, y, seen, LEAST)
                multiply(*layer.keys, seen, wanted, LEAST)
            multiply(keys, self._scores, wanted if i else self._wanted, shares, LEAST)
            softmax(shares, len(prefix))
            multiply(values, self._mix, shares, mixed, LEAST)
            multiply(*layer.values, mixed, seen, LEAST)
            multiply(*layer.cross_out, seen, change, LEAST)
            normed(x, change, layer.ff_norm, y)
            multiply(*layer.ff_in, y, wide, ZERO)
            multiply(*layer.ff_out, wide, change, LEAST)
        normed(x, change, self._final_norm, y)
        multiply(*self._output, y, logits, LEAST)
        first, size = self._sizes[:2]
        modality = logits[0, :first] + direct[self._start : self._start + first]
        levels = direct[self._start + first :].reshape(-1, size)
        second = log_softmax(logits[1 : first + 1, first : first + size] + levels[0])
        return log_softmax(modality), second, direct, log_softmax(levels[1:]).reshape(-1)


class Layout(NamedTuple):
    """How a matrix and what is multiplied with it stand in memory.

    groups: of rows, ROWS each, that have weights of their own; panels: LANES results each; dim: numbers to be summed.
    The others: how far it is from one group's weights to the next, and from one group and row to the next of x and y.
    """

    groups: int
    panels: int
    dim: int
    weights_group: int
    x_group: int
    x_row: int
    y_group: int
    y_row: int


class Product(NamedTuple):
    weights: NDArray[np.int16]
    layout: Layout

    @classmethod
    def of(cls, weight: Tensor) -> "Product":
        """weight: (m, d). x: (ROWS, d), y: (ROWS, m)"""
        m, d = rounded(len(weight)), weight.shape[1]
        return cls(packed(half(weight)).view(np.int16), Layout(1, m // LANES, d, 0, 0, d, 0, m))

    @classmethod
    def of_heads(cls, weight: Tensor) -> "Product":
        """weight: (heads, m, d). x: (heads * ROWS, d), y: (ROWS, heads * m)"""
        heads, m, d = weight.shape
        weights = np.stack([packed(half(part)) for part in weight]).view(np.int16)
        return cls(weights.reshape(-1), Layout(heads, m // LANES, d, m * d, ROWS * d, d, m, heads * m))

    @classmethod
    def to_heads(cls, weight: Tensor) -> "Product":
        """weight: (heads, m, d). x: (ROWS, heads * d), y: (heads * ROWS, m)"""
        heads, m, d = weight.shape
        weights = np.stack([packed(half(part)) for part in weight]).view(np.int16)
        return cls(weights.reshape(-1), Layout(heads, m // LANES, d, m * d, d, heads * d, ROWS * m, m))


def rounded(size: int) -> int:
    return -(-size // LANES) * LANES


def packed(weight: NDArray[Any]) -> NDArray[Any]:
    """(m, d) -> (m * d,): in the order in which `multiply` needs them, and zeros for as many rows as it wants."""
    m, d = weight.shape
    if m % LANES:
        weight = np.concatenate([weight, np.zeros((rounded(m) - m, d), weight.dtype)])
    return weight.reshape(-1, LANES, d).transpose(0, 2, 1).reshape(-1)


class _Layer:
    """A block's weights."""

    def __init__(self, block: Block) -> None:
        keys, values = (part.unflatten(0, (block.heads, -1)) for part in block.cross_kv.weight.chunk(2))
        self.self_norm, self.cross_norm, self.ff_norm = (
            floats(norm.weight) for norm in (block.self_norm, block.cross_norm, block.ff_norm)
        )
        self.self_qkv, self.self_out = Product.of(block.self_qkv.weight), Product.of(block.self_out.weight)
        self.cross_q, self.cross_out = Product.of(block.cross_q.weight), Product.of(block.cross_out.weight)
        self.keys, self.values = Product.to_heads(keys.transpose(1, 2)), Product.of_heads(values)
        self.ff_in, self.ff_out = Product.of(block.ff_in.weight), Product.of(block.ff_out.weight)


def begun(decoder: Decoder) -> tuple[Floats, Floats]:
    """The tokens when they first turn to the prefix, (ROWS, d_model), and what each head looks for in it."""
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


def half(weight: Tensor) -> NDArray[np.float16]:
    values: NDArray[np.float16] = weight.detach().half().cpu().numpy()
    return values


def linear_bits(weight: Tensor) -> NDArray[np.int16]:
    return np.ascontiguousarray(half(weight)).view(np.int16)


def log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    normal: Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normal


# Compiled


@njit(cache=True, nogil=True)
def multiply(weights, layout, x, y, least):  # type: ignore[no-untyped-def]
    """y = max(x weights^T, least)."""
    groups, panels, dim, weights_group, x_group, x_row, y_group, y_row = layout
    for group in range(groups):
        for panel in range(panels):
            at = group * weights_group + panel * dim * LANES
            multiply_panel(
                weights, at, x, group * x_group, x_row, y, group * y_group + panel * LANES, y_row, dim, least
            )


@intrinsic
def multiply_panel(_, weights, at, x, x_at, x_row, y, y_at, y_row, dim, least):  # type: ignore[no-untyped-def]
    """LANES results of each row, which stay in registers until they are summed up."""
    one = ir.FloatType()
    vector = ir.VectorType(one, WIDE)

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        weights, x, y = (context.make_array(signature.args[i])(context, builder, args[i]).data for i in (0, 2, 5))
        at, x_at, x_row, y_at, y_row, dim, least = (args[i] for i in (1, 3, 4, 6, 7, 8, 9))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), WIDE), [0] * WIDE)

        def spread(value):  # type: ignore[no-untyped-def]
            first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
            return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), lanes)

        def place(array, *offsets):  # type: ignore[no-untyped-def]
            total = offsets[0]
            for offset in offsets[1:]:
                total = builder.add(total, offset)
            return builder.gep(array, [total])

        def word(value):  # type: ignore[no-untyped-def]
            return ir.IntType(64)(value)

        halves = isinstance(signature.args[0].dtype, types.Integer)
        kept = ir.VectorType(ir.HalfType(), WIDE) if halves else vector
        sums = [[cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * WIDE)) for _ in range(2)] for _ in range(ROWS)]
        for parts in sums:
            for total in parts:
                builder.store(ir.Constant(vector, [0.0] * WIDE), total)
        with cgutils.for_range(builder, dim) as loop:
            start = builder.add(at, builder.mul(loop.index, word(LANES)))
            values = []
            for part in range(2):
                pointer = builder.bitcast(place(weights, start, word(part * WIDE)), kept.as_pointer())
                value = builder.load(pointer, align=2 if halves else 4)
                values.append(builder.fpext(value, vector) if halves else value)
            for row in range(ROWS):
                factor = spread(builder.load(place(x, x_at, builder.mul(x_row, word(row)), loop.index)))
                for value, total in zip(values, sums[row], strict=True):
                    product = builder.fmul(factor, value, flags=("contract",))
                    builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)
        lowest = spread(least)
        for row in range(ROWS):
            for part in range(2):
                total = builder.load(sums[row][part])
                total = builder.select(builder.fcmp_ordered(">", total, lowest), total, lowest)
                to = place(y, y_at, builder.mul(y_row, word(row)), word(part * WIDE))
                builder.store(total, builder.bitcast(to, vector.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.none(weights, types.int64, x, types.int64, types.int64, y, types.int64, types.int64, types.int64, least), codegen


@njit(cache=True, nogil=True, fastmath=True)
def softmax(scores, count):  # type: ignore[no-untyped-def]
    """In place, of the first so many of each row; the others become 0."""
    for n in range(len(scores)):
        row, highest, total = scores[n], scores[n, 0], np.float32(0)
        for i in range(count):
            highest = max(highest, row[i])
        for i in range(len(row)):
            row[i] = np.exp(row[i] - highest) if i < count else np.float32(0)
            total += row[i]
        for i in range(len(row)):
            row[i] /= total


@njit(cache=True, nogil=True, fastmath=True)
def look_back(qkv, bias, seen):  # type: ignore[no-untyped-def]
    """Self-attention of tokens that see the first one and themselves.

    qkv: (ROWS, 3, heads, d_kv); bias: (heads,), how much more a token counts for itself; seen: (ROWS, heads * d_kv).
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
    """Adds the change to x, (n, d), and leaves T5's norm of each row in y."""
    for n in range(len(x)):
        row, added, to, square = x[n], change[n], y[n], np.float32(0)
        for i in range(len(weight)):
            row[i] += added[i]
            square += row[i] * row[i]
        factor = np.float32(1) / np.sqrt(square / np.float32(len(weight)) + EPSILON)
        for i in range(len(weight)):
            to[i] = row[i] * factor * weight[i]
