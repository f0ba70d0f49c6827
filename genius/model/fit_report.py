"""FitReport: how well a fitted model does on its own collection. The model folder keeps it as `fit.json`."""

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from genius.errors import BadModel

NAME = "fit.json"
FORMAT = 1


@dataclass(frozen=True)
class FitReport:
    """Result of the check after a fit. Shares are between 0 and 1.

    Attributes:
        items: Number of items of the collection.
        modalities: Number of items of each modality.
        learned_from: Items that codebooks and decoder were learned from.
        sizes: Codes of each level, the modality level first.
        layers: Layers of the decoder; 0: the residual score alone.
        query_scale: Scale of the query vector in the residual score, chosen by held-back queries.
        error: Mean squared distance of held-back items from what their codes stand for.
        variance: The same from the mean of their modality.
        codes_used: Share of the codes in use, over all semantic levels.
        shared_ids: Share of the items that have the same codes as another one.
        checked_items: Items that the check searched.
        queries: Held-back pseudo-queries of the check.
        recall: Mode (generate, rerank, fast, and codes: fast without embeddings) -> share of the ten items that exact
            search finds which the mode finds, too.
        suggestions: What to change where the check was weak.
        seconds: Duration of the fit, without encoding.
        in_index: Whether the collection is the index that holds the model.
    """

    items: int
    modalities: dict[str, int]
    learned_from: int
    sizes: tuple[int, ...]
    layers: int
    query_scale: float
    error: float
    variance: float
    codes_used: float
    shared_ids: float
    checked_items: int
    queries: int
    recall: dict[str, float]
    suggestions: tuple[str, ...]
    seconds: float
    in_index: bool = False

    @property
    def lost(self) -> float:
        """Share of the variance that the codes do not tell."""
        return self.error / self.variance if self.variance else 0.0

    def write(self, folder: Path) -> None:
        """Write the report into a model folder."""
        values = {"format": FORMAT, **asdict(self)}
        (folder / NAME).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> "FitReport | None":
        """Read the report of a model folder; None if the model was not fitted.

        Raises:
            BadModel: The file is damaged.
        """
        path = Path(folder) / NAME
        if not path.is_file():
            return None
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            for name in ("sizes", "suggestions"):
                values[name] = tuple(values[name])
            return cls(**{field.name: values[field.name] for field in fields(cls)})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadModel(f"{path} is damaged ({error!r}). Delete it, or fit the model again.") from error
