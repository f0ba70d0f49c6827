"""Jobs: follow and cancel bulk additions."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from genius.serve.jobs import WriteJob
from genius.serve.problems import HttpProblem, mask_paths, quote_name
from genius.serve.responses import json_response
from genius.serve.routes.dependencies import IndexName, errors, find_index
from genius.serve.schemas import JobListResponse, JobResponse
from genius.serve.served import ServedIndex

router = APIRouter(tags=["jobs"])

JobId = Annotated[str, Path(max_length=100, description="Id of the job, from the response of `POST /v1/items`.")]


@router.get(
    "/v1/jobs",
    operation_id="list_jobs",
    summary="List jobs.",
    description="The jobs of one index or of all, newest first. The last hundred ended jobs are kept.",
    responses={200: {"model": JobListResponse, "description": "Jobs."}, **errors(404, 422)},
)
async def list_jobs(request: Request, index: IndexName = None) -> Response:
    """All jobs."""
    found = [(job, one) for one in _selected(request, index) for job in one.jobs.list()]
    found.sort(key=lambda pair: pair[0].created, reverse=True)
    return json_response({"jobs": [_job_json(job, one.name) for job, one in found]})


@router.get(
    "/v1/jobs/{job}",
    operation_id="get_job",
    summary="Follow a job.",
    description="The state of the job.",
    responses={200: {"model": JobResponse, "description": "The job."}, **errors(404, 422)},
)
async def get_job(request: Request, job: JobId, index: IndexName = None) -> Response:
    """A job."""
    found, one = _find(request, job, index)
    return json_response(_job_json(found, one.name))


@router.delete(
    "/v1/jobs/{job}",
    operation_id="cancel_job",
    summary="Cancel a job.",
    description="Items that are already on the disk stay. A job that has ended cannot be cancelled.",
    responses={200: {"model": JobResponse, "description": "The cancelled job."}, **errors(404, 409, 422)},
)
async def cancel_job(request: Request, job: JobId, index: IndexName = None) -> Response:
    """Cancel a job."""
    _, one = _find(request, job, index)
    if not one.jobs.cancel(job):
        raise HttpProblem(409, "The job has already ended.", "job")
    return json_response(_job_json(_find(request, job, index)[0], one.name))


def _selected(request: Request, name: str | None) -> list[ServedIndex]:
    return list(request.app.state.served.values()) if name is None else [find_index(request, name)]


def _find(request: Request, id: str, name: str | None) -> tuple[WriteJob, ServedIndex]:
    for one in _selected(request, name):
        job = one.jobs.get(id)
        if job is not None:
            return job, one
    raise HttpProblem(404, f"There is no job {quote_name(id)}. Only the last hundred ended jobs are kept.", "job")


def _job_json(job: WriteJob, index: str) -> dict[str, Any]:
    return {
        **vars(job),
        "index": index,
        "bad": [{"id": bad.id, "reason": mask_paths(bad.reason)} for bad in job.bad],
        "created": _time(job.created),
        "started": _time(job.started),
        "finished": _time(job.finished),
        "error": None if job.error is None else mask_paths(job.error),
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds")
