"""Jobs: follow and cancel bulk additions."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from genius.serve.hosted import HostedIndex
from genius.serve.jobs import WriteJob
from genius.serve.problems import HttpProblem, mask_paths, quote_name
from genius.serve.responses import json_response
from genius.serve.routes.dependencies import IndexName, errors, find_index
from genius.serve.schemas import JobListResponse, JobResponse

router = APIRouter(tags=["jobs"])

JobId = Annotated[str, Path(max_length=100, description="Id of the job, from the response of `POST /v1/items`.")]


@router.get("/v1/jobs", summary="List jobs.", response_model=JobListResponse, responses=errors(404, 422))
async def list_jobs(request: Request, index: IndexName = None) -> Response:
    """The jobs of one index or of all, newest first. The last hundred ended jobs are kept."""
    found = [(job, one) for one in _selected(request, index) for job in one.writer.jobs.list()]
    found.sort(key=lambda pair: pair[0].created, reverse=True)
    return json_response({"jobs": [_job_json(job, one.name) for job, one in found]})


@router.get("/v1/jobs/{job}", summary="Follow a job.", response_model=JobResponse, responses=errors(404, 422))
async def get_job(request: Request, job: JobId, index: IndexName = None) -> Response:
    """The state of the job."""
    found, one = _find(request, job, index)
    return json_response(_job_json(found, one.name))


@router.delete("/v1/jobs/{job}", summary="Cancel a job.", response_model=JobResponse, responses=errors(404, 409, 422))
async def cancel_job(request: Request, job: JobId, index: IndexName = None) -> Response:
    """Items that are already on the disk stay. A job that has ended cannot be cancelled."""
    _, one = _find(request, job, index)
    if not one.writer.jobs.cancel(job):
        raise HttpProblem(409, "The job has already ended.", "job")
    return json_response(_job_json(_find(request, job, index)[0], one.name))


def _selected(request: Request, name: str | None) -> list[HostedIndex]:
    return list(request.app.state.served.values()) if name is None else [find_index(request, name)]


def _find(request: Request, id: str, name: str | None) -> tuple[WriteJob, HostedIndex]:
    for one in _selected(request, name):
        job = one.writer.jobs.get(id)
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
