"""Models of an encoder alone. They have no codebooks: search compares a query with every item (exact search)."""

import torch

from genius.encoders.base import Encoder
from genius.model.decoder import Decoder, DecoderConfig
from genius.model.fusion import Fusion
from genius.model.genius import Genius
from genius.model.quantizer import Quantizer


@torch.no_grad()
def encoder_only(encoder: Encoder) -> Genius:
    """A model whose IDs are the modality and nothing else; weights are kept as float32.

    Fusion is the normalised sum of the vectors. The decoder finds all modalities equally likely. Modes "rerank" and
    "fast" rank the items under all IDs, which are all items, by their embeddings. There is nothing to generate.
    """
    dim = encoder.dim
    fusion, quantizer = Fusion(dim, hidden=1), Quantizer(dim, codes_per_level=1, levels=0)
    sizes = quantizer.sizes
    decoder = Decoder(DecoderConfig(dim, sizes, d_model=8, layers=1, heads=1, d_kv=8, d_ff=8, prefix=1, dropout=0.0))
    for module in (fusion, decoder):
        for weight in module.parameters():
            weight.zero_()
    quantizer.set_codebooks([torch.zeros(sizes[0], dim)])
    return Genius(encoder, fusion, quantizer, decoder, dtype="float32")
