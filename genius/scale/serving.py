"""Serving on Ray: replicas of the service behind Ray Serve. Their number follows the load.

    serve run genius.scale.serving:application index=photos.genius

Every replica holds the indexes in memory and follows their versions. Replicas only read: add items with `genius index
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
    """Number and size of the replicas.

    Attributes:
        min_replicas: Minimum number of replicas.
        max_replicas: Maximum number of replicas.
        target_ongoing_requests: Requests that a replica should work on at a time. Ray adds and removes replicas to
            keep it.
        max_ongoing_requests: Maximum number of requests that a replica works on at a time. Others wait at the proxy.
        cpus: Cores of a replica.
    """

    min_replicas: int = 1
    max_replicas: int = 4
    target_ongoing_requests: float = 8.0
    max_ongoing_requests: int = 64
    cpus: float = 1.0


def deployment(
    indexes: Mapping[str, str | os.PathLike[str]], settings: Settings | None = None, replicas: Replicas | None = None
) -> Any:
    """Make an application of Ray Serve.

    Args:
        indexes: Paths of indexes by name, on a file system that all machines share.
        settings: Settings of the service. Host and port are ignored: Ray Serve has its own. Clients cannot write.
        replicas: Number and size of the replicas.

    Returns:
        The application, for `ray.serve.run`.

    Raises:
        MissingExtra: Ray is not installed.
    """
    try:
        from ray import serve
    except ModuleNotFoundError as error:
        raise MissingExtra("Serving on Ray", "ray") from error
    replicas = replicas or Replicas()
    values = {**vars(settings or Settings(host="0.0.0.0")), "read_only": True}
    paths = {name: absolute(path) for name, path in indexes.items()}

    def build_app() -> FastAPI:  # on each replica
        return replica_app(paths, Settings(**values))

    service = serve.deployment(
        serve.ingress(build_app)(),
        name="genius",
        autoscaling_config={
            "min_replicas": replicas.min_replicas,
            "initial_replicas": replicas.min_replicas,
            "max_replicas": replicas.max_replicas,
            "target_ongoing_requests": replicas.target_ongoing_requests,
        },
        max_ongoing_requests=replicas.max_ongoing_requests,
        ray_actor_options={"num_cpus": replicas.cpus},
    )
    return service.bind()


def application(arguments: dict[str, str]) -> Any:
    """Build the application from the arguments of `serve run`, or of a Serve configuration file.

    Args:
        arguments: `index`: comma-separated list of [NAME=]PATH. Optional: `keys`, a file of keys; `hosts`,
            comma-separated list of accepted host names; and the attributes of `Replicas`.

    Returns:
        The application, see `deployment`.

    Raises:
        GeniusError: An argument is missing, unknown, or not a number.
    """
    arguments = {name: str(value) for name, value in arguments.items()}  # a file may hold numbers
    sizes: dict[str, float] = vars(Replicas())
    known = ["index", "keys", "hosts", *sizes]
    unknown = sorted(arguments.keys() - set(known))
    if unknown:
        raise GeniusError(f"There is no argument {', '.join(unknown)}. Known are: {', '.join(known)}.")
    indexes = _split(arguments.get("index", ""))
    if not indexes:
        raise GeniusError("There is no index to serve. Give one: index=photos.genius")
    paths = {name or Path(path).stem: path for name, _, path in (one.rpartition("=") for one in indexes)}
    keys = read_keys(Path(arguments["keys"]) if "keys" in arguments else None, os.environ)
    settings = Settings(
        host="0.0.0.0",
        read_keys=keys.read,
        write_keys=keys.write,
        read_only=True,
        hosts=tuple(_split(arguments.get("hosts", ""))),
    )
    given: dict[str, Any] = {
        name: _number(name, arguments[name], default) for name, default in sizes.items() if name in arguments
    }
    return deployment(paths, settings, Replicas(**given))


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _number(name: str, value: str, default: float) -> float:
    """Parse an argument as the type of its default."""
    try:
        return type(default)(value)
    except ValueError as error:
        raise GeniusError(f"The argument {name} is {value!r}, which is not a number such as {default}.") from error


def replica_app(paths: Mapping[str, str], settings: Settings) -> FastAPI:
    """The app of one replica. Its start ends when all indexes are loaded, so that it never refuses a first request."""
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
