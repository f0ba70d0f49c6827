"""The indexes that `index.py` compares ours with: Faiss HNSW, and Lance's own vector indexes, which LanceDB uses."""

import shutil
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import throughput

from genius.evaluation.baselines import HNSW_BUILD, HNSW_LINKS, HNSW_SEARCH

K = throughput.K


class Baseline(Protocol):
    """Another index. Methods that change it take ids as numbers."""

    @property
    def bytes(self) -> float:
        """Bytes on disk, or in memory if there are no files."""
        ...

    def add(self, start: int, embeddings: np.ndarray) -> None: ...

    def finish(self) -> None:
        """Called after the first items are added."""
        ...

    def search(self, query: np.ndarray) -> list[int]: ...

    def delete(self, start: int, count: int) -> bool:
        """Delete items. Returns False if the index cannot delete."""
        ...


class HnswBaseline:
    """Faiss HNSW in memory. All threads build the graph, so it differs from run to run."""

    def __init__(self, threads: int) -> None:
        import faiss

        self.faiss, self.threads = faiss, threads
        self.index: Any = None

    def add(self, start: int, embeddings: np.ndarray) -> None:
        if self.index is None:
            dim = embeddings.shape[1]
            self.index = self.faiss.IndexHNSWFlat(dim, HNSW_LINKS, self.faiss.METRIC_INNER_PRODUCT)
            self.index.hnsw.efConstruction, self.index.hnsw.efSearch = HNSW_BUILD, HNSW_SEARCH
        self.faiss.omp_set_num_threads(self.threads)
        self.index.add(embeddings)
        self.faiss.omp_set_num_threads(1)

    def finish(self) -> None:
        """Nothing to do."""

    @property
    def bytes(self) -> float:
        graph = self.index.hnsw
        links = 4 * graph.neighbors.size() + 8 * graph.offsets.size() + 4 * graph.levels.size()
        return float(4 * self.index.d * self.index.ntotal + links)

    def search(self, query: np.ndarray) -> list[int]:
        rows: list[int] = self.index.search(query[None], K)[1][0].tolist()
        return rows

    def delete(self, start: int, count: int) -> bool:
        return False


class LanceBaseline:
    """A Lance dataset with one of its vector indexes. Items added later are searched without the index."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        shutil.rmtree(folder, ignore_errors=True)
        self.dataset: Any = None

    def add(self, start: int, embeddings: np.ndarray) -> None:
        import lance
        import pyarrow as pa

        flat = pa.array(embeddings.reshape(-1), pa.float32())
        vectors = pa.FixedSizeListArray.from_arrays(flat, embeddings.shape[1])
        numbers = pa.array(np.arange(start, start + len(embeddings)))
        table = pa.table({"number": numbers, "vector": vectors})
        mode = "create" if self.dataset is None else "append"
        self.dataset = lance.write_dataset(table, self.folder, mode=mode)

    def finish(self) -> None:
        items, dim = self.dataset.count_rows(), self.dataset.schema.field("vector").type.list_size
        if self.name == "lance-pq":
            parts = {"num_partitions": max(1, items // 4096), "num_sub_vectors": dim // 8}
            self.dataset.create_index("vector", "IVF_PQ", metric="dot", **parts)
            self.options = {"nprobes": 20, "refine_factor": 10}
        else:
            parts = {"num_partitions": max(1, items // 1_000_000)}
            self.dataset.create_index("vector", "IVF_HNSW_SQ", metric="dot", **parts)
            self.options = {"nprobes": 20, "ef": HNSW_SEARCH}

    @property
    def bytes(self) -> float:
        return size_on_disk(self.folder)

    def search(self, query: np.ndarray) -> list[int]:
        asked = {"column": "vector", "q": query, "k": K, "metric": "dot", **self.options}
        rows: list[int] = self.dataset.to_table(columns=["number", "_distance"], nearest=asked)["number"].to_pylist()
        return rows

    def delete(self, start: int, count: int) -> bool:
        self.dataset.delete(f"number >= {start} AND number < {start + count}")
        return True


def size_on_disk(folder: Path) -> float:
    return float(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()))
