"""Jobs: bulk additions that can be followed and cancelled."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from genius.serve.jobs import Job
from genius.serve.json_answer import json_answer
from genius.serve.problems import Problem, masked, quoted
from genius.serve.routes.access import IndexName, errors, named
from genius.serve.schemas import JobAnswer, JobsAnswer
from genius.serve.served import Served

router = APIRouter(tags=["jobs"])

JobId = Annotated[str, Path(max_length=100, description="The job's id, as `POST /v1/items` gave it.")]


@router.get(
    "/v1/jobs",
    operation_id="list_jobs",
    summary="List jobs.",
    description="The jobs of an index, or of all, newest first. The last hundred that have ended are kept.",
    responses={200: {"model": JobsAnswer, "description": "Jobs."}, **errors(404, 422)},
)
async def list_jobs(request: Request, index: IndexName = None) -> Response:
    found = [(job, one) for one in _meant(request, index) for job in one.jobs.list()]
    found.sort(key=lambda pair: pair[0].created, reverse=True)
    return json_answer({"jobs": [_shown(job, one.name) for job, one in found]})


@router.get(
    "/v1/jobs/{job}",
    operation_id="get_job",
    summary="Follow a job.",
    description="How far the job is.",
    responses={200: {"model": JobAnswer, "description": "The job."}, **errors(404, 422)},
)
async def get_job(request: Request, job: JobId, index: IndexName = None) -> Response:
    found, one = _find(request, job, index)
    return json_answer(_shown(found, one.name))


@router.delete(
    "/v1/jobs/{job}",
    operation_id="cancel_job",
    summary="Cancel a job.",
    description="Items that are on the disk already stay. A job that has ended cannot be cancelled.",
    responses={
        200: {"model": JobAnswer, "description": "The job, cancelled or about to be."},
        **errors(404, 409, 422),
    },
)
async def cancel_job(request: Request, job: JobId, index: IndexName = None) -> Response:
    _, one = _find(request, job, index)
    if not one.jobs.cancel(job):
        raise Problem(409, "The job has ended already. There is nothing to cancel.", "job")
    return json_answer(_shown(_find(request, job, index)[0], one.name))


def _meant(request: Request, name: str | None) -> list[Served]:
    return list(request.app.state.served.values()) if name is None else [named(request, name)]


def _find(request: Request, id: str, name: str | None) -> tuple[Job, Served]:
    for one in _meant(request, name):
        job = one.jobs.get(id)
        if job is not None:
            return job, one
    raise Problem(404, f"There is no job {quoted(id)}. It may have been forgotten: the last hundred are kept.", "job")


def _shown(job: Job, index: str) -> dict[str, Any]:
    return {
        "id": job.id,
        "index": index,
        "state": job.state,
        "items": job.items,
        "done": job.done,
        "added": job.added,
        "replaced": job.replaced,
        "unchanged": job.unchanged,
        "bad": [{"id": bad.id, "reason": masked(bad.reason)} for bad in job.bad],
        "bad_count": job.bad_count,
        "created": _time(job.created),
        "started": _time(job.started),
        "finished": _time(job.finished),
        "error": None if job.error is None else masked(job.error),
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds")
