"""The beginning of a search for one query: log-probabilities of the first two levels and of the linear path.

With one query, the time goes into fetching the decoder's weights, not into multiplying by them. So they are kept in
half precision, each is fetched once for all first codes, and what is the same for all queries is computed once.
For decoders that fit; all others, and many queries at once, are the business of `genius.engine`. Knows nothing of
beams. Compiled when first called, once on a machine.
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
from torch import Tensor

from genius.decoder import Block, Decoder, merge_heads, split_heads

Floats = NDArray[np.float32]
ROWS = 4  # tokens that go through the layers together: the start of every ID, and the first codes behind it
WIDE = 8  # numbers in a register
LANES, PATH_LANES = 2 * WIDE, 8 * WIDE  # results computed together, of ROWS rows or of one: as registers allow
EPSILON = np.float32(1e-6)  # of the norms
LOWEST = np.float32(-87)  # of which `exp` is not 0
ZERO, LEAST = np.float32(0), np.finfo(np.float32).min


class Opening:
    """A decoder's weights, copied; many threads may call it at once."""

    def __init__(self, decoder: Decoder) -> None:
        c, linear, skip = decoder.config, decoder.prefix_network[0], decoder.skip
        assert skip is not None
        self._sizes, self._start, self._vocabulary = c.sizes, int(decoder.starts[0]), c.vocabulary
        self._path = packed(half(torch.cat([skip, linear.weight])), PATH_LANES).view(np.int16)
        self._products = rounded(c.vocabulary + c.prefix * c.d_model, PATH_LANES)
        self._prefix_bias = floats(linear.bias).reshape(c.prefix, c.d_model)
        self._end = c.vocabulary + c.prefix * c.d_model
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
        products = np.empty(self._products, np.float32)
        multiply_one(self._path, z, products)
        direct, prefix = products[: self._vocabulary], products[self._vocabulary : self._end].reshape(self._prefix_bias.shape)
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
            softmax(shares, len(prefix), False)
            multiply(values, self._mix, shares, mixed, LEAST)
            multiply(*layer.values, mixed, seen, LEAST)
            multiply(*layer.cross_out, seen, change, LEAST)
            normed(x, change, layer.ff_norm, y)
            multiply(*layer.ff_in, y, wide, ZERO)
            multiply(*layer.ff_out, wide, change, LEAST)
        normed(x, change, self._final_norm, y)
        multiply(*self._output, y, logits, LEAST)
        first, size = self._sizes[:2]
        levels = direct[self._start + first :].reshape(-1, size)
        modality = logits[:1, :first] + direct[self._start : self._start + first]
        finer = np.concatenate([logits[1 : first + 1, first : first + size] + levels[0], levels[1:]])
        softmax(modality, first, True)
        softmax(finer, size, True)
        return modality[0], finer[:first], direct, finer[first:].reshape(-1)


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


def rounded(size: int, lanes: int = LANES) -> int:
    return -(-size // lanes) * lanes


def packed(weight: NDArray[Any], lanes: int = LANES) -> NDArray[Any]:
    """(m, d) -> (m * d,): in the order in which `multiply` needs them, and zeros for as many rows as it wants."""
    m, d = weight.shape
    if m % lanes:
        weight = np.concatenate([weight, np.zeros((rounded(m, lanes) - m, d), weight.dtype)])
    return weight.reshape(-1, lanes, d).transpose(0, 2, 1).reshape(-1)


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


# Compiled


def panel(rows: int, lanes: int) -> Any:
    """Multiplies some rows with `lanes` rows of weights; the sums stay in registers until they are complete."""

    @intrinsic
    def multiplied(_, weights, at, x, x_at, x_row, y, y_at, y_row, dim, least):  # type: ignore[no-untyped-def]
        """weights, x, y: arrays; at, x_at, y_at: where to begin; x_row, y_row: how far it is to the next row."""
        whole = types.int64
        kinds = (weights, whole, x, whole, whole, y, whole, whole, whole, types.float32)

        def codegen(context, builder, _, args):  # type: ignore[no-untyped-def]
            weights, x, y = (context.make_array(kinds[i])(context, builder, args[i]).data for i in (0, 2, 5))
            at, x_at, x_row, y_at, y_row, dim, least = (args[i] for i in (1, 3, 4, 6, 7, 8, 9))
            write = _Writer(builder)
            nothing = ir.Constant(VECTOR, [0.0] * WIDE)
            sums = [[cgutils.alloca_once(builder, VECTOR) for _ in range(lanes // WIDE)] for _ in range(rows)]
            for part in itertools.chain(*sums):
                builder.store(nothing, part)
            with cgutils.for_range(builder, dim) as loop:
                start = builder.add(at, builder.mul(loop.index, at.type(lanes)))
                values = [write.load(weights, start, part) for part in range(0, lanes, WIDE)]
                for row, parts in enumerate(sums):
                    place = builder.add(builder.add(x_at, builder.mul(x_row, at.type(row))), loop.index)
                    factor = write.spread(builder.load(builder.gep(x, [place])))
                    for value, part in zip(values, parts, strict=True):
                        product = builder.fmul(factor, value, flags=("contract",))
                        builder.store(builder.fadd(builder.load(part), product, flags=("contract",)), part)
            lowest = write.spread(least)
            for row, parts in enumerate(sums):
                for i, part in enumerate(parts):
                    value = builder.load(part)
                    value = builder.select(builder.fcmp_ordered(">", value, lowest), value, lowest)
                    place = builder.add(builder.add(y_at, builder.mul(y_row, at.type(row))), at.type(i * WIDE))
                    builder.store(value, builder.bitcast(builder.gep(y, [place]), VECTOR.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.none(*kinds), codegen

    return multiplied


class _Writer:
    def __init__(self, builder):
        self.builder = builder

    def load(self, array, start, offset):
        builder = self.builder
        kept = array.type.pointee
        halves = isinstance(kept, ir.IntType)
        vector = ir.VectorType(ir.HalfType(), WIDE) if halves else VECTOR
        pointer = builder.bitcast(builder.gep(array, [builder.add(start, start.type(offset))]), vector.as_pointer())
        value = builder.load(pointer, align=2 if halves else 4)
        return builder.fpext(value, VECTOR) if halves else value

    def spread(self, value):
        nothing = ir.Constant(VECTOR, ir.Undefined)
        first = self.builder.insert_element(nothing, value, ir.IntType(32)(0))
        return self.builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), WIDE), [0] * WIDE))


VECTOR = ir.VectorType(ir.FloatType(), WIDE)
of_rows, of_one = panel(ROWS, LANES), panel(1, PATH_LANES)


@njit(cache=True, nogil=True)
def multiply(weights, layout, x, y, least):  # type: ignore[no-untyped-def]
    """y = max(x weights^T, least)."""
    groups, panels, dim, weights_group, x_group, x_row, y_group, y_row = layout
    for group in range(groups):
        for panel in range(panels):
            at, y_at = group * weights_group + panel * dim * LANES, group * y_group + panel * LANES
            of_rows(weights, at, x, group * x_group, x_row, y, y_at, y_row, dim, least)


@njit(cache=True, nogil=True)
def multiply_one(weights, x, y):  # type: ignore[no-untyped-def]
    """y = weights x. weights: (m, d), packed; x: (d,), y: (m,)."""
    for m in range(0, len(y), PATH_LANES):
        of_one(weights, m * len(x), x, 0, 0, y, m, 0, len(x), LEAST)


@njit(cache=True, nogil=True, fastmath=True, inline="always")
def exp(x):  # type: ignore[no-untyped-def]
    """e^x for -87 <= x <= 0, as exactly as float32 allows; unlike `np.exp` many at once."""
    power = np.int32(x * np.float32(1.44269504) - np.float32(0.5))
    rest = x - np.float32(power) * np.float32(0.693147181)
    series = np.float32(1.9875691500e-4)
    series = series * rest + np.float32(1.3981999507e-3)
    series = series * rest + np.float32(8.3334519073e-3)
    series = series * rest + np.float32(4.1665795894e-2)
    series = series * rest + np.float32(1.6666665459e-1)
    series = series * rest + np.float32(5.0000001201e-1)
    series = series * rest * rest + rest + np.float32(1)
    return series * np.int32((power + np.int32(127)) << np.int32(23)).view(np.float32)


@njit(cache=True, nogil=True, fastmath=True)
def softmax(scores, count, log):  # type: ignore[no-untyped-def]
    """In place, of the first `count` of each row, or its logarithm; what is behind becomes 0."""
    for n in range(len(scores)):
        row, highest, total = scores[n], scores[n, 0], np.float32(0)
        for i in range(count):
            highest = max(highest, row[i])
        for i in range(count):
            row[i] -= highest
            total += exp(max(row[i], LOWEST))
        if log:
            level = np.log(total)
            for i in range(count):
                row[i] -= level
        else:
            for i in range(count):
                row[i] = exp(max(row[i], LOWEST)) / total
            for i in range(count, len(row)):
                row[i] = np.float32(0)


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
