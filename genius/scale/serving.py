"""Serving on Ray: replicas of the service behind Ray Serve, as many as the load needs.

    serve run genius.scale.serving:application index=photos.genius

Every replica holds the index in memory and follows its versions, so replicas only read: add items with `genius index
add`, or with one `genius serve` beside them.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from genius.data.locations import absolute
from genius.errors import GeniusError, MissingExtra
from genius.index.index import Index
from genius.serve.app import create_app
from genius.serve.hosted import HostedIndex
from genius.serve.keys import read_keys
from genius.serve.settings import Settings


@dataclass(frozen=True)
class Replicas:
    """How many replicas there are, and what each may use.

    Attributes:
        least: Number of replicas without load.
        most: Maximum number of replicas.
        target: Requests that a replica should work on at a time; Ray adds and removes replicas to hold it.
        limit: Requests that a replica takes at a time. Others wait at the proxy.
        cpus: Cores of a replica.
    """

    least: int = 1
    most: int = 4
    target: float = 8.0
    limit: int = 64
    cpus: float = 1.0


def deployment(
    indexes: Mapping[str, str | os.PathLike[str]], settings: Settings | None = None, replicas: Replicas | None = None
) -> Any:
    """The service as an application of Ray Serve, for `ray.serve.run`.

    Args:
        indexes: Paths of indexes by name, on a file system that all machines share.
        settings: Settings of the service. Host and port are those of Ray Serve; clients cannot write.
        replicas: How many replicas there are.

    Raises:
        MissingExtra: Ray is not installed.
    """
    try:
        from ray import serve
    except ModuleNotFoundError as error:
        raise MissingExtra("Serving on Ray", "ray") from error
    chosen, wanted = settings or Settings(host="0.0.0.0"), replicas or Replicas()
    values = {**vars(chosen), "read_only": True}
    paths = {name: absolute(path) for name, path in indexes.items()}

    def build_app() -> FastAPI:  # on each replica
        return replica_app(paths, Settings(**values))

    service = serve.deployment(
        serve.ingress(build_app)(),
        name="genius",
        autoscaling_config={
            "min_replicas": wanted.least,
            "initial_replicas": wanted.least,
            "max_replicas": wanted.most,
            "target_ongoing_requests": wanted.target,
        },
        max_ongoing_requests=wanted.limit,
        ray_actor_options={"num_cpus": wanted.cpus},
    )
    return service.bind()


def application(arguments: dict[str, str]) -> Any:
    """Build the application from the arguments of `serve run`, or of a Serve configuration file.

    Args:
        arguments: `index`: [NAME=]PATH, with commas between several. Optional: `keys`, a file of keys; `hosts`,
            accepted host names, with commas; `min_replicas`, `max_replicas`, `target_ongoing_requests`,
            `max_ongoing_requests` and `cpus`.

    Raises:
        GeniusError: An argument is missing or unknown.
    """
    given = {name: str(value) for name, value in arguments.items()}
    named = [one.strip() for one in given.pop("index", "").split(",") if one.strip()]
    if not named:
        raise GeniusError("There is no index to serve. Give one: index=photos.genius")
    paths = {name or Path(path).stem: path for name, _, path in (one.rpartition("=") for one in named)}
    keys = given.pop("keys", None)
    found = read_keys(None if keys is None else Path(keys), os.environ)
    hosts = tuple(host.strip() for host in given.pop("hosts", "").split(",") if host.strip())
    settings = Settings(host="0.0.0.0", read_keys=found.read, write_keys=found.write, read_only=True, hosts=hosts)
    try:
        replicas = Replicas(
            int(given.pop("min_replicas", Replicas.least)),
            int(given.pop("max_replicas", Replicas.most)),
            float(given.pop("target_ongoing_requests", Replicas.target)),
            int(given.pop("max_ongoing_requests", Replicas.limit)),
            float(given.pop("cpus", Replicas.cpus)),
        )
    except ValueError as error:
        raise GeniusError(f"An argument is not a number: {error}.") from error
    if given:
        raise GeniusError(f"There is no argument {', '.join(given)}. See the section on Ray in docs/serve.md.")
    return deployment(paths, settings, replicas)


def replica_app(paths: Mapping[str, str], settings: Settings) -> FastAPI:
    """The app of one replica. It has started when all its indexes are loaded, so it never refuses a first request."""
    served = {
        name: HostedIndex(name, Index.open(path, refresh=settings.refresh), settings) for name, path in paths.items()
    }
    app = create_app(served, settings)
    start = app.router.lifespan_context

    @asynccontextmanager
    async def until_ready(app: FastAPI) -> AsyncIterator[None]:
        async with start(app):
            while not all(one.ready for one in app.state.served.values()):
                await asyncio.sleep(0.02)
            if app.state.failed:
                raise GeniusError(f"These indexes cannot be served: {', '.join(app.state.failed)}. See the log.")
            yield

    app.router.lifespan_context = until_ready
    return app
