"""How the decoder's token table, which embeds codes and scores them, starts."""

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

from genius.networks.decoder import Decoder

PUBLISHED_SCALE = 100 / 3**0.5
"""The authors multiply unit code vectors by 100 and by a random matrix (d_model, dim) of variance 1 / (3 dim); the map
of `init_table` has variance 1 / dim if d_model <= dim. With their 512 and 768 dimensions, rows have length 47."""


def start_table(decoder: Decoder, codebooks: Sequence[Tensor], variant: str) -> None:
    """Start the token table from the code vectors (size, dim) of each level.

    variant: "random", as in T5; "codebooks", the code vectors, all times one number; or "published", as in the authors'
    code, where each code vector is first brought to length 1: fine levels are then as long as coarse ones.
    """
    if variant == "codebooks":
        decoder.init_table(codebooks)
    elif variant == "published":
        decoder.init_table([F.normalize(book, dim=1) for book in codebooks], PUBLISHED_SCALE)
