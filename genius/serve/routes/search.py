"""Searching: one question, or several at once."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from genius.data.items import Query
from genius.errors import BadItem, GeniusError
from genius.serve.bodies import Part, plain_fields, read_body
from genius.serve.description import body_of
from genius.serve.examples import BATCHES, SEARCH_ANSWER, SEARCHES
from genius.serve.images import check_image, image_bytes
from genius.serve.json_answer import as_json, json_answer, json_bytes
from genius.serve.problems import Problem, problem_of, quoted
from genius.serve.routes.access import Ready, errors, image_url, unless_gone
from genius.serve.schemas import Search, SearchAnswer, SearchBatch, SearchBatchAnswer
from genius.serve.served import Busy, How, Reply, Served, TooLate

router = APIRouter(tags=["search"])


@router.post(
    "/v1/search",
    operation_id="search",
    summary="Search with words, an image, both, or an item.",
    description="The best items for a question, best first. Give at least one of `text`, `image` and `like`; `image` "
    "and `like` exclude each other. As JSON the image is Base64; as a form it is a file.",
    responses={
        200: {"model": SearchAnswer, "description": "Hits.", "content": {"application/json": SEARCH_ANSWER}},
        **errors(400, 404, 413, 415, 422, 503),
    },
    openapi_extra=body_of(Search, SEARCHES, files=("image",)),
)
async def search(request: Request, served: Ready) -> Response:
    body = await read_body(request, Search, _from_form)
    query = await _query(request, served, body)
    reply = await unless_gone(request, served.search(query, _how(body)))
    return json_answer(_shown(reply, served, body.explain))


@router.post(
    "/v1/search/batch",
    operation_id="search_batch",
    summary="Ask several questions at once.",
    description="Each question may have its own settings. They are answered in the order in which they were asked; "
    "one wrong question refuses them all.",
    responses={200: {"model": SearchBatchAnswer, "description": "Answers."}, **errors(400, 404, 413, 415, 422, 503)},
    openapi_extra=body_of(SearchBatch, BATCHES),
)
async def search_batch(request: Request, served: Ready) -> Response:
    body = await read_body(request, SearchBatch, _batch_from_form)
    queries = []
    for place, one in enumerate(body.queries):
        try:
            queries.append((await _query(request, served, one), _how(one)))
        except GeniusError as error:
            raise problem_of(error).under(f"queries.{place}") from error
        except Problem as problem:
            raise problem.under(f"queries.{place}") from problem
    replies = await unless_gone(request, served.search_many(queries))
    for place, reply in enumerate(replies):
        if isinstance(reply, Busy | TooLate):
            raise reply
        if isinstance(reply, GeniusError):
            raise problem_of(reply).under(f"queries.{place}") from reply
    return await request.app.state.work.read(lambda: _all_shown(body, replies, served))


def _from_form(parts: list[Part]) -> dict[str, Any]:
    values = ("k", "beam", "budget", "explain")
    return plain_fields(parts, files=("image",), lists=("ids",), values=values)


def _batch_from_form(parts: list[Part]) -> dict[str, Any]:
    """The one field of the form holds the list as JSON."""
    return plain_fields(parts, json=("queries",))


def _how(body: Search) -> How:
    ids = None if body.ids is None else frozenset(body.ids)
    return How(body.k, body.mode, body.beam, body.budget, ids, body.where)


async def _query(request: Request, served: Served, body: Search) -> Query:
    if body.image is not None and body.like is not None:
        raise Problem(400, "`image` and `like` are both given. Search with one of them.", "like")
    if body.like is not None:
        return await _like(request, served, body)
    if body.image is not None:
        image, settings = body.image, request.app.state.settings
        await request.app.state.work.decode(lambda: check_image(image, settings.max_pixels))
    elif not (body.text or "").strip():
        raise Problem(422, "There is nothing to search with. Give at least one of `text`, `image` and `like`.", "text")
    return Query(body.text, body.image, body.instruction, body.target)


async def _like(request: Request, served: Served, body: Search) -> Query:
    """A question made of what an item holds."""
    id = body.like or ""
    item = await request.app.state.work.read(lambda: served.index.get(id))
    if item is None:
        raise Problem(404, f"There is no item {quoted(id)} to search with. Check the id.", "like")
    image = None
    if item.image is not None:
        image = await request.app.state.work.read(lambda: image_bytes(item, "like"))
    words = (body.text or "").strip()
    text = words if words and image is not None else f"{item.text or ''} {words}".strip()
    try:
        return Query(text, image, body.instruction, body.target)
    except BadItem as error:
        raise Problem(422, f"The item {quoted(id)} has neither text nor an image to search with.", "like") from error


def _shown(reply: Reply, served: Served, explain: bool) -> dict[str, Any]:
    hits = [
        {
            "id": hit.id,
            "score": hit.score,
            "modality": hit.modality.label,
            "codes": list(hit.codes),
            "text": hit.item.text,
            "metadata": hit.item.metadata,
            "image_url": image_url(hit.item, served.name),
        }
        for hit in reply.hits
    ]
    return {
        "index": served.name,
        "version": reply.version,
        "items": reply.items,
        "hits": hits,
        "seconds": {stage: round(seconds, 6) for stage, seconds in reply.seconds.items()},
        "batch": reply.batch,
        "candidates": reply.candidates,
        "tree": _tree(reply, served) if explain else None,
    }


def _all_shown(body: SearchBatch, replies: list[Reply | GeniusError], served: Served) -> Response:
    """One after the other, so that other threads get their turn."""
    pairs = zip(body.queries, replies, strict=True)
    answers = [as_json(_shown(reply, served, one.explain)) for one, reply in pairs if isinstance(reply, Reply)]
    return json_bytes(b'{"answers":[' + b",".join(answers) + b"]}")


def _tree(reply: Reply, served: Served) -> dict[str, Any]:
    sizes = list(served.index.header.sizes)
    branches = [
        {"codes": list(branch.codes), "logprob": branch.logprob, "items": branch.items} for branch in reply.branches
    ]
    return {"levels": len(sizes), "sizes": sizes, "branches": branches}
