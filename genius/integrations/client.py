"""Client of the HTTP service: the same methods and results as `Index`, for an index served by another process.

Light to import: no torch, no numpy, no storage. Image files are read here and sent as bytes. Needs httpx:
pip install "genius-search[client]".
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import sleep
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

from genius.data.items import Item, Modality, Query, QueryLike, to_queries
from genius.errors import BadItem, GeniusError
from genius.integrations import wire
from genius.integrations.connection import Connection, none_if_missing
from genius.integrations.service_errors import NotAllowed, NotFound, ServiceBusy, ServiceError, Unreachable
from genius.integrations.wire import JobStatus, RemoteItem, ServedIndex
from genius.runtime.wording import counted
from genius.search.options import SearchKeywords, SearchOptions
from genius.search.results import AddReport, CodedItem, CodePage, Hit, HitLists, Hits, SearchResult

if TYPE_CHECKING:
    import httpx

__all__ = ["Client", "JobStatus", "NotAllowed", "NotFound", "ServedIndex", "ServiceBusy", "ServiceError", "Unreachable"]

JOB_ITEMS = 500
"""Maximum number of items in one job of `Client.add` and `Client.upsert`."""
BATCH_QUERIES = 32
"""Maximum number of queries in one request."""

_THUMBNAIL_SIZE = 256
_IMAGE_SIZE = 512  # of images that are fetched when they are read
_PAGE = 200  # items of one request while iterating


class Client:
    """An index behind `genius serve`.

    The service keeps the images and sends copies of at most 1,024 pixels: reading `hit.item.image` fetches one of 512
    pixels as bytes; `image` and `with_images` fetch other sizes. `len(client)` counts the items, `"p1" in client` asks
    for an id, and iterating yields all items, fetched page by page: items that are written meanwhile may be missed or
    come twice. Safe to use from several threads.

    >>> with Client("http://127.0.0.1:8000") as client:  # doctest: +SKIP
    ...     client.search("a cat asleep on a sofa", k=5)
    ...     client.search(Query(text="a cat asleep on a sofa", target="image"), k=5)

    Args:
        url: Address of the service.
        key: API key, if the service requires one.
        index: Name of a served index. Default: the first one.
        timeout: Seconds to wait for a response, and in total for a busy service.
        transport: Replacement for httpx's transport.

    Raises:
        GeniusError: The address or the key is malformed.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        key: str | None = None,
        index: str | None = None,
        timeout: float = 30.0,
        *,
        transport: "httpx.BaseTransport | None" = None,
    ) -> None:
        self._http = Connection(url, key, index, timeout, transport)
        self.url = self._http.url
        self.index = index

    def __repr__(self) -> str:
        return f"Client({self.url!r}, index={self.index!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __len__(self) -> int:
        return self.count()

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and self.get_coded(id) is not None

    def __iter__(self) -> Iterator[Item]:
        offset = 0
        while page := self.filter(limit=_PAGE, offset=offset):
            yield from page
            offset += len(page)

    # Search

    @overload
    def search(self, query: QueryLike, k: int = SearchOptions.k, **options: Unpack[SearchKeywords]) -> Hits: ...  # type: ignore[overload-overlap]

    @overload
    def search(
        self, query: Iterable[QueryLike], k: int = SearchOptions.k, **options: Unpack[SearchKeywords]
    ) -> HitLists: ...

    def search(
        self, query: QueryLike | Iterable[QueryLike], k: int = SearchOptions.k, **options: Unpack[SearchKeywords]
    ) -> Hits | HitLists:
        """Find the k best items for a query, or for each query of a list. See `Index.search`."""
        results, single = self._answers(query, wire.options_body(k, options, explain=False))
        return results[0].hits if single else HitLists(result.hits for result in results)

    @overload
    def answer(self, query: QueryLike, k: int = SearchOptions.k, **options: Unpack[SearchKeywords]) -> SearchResult: ...  # type: ignore[overload-overlap]

    @overload
    def answer(
        self, query: Iterable[QueryLike], k: int = SearchOptions.k, **options: Unpack[SearchKeywords]
    ) -> list[SearchResult]: ...

    def answer(
        self, query: QueryLike | Iterable[QueryLike], k: int = SearchOptions.k, **options: Unpack[SearchKeywords]
    ) -> SearchResult | list[SearchResult]:
        """Like `search`, with beams, number of ranked candidates and time of each stage. See `Index.answer`."""
        results, single = self._answers(query, wire.options_body(k, options, explain=True))
        return results[0] if single else results

    def _answers(
        self, query: QueryLike | Iterable[QueryLike], options: dict[str, Any]
    ) -> tuple[list[SearchResult], bool]:
        """One result per query, and whether a single query was given."""
        queries, single = to_queries(query)
        if single:
            return [self._search(wire.query_body(queries[0]) | options)], True
        return self._search_batch(queries, options), False

    def search_like(
        self,
        id: str,
        text: str | None = None,
        instruction: str | None = None,
        target: Modality | str | None = None,
        k: int = SearchOptions.k,
        **options: Unpack[SearchKeywords],
    ) -> Hits:
        """Search with an item of the index. `text` modifies it, as in "the same in red".

        Raises:
            NotFound: No item has this id.
        """
        body = {"like": id, "text": text, "instruction": instruction, "target": wire.label(target)}
        return self._search(body | wire.options_body(k, options, explain=False)).hits

    def _search(self, body: dict[str, Any]) -> SearchResult:
        return self._http.json("POST", "/v1/search", lambda got: wire.read_result(got, self._fetch), json=body)

    def _search_batch(self, queries: Sequence[Query], options: dict[str, Any]) -> list[SearchResult]:
        results: list[SearchResult] = []
        for bodies in wire.chunks(map(wire.query_body, queries), BATCH_QUERIES):
            body = {"queries": [query | options for query in bodies]}
            found = self._http.json(
                "POST",
                "/v1/search/batch",
                lambda got: [wire.read_result(one, self._fetch) for one in got["answers"]],
                json=body,
            )
            if len(found) != len(bodies):
                raise self._http.unexpected(
                    f"{counted(len(found), 'answer')} to {counted(len(bodies), 'query', 'queries')}"
                )
            results += found
        return results

    def _fetch(self, id: str) -> bytes | None:
        """The image of an item, for `RemoteItem`."""
        return self.image(id, _IMAGE_SIZE)

    # Items

    @overload
    def get(self, id: str) -> Item | None: ...

    @overload
    def get(self, id: list[str]) -> list[Item | None]: ...

    def get(self, id: str | list[str]) -> Item | list[Item | None] | None:
        """Get the item with this id, or None. A list of ids gives a list."""
        if not isinstance(id, str):
            return [self.get(one) for one in id]
        found = self.get_coded(id)
        return None if found is None else found.item

    def get_coded(self, id: str) -> CodedItem | None:
        """Get an item with its codes, or None."""
        path = f"/v1/items/{wire.segment(id)}"
        return none_if_missing(lambda: self._http.json("GET", path, lambda got: wire.read_coded_item(got, self._fetch)))

    def filter(self, where: str | None = None, limit: int = 50, offset: int = 0) -> list[Item]:
        """List the items that match a filter, in the order of the index. See `Index.filter`."""
        return self._page(where, limit, offset)[1]

    def count(self, where: str | None = None) -> int:
        """Count the items that match a filter; without a filter, all items."""
        return self._page(where, 1, 0)[0]

    def _page(self, where: str | None, limit: int, offset: int) -> tuple[int, list[Item]]:
        params: dict[str, Any] = {"limit": limit, "offset": offset} | ({} if where is None else {"where": where})
        return self._http.json("GET", "/v1/items", lambda got: wire.read_page(got, self._fetch), params=params)

    def browse_codes(self, pattern: Sequence[int | None] = (), limit: int = 50, offset: int = 0) -> CodePage:
        """List the items whose codes start with `pattern` (None matches any code) and the codes that come next."""
        codes = "-".join("*" if code is None else str(code) for code in pattern)
        path = f"/v1/codes/{codes}" if codes else "/v1/codes"
        params = {"limit": limit, "offset": offset}
        return self._http.json("GET", path, lambda got: wire.read_code_page(got, self._fetch), params=params)

    def image(self, id: str, size: int = _THUMBNAIL_SIZE) -> bytes | None:
        """Get a thumbnail of an item's image as an image file, or None. `size` limits its sides, in pixels."""
        path = f"/v1/images/{wire.segment(id)}"
        return none_if_missing(lambda: self._http.send("GET", path, params={"size": size}).content)

    def with_images(self, hits: Iterable[Hit], size: int = _THUMBNAIL_SIZE) -> Hits:
        """Return the same hits with their thumbnails, see `image`."""

        def with_image(hit: Hit) -> Hit:
            if not isinstance(hit.item, RemoteItem):
                return hit
            return replace(hit, item=hit.item.plain(self.image(hit.id, size)))

        with ThreadPoolExecutor(8) as pool:
            return Hits(pool.map(with_image, list(hits)))

    def indexes(self) -> list[ServedIndex]:
        """Describe all served indexes. The first is the default."""
        return self._http.json("GET", "/v1/indexes", lambda got: [*map(wire.read_index, got["indexes"])])

    # Writes

    def put(self, item: Item) -> str:
        """Write one item and wait until it is stored. Returns "created", "replaced" or "unchanged"."""
        body = wire.item_body(item)
        path = f"/v1/items/{wire.segment(body.pop('id'))}"
        return self._http.json("PUT", path, lambda got: str(got["status"]), json=body)

    def delete(self, ids: str | Iterable[str] | None = None, *, where: str | None = None) -> int:
        """Delete items by id, or all that match a filter. Returns the number of deleted items. See `Index.delete`."""
        if (ids is None) == (where is None):
            raise GeniusError("Give either ids or where, to say which items to delete.")
        if ids is None:
            return self._http.json("DELETE", "/v1/items", lambda got: int(got["deleted"]), params={"where": where})

        def delete(id: str) -> bool:
            return none_if_missing(lambda: self._http.send("DELETE", f"/v1/items/{wire.segment(id)}")) is not None

        return sum(map(delete, [ids] if isinstance(ids, str) else ids))

    def upsert(self, items: Iterable[Item | BadItem]) -> AddReport:
        """Write items and wait until they are stored. Items whose id exists are replaced.

        Items are sent in jobs of at most `JOB_ITEMS`, so `items` may be a long generator. Unreadable and refused
        items are reported in `AddReport.bad`. Unchanged items are skipped: after a failure, repeat the call.

        Raises:
            ServiceError: A job was refused as a whole or failed.
        """
        return self._write(items, replace=True)

    def add(self, items: Iterable[Item | BadItem]) -> AddReport:
        """Like `upsert`, but items whose id exists are refused and reported."""
        return self._write(items, replace=False)

    def start_job(self, items: Collection[Item], replace: bool = True) -> str:
        """Send items in one request, to be written in the background. Returns the job's id, see `wait`."""
        return self._start_job([wire.item_body(item) for item in items], replace)

    def jobs(self) -> list[JobStatus]:
        """List waiting, running and recently ended jobs."""
        return self._http.json("GET", "/v1/jobs", lambda got: [*map(wire.read_job, got["jobs"])])

    def job(self, id: str) -> JobStatus:
        """Get the status of a job."""
        return self._http.json("GET", f"/v1/jobs/{wire.segment(id)}", wire.read_job)

    def wait(self, id: str) -> JobStatus:
        """Wait until a job has ended."""
        pause = 0.02
        while not (job := self.job(id)).over:
            sleep(pause)
            pause = min(pause * 1.5, 1.0)
        return job

    def cancel(self, id: str) -> None:
        """Stop a job. Items that are already written stay."""
        self._http.send("DELETE", f"/v1/jobs/{wire.segment(id)}")

    def _start_job(self, bodies: Sequence[dict[str, Any]], replace: bool) -> str:
        return self._http.json(
            "POST", "/v1/items", lambda got: str(got["job"]), json={"items": bodies, "replace": replace}
        )

    def _write(self, items: Iterable[Item | BadItem], replace: bool) -> AddReport:
        bad: list[BadItem] = []
        finished: list[JobStatus] = []
        for bodies in wire.chunks(wire.item_bodies(items, bad), JOB_ITEMS):
            while bodies:  # until the service refuses no more of them
                try:
                    finished.append(self._finish(self._start_job(bodies, replace)))
                    break
                except ServiceError as error:
                    position = _refused_position(error, len(bodies))
                    if position is None:
                        raise
                    bad.append(BadItem(bodies.pop(position)["id"], str(error)))
        for job in finished:
            bad += job.bad
            if job.bad_count > len(job.bad):
                bad.append(BadItem(f"job {job.id}", f"{counted(job.bad_count - len(job.bad), 'more item')} refused."))
        return AddReport(
            added=sum(job.added + job.replaced for job in finished),
            replaced=sum(job.replaced for job in finished),
            unchanged=sum(job.unchanged for job in finished),
            bad=bad,
        )

    def _finish(self, id: str) -> JobStatus:
        try:
            job = self.wait(id)
        except NotFound as error:
            message = f"The service was restarted and lost job {id}. Repeat the call; stored items are skipped."
            raise NotFound(message, error.status, error.code) from error
        if job.state != "done":
            message = f"Job {id} {job.state} after {job.done:,} of {counted(job.items, 'item')}. {job.error or ''}"
            raise ServiceError(message.strip())
        return job


def _refused_position(error: ServiceError, items: int) -> int | None:
    """Position of the item that the service refuses: in a field such as "items.13.text", or of the only item."""
    name, _, rest = (error.field or "").partition(".")
    position = rest.partition(".")[0]
    if name == "items" and position.isdecimal() and int(position) < items:
        return int(position)
    return 0 if error.status == 413 and items == 1 else None
