"""A small search task that chooses between decoders: items, held-back pseudo-queries, and their exact results."""

import numpy as np

from genius.encoders.precomputed import PrecomputedEncoder
from genius.fit.check import CheckedItems, exact, recall
from genius.fit.codebooks import Sample
from genius.fit.queries import QueryMaker
from genius.model.decoder_runtime import DecoderRuntime
from genius.model.encoder_only import encoder_only
from genius.model.genius import Genius
from genius.model.quantizer_runtime import QuantizerRuntime

ITEMS, QUERIES = 10_000, 100  # of more than twice as many items, every second, third, ... one is taken


class Validation:
    """Measures how many of the exact results the mode generate finds with a decoder.

    Args:
        quantizer: The codebooks.
        learned: Items to search, of which a part is taken.
        maker: Makes queries from held-back items.
        code_beams: Beam width when the codes of an item are chosen.
        rng: Random numbers of the queries.
    """

    def __init__(
        self, quantizer: QuantizerRuntime, learned: Sample, maker: QueryMaker, code_beams: int, rng: np.random.Generator
    ) -> None:
        step = max(1, len(learned) // ITEMS)
        sample = Sample(learned.z[::step], learned.modality[::step])
        self._items = CheckedItems(sample, quantizer.encode(sample.z, sample.modality, code_beams))
        self._queries = maker.draw(QUERIES, rng)
        self._nearest = exact(sample, self._queries)
        self._quantizer = quantizer
        self._encoder = PrecomputedEncoder(quantizer.dim)  # queries are vectors already
        self._fusion = encoder_only(self._encoder).fusion

    def recall(self, decoder: DecoderRuntime) -> float:
        """Recall of the mode generate, see `genius.fit.check.recall`."""
        model = Genius(self._encoder, self._fusion, self._quantizer, decoder)
        return recall(model, self._items, self._queries, self._nearest, "generate")
