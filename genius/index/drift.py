"""Drift: how well the codes of a fitted model still fit what was added since."""

from dataclasses import dataclass

import numpy as np

from genius.index.models import model_folder
from genius.index.recode import stored_vectors
from genius.index.snapshot import Snapshot
from genius.index.storage import to_codes, vector_columns
from genius.model.fit_report import FitReport
from genius.model.genius import load_quantizer

CREATED = "_row_created_at_version"  # column of Lance
SAMPLE = 5_000  # items whose error is measured, at most
NOTABLE = 1.25  # ratio of the errors from which on a refit is worth its time


@dataclass(frozen=True)
class Drift:
    """How well codes fit the items added after a fit.

    Attributes:
        added: Number of these items.
        error: Mean squared distance of their vectors from what their codes stand for; that of a sample of them.
        fitted_error: The same at the time of the fit, of held-back items.
        ratio: error / fitted_error. Above 1.25, `genius index refit` is worth its time.
    """

    added: int
    error: float
    fitted_error: float
    ratio: float

    @property
    def words(self) -> str:
        """One sentence."""
        verdict = "the codes fit" if self.ratio < NOTABLE else "genius index refit would improve search by codes"
        return f"{self.added:,} items added since the fit have {self.ratio:.2f} times its error: {verdict}"


def index_drift(snapshot: Snapshot) -> Drift | None:
    """Measure the drift of an index; None without embeddings, a fitted model, or items added since."""
    header = snapshot.header
    folder = model_folder(snapshot.folder, header.model)
    report = None if folder is None else FitReport.read(folder)
    if folder is None or report is None or not header.embeddings or report.error <= 0:
        return None
    with snapshot.reading():
        rows = snapshot.dataset.to_table(columns=[CREATED], with_row_id=True)
        row_ids, created = rows["_rowid"].to_numpy(), rows[CREATED].to_numpy()
        # The fit wrote all rows in one version; later ones were added since.
        added = np.sort(row_ids[created > (created.min() if len(created) else 0)] if report.in_index else row_ids)
        if not len(added):
            return None
        chosen = np.random.default_rng(0).permutation(added)[:SAMPLE]
        table = snapshot.dataset._take_rows(np.sort(chosen).tolist(), ["modality", *vector_columns(header)])
    quantizer = load_quantizer(folder)
    decoded = quantizer.decode(to_codes(table, header))
    vectors = stored_vectors(table)
    error = float(np.square(vectors.embedding() - decoded).sum(1).mean())
    return Drift(len(added), error, report.error, error / report.error)
