"""Search: one query, or several at once."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from genius.data.items import Query
from genius.errors import BadItem, GeniusError
from genius.search.options import SearchOptions
from genius.serve.batching import ServedResult
from genius.serve.bodies import read_body
from genius.serve.examples import BATCH_REQUESTS, SEARCH_REQUESTS, SEARCH_RESPONSE
from genius.serve.hosted import HostedIndex
from genius.serve.images import check_image, image_bytes, image_pixels
from genius.serve.limits import QueryExpired, ServiceUnavailable
from genius.serve.openapi import request_body
from genius.serve.problems import HttpProblem, problem_from, quote_name
from genius.serve.responses import encode_json, json_response
from genius.serve.routes.dependencies import ReadyIndex, cancel_on_disconnect, errors, item_json, parse_codes
from genius.serve.schemas import SearchBatchRequest, SearchBatchResponse, SearchRequest, SearchResponse

router = APIRouter(tags=["search"])


@router.post(
    "/v1/search",
    summary="Search with text, an image, both, or an item.",
    responses={
        200: {"model": SearchResponse, "description": "Hits.", "content": {"application/json": SEARCH_RESPONSE}},
        **errors(400, 404, 413, 415, 422, 503),
    },
    openapi_extra=request_body(SearchRequest, SEARCH_REQUESTS),
)
async def search(request: Request, served: ReadyIndex) -> Response:
    """The best items for a query, best first.

    Give at least one of `text`, `image` and `like`, but not both `image` and `like`. In JSON, the image is Base64; in
    a form, it is a file.
    """
    body = await read_body(request, SearchRequest)
    query, pixels = await _query(request, served, body)
    result = await cancel_on_disconnect(request, served.batcher.search(query, _options(body, served), pixels))
    return json_response(_result_json(result, served, body.explain))


@router.post(
    "/v1/search/batch",
    summary="Search with several queries at once.",
    response_model=SearchBatchResponse,
    responses=errors(400, 404, 413, 415, 422, 503),
    openapi_extra=request_body(SearchBatchRequest, BATCH_REQUESTS),
)
async def search_batch(request: Request, served: ReadyIndex) -> Response:
    """Each query may have its own options.

    Results come in the order of the queries. One invalid query refuses the whole batch.
    """
    body = await read_body(request, SearchBatchRequest)
    queries = []
    for place, one in enumerate(body.queries):
        try:
            query, pixels = await _query(request, served, one)
            queries.append((query, _options(one, served), pixels))
        except GeniusError as error:
            raise problem_from(error).within(f"queries.{place}") from error
        except HttpProblem as problem:
            raise problem.within(f"queries.{place}") from problem
    results = await cancel_on_disconnect(request, served.batcher.search_many(queries))
    for place, result in enumerate(results):
        if isinstance(result, ServiceUnavailable | QueryExpired):
            raise result
        if isinstance(result, GeniusError):
            raise problem_from(result).within(f"queries.{place}") from result
    encoded = await request.app.state.pools.read(lambda: _encode_batch(body, results, served))
    return json_response(encoded)


def _options(body: SearchRequest, served: HostedIndex) -> SearchOptions:
    if body.branch:
        parse_codes(body.branch, served.index.header.sizes, "branch")
    ids = None if body.ids is None else frozenset(body.ids)
    return SearchOptions(
        k=body.k,
        mode=body.mode,
        beam=body.beam,
        budget=body.budget,
        where=body.where,
        ids=ids,
        branch=body.branch or None,
    )


async def _query(request: Request, served: HostedIndex, body: SearchRequest) -> tuple[Query, int]:
    """The query of a request, and the number of pixels of its image."""
    if body.image is not None and body.like is not None:
        raise HttpProblem(400, "`image` and `like` are both given. Search with one of them.", "like")
    if body.like is not None:
        return await _query_like(request, served, body, body.like)
    pixels = 0
    if body.image is not None:
        image = body.image
        pixels = (await request.app.state.pools.read(lambda: check_image(image))).pixels
    elif not (body.text or "").strip():
        raise HttpProblem(422, "The query is empty. Give at least one of `text`, `image` and `like`.", "text")
    return Query(body.text, body.image, body.instruction, body.target), pixels


async def _query_like(request: Request, served: HostedIndex, body: SearchRequest, id: str) -> tuple[Query, int]:
    """A query with the content of an item, and the number of pixels of its image."""
    pools = request.app.state.pools
    item = await pools.read(lambda: served.index.get(id))
    if item is None:
        raise HttpProblem(404, f"There is no item {quote_name(id)} to search with.", "like")
    image, pixels = None, 0
    if item.image is not None:
        image = await pools.read(lambda: image_bytes(item, "like"))
        pixels = await pools.read(lambda: image_pixels(image))
    words = (body.text or "").strip()
    text = words if words and image is not None else f"{item.text or ''} {words}".strip()
    try:
        return Query(text, image, body.instruction, body.target), pixels
    except BadItem as error:
        raise HttpProblem(422, f"The item {quote_name(id)} has neither text nor an image.", "like") from error


def _result_json(result: ServedResult, served: HostedIndex, explain: bool) -> dict[str, Any]:
    hits = [
        {**item_json(hit.item, hit.modality, served.name), "codes": list(hit.codes), "score": hit.score}
        for hit in result.hits
    ]
    return {
        "index": served.name,
        "version": result.version,
        "items": result.items,
        "hits": hits,
        "seconds": {stage: round(seconds, 6) for stage, seconds in result.seconds.items()},
        "batch": result.batch,
        "candidates": result.candidates,
        "tree": _tree_json(result, served) if explain else None,
        "names": _names_json(result, served) if explain else None,
    }


def _encode_batch(body: SearchBatchRequest, results: list[ServedResult | GeniusError], served: HostedIndex) -> bytes:
    """Encode the results one by one, so that other threads get their turn."""
    pairs = zip(body.queries, results, strict=True)
    shown = (_result_json(result, served, one.explain) for one, result in pairs if isinstance(result, ServedResult))
    return b'{"answers":[' + b",".join(map(encode_json, shown)) + b"]}"


def _names_json(result: ServedResult, served: HostedIndex) -> dict[str, Any]:
    served.names.refresh()
    return served.names.of([*(hit.codes for hit in result.hits), *(branch.codes for branch in result.branches)])


def _tree_json(result: ServedResult, served: HostedIndex) -> dict[str, Any]:
    sizes = list(served.index.header.sizes)
    branches = [
        {"codes": list(branch.codes), "logprob": branch.logprob, "items": branch.items} for branch in result.branches
    ]
    return {"levels": len(sizes), "sizes": sizes, "branches": branches}
