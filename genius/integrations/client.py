"""Client: an index that another process serves, asked over HTTP; the same questions and answers as `Index`.

Light: imports no model, no torch and no storage. Images are read here and sent as bytes; no path is ever sent. What
it needs beyond the package is httpx: pip install "genius-search[client]".
"""

import base64
import io
import ipaddress
import os
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from time import sleep
from typing import Any, Self, TypeVar, Unpack, overload
from urllib.parse import quote

from genius.data.items import ImageSource, Item, Modality, Query, printable
from genius.errors import BadImage, BadItem, GeniusError, MissingExtra
from genius.search.options import SearchKeywords
from genius.search.results import (
    AddReport,
    Branch,
    CodeChild,
    CodedItem,
    CodePage,
    Hit,
    Hits,
    SearchResult,
)

try:
    import httpx
except ImportError as error:
    raise MissingExtra("The client", "client") from error

__all__ = ["Busy", "Client", "Job", "NotAllowed", "NotFound", "ServedIndex", "ServiceError", "Unreachable"]

JOB_ITEMS = 500
"""Items sent as one job."""
JOB_BYTES = 12_000_000
"""Bytes of images and texts sent as one job or one batch of queries, unless a single one is larger."""
BATCH_QUERIES = 32
"""Queries sent at once."""
RETRIES = 5
"""How often a request is made again that the service was too busy for."""

_JOBS_AHEAD = 2  # of one addition at a time: while one is worked on, the next is sent
_LONGEST_POLL = 1.0
_THUMBNAIL = 256
_NOT_OURS = (ValueError, TypeError, LookupError, AttributeError, RecursionError)  # by JSON that is not as expected
T = TypeVar("T")


class ServiceError(GeniusError):
    """The service answered that it cannot do this; its sentence says why. `status` is that of HTTP."""

    def __init__(self, message: str, status: int | None = None, code: str | None = None, field: str | None = None):
        super().__init__(message)
        self.status = status
        self.code = code
        self.field = field


class NotFound(ServiceError):
    """There is no such item, job or index."""


class NotAllowed(ServiceError):
    """The key is missing, unknown, or may not do this."""


class Busy(ServiceError):
    """The service had too much to do, after several attempts."""


class Unreachable(ServiceError):
    """Nothing answered, or not in time, or not as this service does."""


@dataclass(frozen=True)
class Job:
    """A bulk addition as it stood when it was asked for. `bad` holds the first refused items, `bad_count` counts all.

    state: "waiting", "running", "done", "failed" or "cancelled".
    """

    id: str
    index: str
    state: str
    items: int
    done: int
    added: int
    replaced: int
    unchanged: int
    bad: list[BadItem]
    bad_count: int
    created: datetime
    started: datetime | None
    finished: datetime | None
    error: str | None

    @property
    def over(self) -> bool:
        return self.state not in ("waiting", "running")


@dataclass(frozen=True)
class ServedIndex:
    """What the service says of an index: see `IndexInfo`. writable: whether this service takes writes at all."""

    name: str
    items: int
    modalities: dict[str, int]
    version: int
    model: str | None
    sizes: tuple[int, ...]
    embeddings: bool
    fields: dict[str, str]
    writable: bool
    ready: bool


class _RemoteHits(Hits):
    """Hits that fetch small images when a notebook shows them."""

    def __init__(self, hits: Iterable[Hit], client: "Client") -> None:
        super().__init__(hits)
        self._client = client

    def _repr_html_(self) -> str:
        from genius.search.cards import MAX_CARDS  # loads numpy

        try:
            first: list[Hit] = self._client.with_images(self[:MAX_CARDS])
        except (GeniusError, RuntimeError):  # the service may be gone by now, or this client closed
            first = self[:MAX_CARDS]
        return Hits([*first, *self[MAX_CARDS:]])._repr_html_()


class Client:
    """An index behind `genius serve`.

    >>> with Client("http://127.0.0.1:8000") as client:  # doctest: +SKIP
    ...     client.search(Query(text="a cat asleep on a sofa", target="image"), k=5)

    key: the API key, where the service wants one. index: the name of one of its indexes; without, its first.
    timeout: seconds without a sign of life after which a request is given up, and seconds that it waits in all for a
      service that says it is busy. transport: another way to reach the service, in httpx's terms.
    Images stay with the service: `item.image` is None in what comes back, `image` and `with_images` fetch them.
    May be used from many threads; they share its connections.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        key: str | None = None,
        index: str | None = None,
        timeout: float = 30.0,
        *,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = _check_url(url)
        self.index = index
        self._timeout = timeout
        self._http = httpx.Client(
            base_url=self.url,
            headers=_headers(key),
            params={} if index is None else {"index": index},
            timeout=timeout,
            trust_env=not _is_loopback(self.url),  # a proxy cannot reach what runs on this machine
            transport=transport,
        )

    def __repr__(self) -> str:
        return f"Client({self.url!r}, index={self.index!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # Searching

    @overload
    def search(self, query: Query, k: int = 10, **options: Unpack[SearchKeywords]) -> Hits: ...

    @overload
    def search(self, query: Sequence[Query], k: int = 10, **options: Unpack[SearchKeywords]) -> list[Hits]: ...

    def search(
        self, query: Query | Sequence[Query], k: int = 10, **options: Unpack[SearchKeywords]
    ) -> Hits | list[Hits]:
        """The k best items for a query, best first; for a list of queries, a list of such lists. See `Index.search`."""
        if isinstance(query, Query):
            return self._ask(_question(query), k, options).hits
        return [answer.hits for answer in self._ask_all(query, k, options)]

    @overload
    def answer(self, query: Query, k: int = 10, **options: Unpack[SearchKeywords]) -> SearchResult: ...

    @overload
    def answer(self, query: Sequence[Query], k: int = 10, **options: Unpack[SearchKeywords]) -> list[SearchResult]: ...

    def answer(
        self, query: Query | Sequence[Query], k: int = 10, **options: Unpack[SearchKeywords]
    ) -> SearchResult | list[SearchResult]:
        """Like `search`, and how the hits were found: the beams, how many items were ranked, the time of each stage."""
        if isinstance(query, Query):
            return self._ask(_question(query), k, options, explain=True)
        return self._ask_all(query, k, options, explain=True)

    def search_like(
        self,
        id: str,
        text: str | None = None,
        instruction: str | None = None,
        target: Modality | str | None = None,
        k: int = 10,
        **options: Unpack[SearchKeywords],
    ) -> Hits:
        """Search with an item of the index; with text, its image and these words: "the same in red"."""
        question = {"like": id, "text": text, "instruction": instruction, "target": _label(target)}
        return self._ask(question, k, options).hits

    def _ask(self, question: dict[str, Any], k: int, options: SearchKeywords, explain: bool = False) -> SearchResult:
        body = question | _how(k, options, explain)
        return self._json("POST", "/v1/search", self._answer, json=body)

    def _ask_all(
        self, queries: Sequence[Query], k: int, options: SearchKeywords, explain: bool = False
    ) -> list[SearchResult]:
        how = _how(k, options, explain)
        answers: list[SearchResult] = []
        for questions in _chunks(map(_question, queries), BATCH_QUERIES):
            body = {"queries": [question | how for question in questions]}
            found = self._json("POST", "/v1/search/batch", lambda got: [*map(self._answer, got["answers"])], json=body)
            if len(found) != len(questions):
                raise self._strange(f"{len(found)} answers to {len(questions)} queries")
            answers += found
        return answers

    def _answer(self, got: Mapping[str, Any]) -> SearchResult:
        tree = got.get("tree") or {"branches": []}
        return SearchResult(
            hits=_RemoteHits(map(_hit, got["hits"]), self),
            branches=[Branch(tuple(one["codes"]), one["logprob"], one["items"]) for one in tree["branches"]],
            candidates=got["candidates"],
            seconds=dict(got["seconds"]),
        )

    # Reading

    @overload
    def get(self, id: str) -> Item | None: ...

    @overload
    def get(self, id: list[str]) -> list[Item | None]: ...

    def get(self, id: str | list[str]) -> Item | list[Item | None] | None:
        """The item with this id, without its image, or None; for a list of ids, a list of these."""
        if not isinstance(id, str):
            return [self.get(one) for one in id]
        found = self.get_coded(id)
        return None if found is None else found.item

    def get_coded(self, id: str) -> CodedItem | None:
        """The item with this id and its codes, or None."""
        return self._if_there(lambda: self._json("GET", f"/v1/items/{_in_path(id)}", _coded))

    def filter(self, where: str | None = None, limit: int = 50, offset: int = 0) -> list[Item]:
        """The items that satisfy a condition (see `Index.search`), in the order of the index; without one, any."""
        return self._page(where, limit, offset)[1]

    def count(self, where: str | None = None) -> int:
        """How many items satisfy a condition (see `Index.search`); without one, how many there are."""
        return self._page(where, 1, 0)[0]

    def _page(self, where: str | None, limit: int, offset: int) -> tuple[int, list[Item]]:
        params: dict[str, Any] = {"limit": limit, "offset": offset} | ({} if where is None else {"where": where})
        return self._json("GET", "/v1/items", lambda got: (got["total"], [*map(_item, got["items"])]), params=params)

    def browse_codes(self, pattern: Sequence[int | None] = (), limit: int = 50, offset: int = 0) -> CodePage:
        """The items whose IDs begin with these codes, where None stands for any code, and which codes come next."""
        path = "/v1/codes" + ("/" + "-".join("*" if code is None else str(code) for code in pattern) if pattern else "")
        return self._json("GET", path, _code_page, params={"limit": limit, "offset": offset})

    def image(self, id: str, size: int = _THUMBNAIL) -> bytes | None:
        """The item's image as a small file, its sides at most `size` pixels; None where there is none to show."""
        return self._if_there(lambda: self._send("GET", f"/v1/images/{_in_path(id)}", params={"size": size}).content)

    def with_images(self, hits: Iterable[Hit], size: int = _THUMBNAIL) -> Hits:
        """The same hits, each with its image as `image` gives it, where there is one."""
        with ThreadPoolExecutor(8) as pool:
            return Hits(pool.map(lambda hit: self._with_image(hit, size), list(hits)))

    def _with_image(self, hit: Hit, size: int) -> Hit:
        if hit.modality is Modality.TEXT:
            return hit
        return replace(hit, item=replace(hit.item, image=self.image(hit.id, size)))

    def indexes(self) -> list[ServedIndex]:
        """What the service serves; the first is the one that is asked when no name is given."""
        return self._json("GET", "/v1/indexes", lambda got: [*map(_served_index, got["indexes"])])

    # Writing

    def put(self, item: Item) -> str:
        """Write one item, and wait until it is safe on the disk: "created", "replaced" or "unchanged"."""
        body = _item_body(item)
        del body["id"]
        return self._json("PUT", f"/v1/items/{_in_path(item.id)}", lambda got: str(got["status"]), json=body)

    def delete(self, ids: str | Iterable[str]) -> int:
        """Delete the items with these ids; ids that are not in the index are passed over. Returns how many went."""
        wanted = [ids] if isinstance(ids, str) else list(ids)
        return sum(self._delete(id) for id in wanted)

    def _delete(self, id: str) -> bool:
        return self._if_there(lambda: self._send("DELETE", f"/v1/items/{_in_path(id)}")) is not None

    def upsert(self, items: Iterable[Item | BadItem]) -> AddReport:
        """Write many items, and wait until they are safe on the disk. An item whose id is taken replaces the one there.

        Items are taken some hundred at a time, so a generator of any length will do. Those that cannot be read or
        written are left out and listed. What is there just so is not encoded again: to complete an addition that was
        broken off, repeat it.
        """
        return _Addition(self, replace=True).run(items)

    def add(self, items: Iterable[Item | BadItem]) -> AddReport:
        """Like `upsert`, but an item whose id another item has is refused and listed."""
        return _Addition(self, replace=False).run(items)

    def start_job(self, items: Collection[Item], replace: bool = True) -> str:
        """Send items to be written in the background, all at once; returns the name of the job. See `job`."""
        return self._start([_item_body(item) for item in items], replace)

    def _start(self, bodies: Sequence[dict[str, Any]], replace: bool) -> str:
        body = {"items": bodies, "replace": replace}
        return self._json("POST", "/v1/items", lambda got: str(got["job"]), json=body)

    def jobs(self) -> list[Job]:
        """The additions that wait, run, or have lately ended."""
        return self._json("GET", "/v1/jobs", lambda got: [*map(_job, got["jobs"])])

    def job(self, id: str) -> Job:
        """How far an addition is."""
        return self._json("GET", f"/v1/jobs/{_in_path(id)}", _job)

    def wait(self, id: str) -> Job:
        """The addition, once it is over."""
        pause = 0.02
        while not (job := self.job(id)).over:
            sleep(pause)
            pause = min(pause * 1.5, _LONGEST_POLL)
        return job

    def cancel(self, id: str) -> None:
        """Stop an addition; what it has written stays."""
        self._send("DELETE", f"/v1/jobs/{_in_path(id)}")

    # The wire

    def _json(self, method: str, path: str, read: Callable[[Any], T], **request: Any) -> T:
        """What `read` makes of the answer's JSON."""
        response = self._send(method, path, **request)
        try:
            return read(response.json())
        except (*_NOT_OURS, GeniusError) as error:
            raise self._strange(f"{type(error).__name__}: {error}") from error

    def _if_there(self, ask: Callable[[], T]) -> T | None:
        """None where there is no such item; but an index or an address that is not there is an error."""
        try:
            return ask()
        except NotFound as error:
            if error.field != "id":
                raise
            return None

    def _send(self, method: str, path: str, **request: Any) -> httpx.Response:
        """The answer. A busy service is asked again when it says, or after growing pauses, as the timeout allows."""
        waited = 0.0
        for attempt in range(RETRIES + 1):
            response = self._request(method, path, request)
            if response.is_success:
                return response
            pause = _retry_after(response, attempt)
            if response.status_code not in (429, 503) or attempt == RETRIES or waited + pause > self._timeout:
                raise self._error(response)
            sleep(pause)
            waited += pause
        raise AssertionError

    def _request(self, method: str, path: str, request: dict[str, Any]) -> httpx.Response:
        try:
            built = self._http.build_request(method, path, **request)
        except (TypeError, ValueError) as error:
            raise GeniusError(f"This cannot be written as JSON ({error}). Give plain numbers and strings.") from error
        for last in (False, True):
            try:
                return self._http.send(built)
            except (httpx.RemoteProtocolError, httpx.ReadError) as error:
                if last:  # the first time it may just be a connection that had been idle for too long
                    raise Unreachable(f"{self.url} broke off the connection. Look into the service's log.") from error
            except httpx.TimeoutException as error:
                raise Unreachable(
                    f"{self.url} did not answer within {self._timeout:g} seconds. Try again, or give Client a longer "
                    "timeout."
                ) from error
            except (httpx.TransportError, httpx.InvalidURL) as error:
                raise Unreachable(
                    f"{self.url} cannot be reached ({error}). Check the address, and that genius serve runs there."
                ) from error
        raise AssertionError

    def _error(self, response: httpx.Response) -> ServiceError:
        """The service's own sentence; where something else has answered, one of ours."""
        status = response.status_code
        try:
            problem = response.json()["error"]
            message, code, field = str(problem["message"]), str(problem["code"]), problem.get("field")
        except _NOT_OURS:
            return self._strange(f"status {status}", status)
        kind = {401: NotAllowed, 403: NotAllowed, 404: NotFound, 429: Busy, 503: Busy}.get(status, ServiceError)
        return kind(message, status, code, field)

    def _strange(self, what: str, status: int | None = None) -> Unreachable:
        return Unreachable(
            f"{self.url} does not answer as genius serve does ({what}). Check the address and the service's version.",
            status,
        )


class _Addition:
    """Items on their way to the service, a few jobs ahead of those that are done."""

    def __init__(self, client: Client, replace: bool) -> None:
        self._client = client
        self._replace = replace
        self._running: list[str] = []
        self._done: list[Job] = []
        self._bad: list[BadItem] = []

    def run(self, items: Iterable[Item | BadItem]) -> AddReport:
        for bodies in _chunks(self._bodies(items), JOB_ITEMS):
            self._start(bodies)
        while self._running:
            self._finish()
        return AddReport(
            added=sum(job.added + job.replaced for job in self._done),
            replaced=sum(job.replaced for job in self._done),
            unchanged=sum(job.unchanged for job in self._done),
            bad=self._bad,
        )

    def _bodies(self, items: Iterable[Item | BadItem]) -> Iterator[dict[str, Any]]:
        for item in items:
            if isinstance(item, BadItem):
                self._bad.append(item)
                continue
            try:
                body = _item_body(item)
            except BadImage as error:
                self._bad.append(BadItem(item.id, str(error)))
            else:
                yield body

    def _start(self, bodies: list[dict[str, Any]]) -> None:
        """Send them as one job; where one of them is refused out of hand, find it by halving."""
        if len(self._running) >= _JOBS_AHEAD:
            self._finish()
        try:
            self._running.append(self._client._start(bodies, self._replace))
        except ServiceError as error:
            if not _of_some_items(error):
                raise
            if len(bodies) == 1:
                self._bad.append(BadItem(bodies[0]["id"], str(error)))
                return
            middle = len(bodies) // 2
            self._start(bodies[:middle])
            self._start(bodies[middle:])

    def _finish(self) -> None:
        id = self._running.pop(0)
        try:
            job = self._client.wait(id)
        except NotFound as error:
            raise NotFound(
                f"The service does not know the job {id} any more: it was started anew. Repeat the call; what is "
                "written already is not encoded again.",
                error.status,
                error.code,
            ) from error
        if job.state != "done":
            raise ServiceError(
                f"The job {id} {job.state} after {job.done} of {job.items} items. {job.error or ''}".strip()
            )
        self._done.append(job)
        self._bad += job.bad
        if job.bad_count > len(job.bad):
            more = job.bad_count - len(job.bad)
            self._bad.append(BadItem(f"job {id}", f"{more} more items were refused; the service lists only the first."))


def _of_some_items(error: ServiceError) -> bool:
    """Whether some of the items are to blame: there are too many bytes or items, or one has a wrong value."""
    return error.status == 413 or (error.field or "").split(".")[0] == "items"


# What is sent


def _question(query: Query) -> dict[str, Any]:
    if not isinstance(query, Query):
        raise GeniusError(f"search takes a Query or a list of them, not {query!r}. Write Query(text=...).")
    return {
        "text": query.text,
        "image": None if query.image is None else _encoded(query.image),
        "instruction": query.instruction,
        "target": _label(query.target),
    }


def _how(k: int, options: SearchKeywords, explain: bool) -> dict[str, Any]:
    ids = options.get("ids")
    if isinstance(ids, str):
        raise GeniusError(f"ids is the string {ids!r}. Write a list of ids.")
    return {**options, "ids": None if ids is None else list(ids), "k": k, "explain": explain}


def _item_body(item: Item) -> dict[str, Any]:
    if not isinstance(item, Item):
        raise GeniusError(f"Only an Item can be written, not {item!r}. Write Item(id, text=..., image=...).")
    image = None if item.image is None else _encoded(item.image)
    return {"id": item.id, "text": item.text, "image": image, "metadata": item.metadata}


def _encoded(source: ImageSource) -> str:
    return base64.b64encode(_image_bytes(source)).decode()


def _image_bytes(source: ImageSource) -> bytes:
    """The image as a file's bytes. Whether they are an image, the service decides."""
    if isinstance(source, bytes):
        return source
    if not isinstance(source, str | os.PathLike):
        from genius.data.images import load_image

        file = io.BytesIO()
        load_image(source).save(file, "PNG")
        return file.getvalue()
    path = os.fsdecode(source)
    try:
        if not Path(path).is_file():
            raise BadImage(f"{printable(path)}: there is no such file. Check the path.")
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise BadImage(f"{printable(path)}: the file cannot be read ({error}). Check its permissions.") from error


def _chunks(bodies: Iterable[dict[str, Any]], most: int) -> Iterator[list[dict[str, Any]]]:
    """Lists of at most so many, and of JOB_BYTES unless one alone is larger."""
    chunk: list[dict[str, Any]] = []
    size = 0
    for body in bodies:
        length = sum(len(body.get(part) or "") for part in ("image", "text"))
        if chunk and (len(chunk) == most or size + length > JOB_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(body)
        size += length
    if chunk:
        yield chunk


def _in_path(id: str) -> str:
    """An id as one segment of a URL. Dots too: ".." would be taken for the way up."""
    return quote(id, safe="").replace(".", "%2E")


def _label(target: Modality | str | None) -> str | None:
    wanted = Modality.parse(target)
    return None if wanted is None else wanted.label


def _check_url(url: str) -> str:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError) as error:
        raise GeniusError(f"{url!r} is no address ({error}). Write one like http://127.0.0.1:8000.") from error
    if parsed.userinfo:
        raise GeniusError("The address holds a name or password. Write one like http://127.0.0.1:8000, and give a key.")
    if parsed.scheme not in ("http", "https") or not parsed.host or not 0 < (parsed.port or 80) < 1 << 16:
        raise GeniusError(f"{url!r} is no address of a service. Write one like http://127.0.0.1:8000.")
    return str(url).rstrip("/")


def _is_loopback(url: str) -> bool:
    host = httpx.URL(url).host
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _headers(key: str | None) -> dict[str, str]:
    if key is None:
        return {}
    if not key.isascii() or not key.isprintable() or not key.strip():
        raise GeniusError("The key holds characters that no key has. Copy it again.")
    return {"Authorization": f"Bearer {key.strip()}"}


def _retry_after(response: httpx.Response, attempt: int) -> float:
    """Seconds to wait: as the service says, or growing; a little more, so that not all come back at once."""
    try:
        asked = max(0.0, float(response.headers.get("Retry-After", "")))
    except ValueError:
        asked = 0.25 * 2**attempt
    return asked + random.uniform(0, 0.1)


# What comes back


def _item(got: Mapping[str, Any]) -> Item:
    return Item(got["id"], got.get("text"), None, got.get("metadata") or {})


def _hit(got: Mapping[str, Any]) -> Hit:
    return Hit(got["id"], float(got["score"]), Modality.parse(got["modality"]), tuple(got["codes"]), _item(got))


def _coded(got: Mapping[str, Any]) -> CodedItem:
    return CodedItem(_item(got), tuple(got["codes"]))


def _code_page(got: Mapping[str, Any]) -> CodePage:
    children = [CodeChild(one["code"], one["items"], one["example"]["id"]) for one in got["children"]]
    return CodePage(got["total"], got["ids"], children, [*map(_coded, got["items"])])


def _served_index(got: Mapping[str, Any]) -> ServedIndex:
    known = {name: got[name] for name in ServedIndex.__dataclass_fields__}
    return ServedIndex(**known | {"sizes": tuple(got["sizes"])})


def _job(got: Mapping[str, Any]) -> Job:
    known = {name: got[name] for name in Job.__dataclass_fields__}
    bad = [BadItem(one["id"], one["reason"]) for one in got["bad"]]
    times = {name: _time(got[name]) for name in ("created", "started", "finished")}
    return Job(**known | times | {"bad": bad})


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
