"""The command `genius serve`."""

import os
import webbrowser
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated

import typer

from genius.cli.console import NamedIndexes, complain, examples, named_indexes, say
from genius.errors import GeniusError, MissingExtra
from genius.runtime.threads import set_thread_count
from genius.runtime.wording import counted

if TYPE_CHECKING:
    from genius.serve.settings import Settings

EPILOG = examples(
    "genius serve photos.genius --open",
    "genius serve photos.genius news=articles.genius --port 9000",
    "genius serve photos.genius --host 0.0.0.0 --keys keys.txt --rate-limit 50",
    "genius serve s3://bucket/photos.genius --workers 4 --read-only",
    notes="Each line of keys.txt is [bold]read KEY[/bold] or [bold]write KEY[/bold]; "
    "[bold]genius serve --new-key[/bold] prints a new key. The variables GENIUS_READ_KEY and GENIUS_WRITE_KEY can hold "
    "keys, too.\n\nWithout keys everyone who can connect may read, and programs on this machine (127.0.0.1) may write."
    "\n\nRequests that name no index use the first one.",
)


def _show_new_key(given: bool) -> None:
    if given:
        from genius.serve.keys import new_key

        typer.echo(new_key())
        raise typer.Exit


def serve(
    indexes: NamedIndexes,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all network interfaces.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.", min=0, max=65535)] = 8000,
    keys: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of keys: read KEY or write KEY on each line."),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse all writes.")] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another host name of this machine. May be repeated."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="A site whose pages may send requests, such as https://example.org. May be repeated.",
        ),
    ] = None,
    rate_limit: Annotated[
        float | None, typer.Option(metavar="N", help="Requests per second for each client.", min=0.001)
    ] = None,
    rate_burst: Annotated[int, typer.Option(metavar="N", help="Requests that a client may send at once.", min=1)] = 100,
    max_batch: Annotated[
        int, typer.Option(metavar="N", help="Maximum number of queries encoded together.", min=1)
    ] = 32,
    workers: Annotated[
        int, typer.Option(metavar="N", help="Number of processes that serve; codes and embeddings are shared.", min=1)
    ] = 1,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not log requests.")] = False,
    new_key: Annotated[
        bool, typer.Option("--new-key", callback=_show_new_key, is_eager=True, help="Print a random key and exit.")
    ] = False,
) -> None:
    """Serve indexes: a search page for the browser and an HTTP API for programs."""
    paths = named_indexes(indexes)
    try:
        from genius.serve.app import create_app
        from genius.serve.hosted import HostedIndex
        from genius.serve.keys import others_can_read, read_keys
        from genius.serve.server import listen, run
        from genius.serve.settings import Settings
        from genius.serve.threads import threads_of_stage
    except ModuleNotFoundError as error:
        raise MissingExtra("genius serve", "serve") from error
    from genius.index.index import Index

    found = read_keys(keys, os.environ)
    if keys is not None and others_can_read(keys):
        complain(f"Other users of this machine can read {keys}. Protect it with: chmod 600 {keys}")
    settings = Settings(
        host=host,
        port=port,
        read_keys=found.read,
        write_keys=found.write,
        read_only=read_only,
        hosts=tuple(allow_host or ()),
        origins=tuple(map(_origin, allow_origin or ())),
        rate_limit=rate_limit,
        rate_burst=rate_burst,
        max_batch=max_batch,
    )
    with listen(settings) as listener:
        settings = replace(settings, port=listener.getsockname()[1])
        if workers > 1:
            from genius.serve.workers import run_workers

            def announce_workers(items: dict[str, int]) -> None:
                _announce(items, settings, open_browser)

            if not run_workers(paths, settings, listener, workers, announce_workers, not quiet):
                raise typer.Exit(1)  # the reason is in the log
            return
        set_thread_count(threads_of_stage())
        served, failed = {}, []
        for name, path in paths.items():
            try:
                served[name] = HostedIndex(name, Index.open(path, refresh=settings.refresh), settings)
            except GeniusError as error:
                if len(paths) == 1:
                    raise
                complain(f"The index {name} cannot be served. {error}")
                failed.append(name)
        app = create_app(served, settings, failed, default=next(iter(paths)))
        loaded = app.state.served

        def announce() -> None:
            _announce({name: len(one.index) for name, one in loaded.items()}, settings, open_browser)

        def ready() -> bool:
            return bool(loaded) and all(one.ready for one in loaded.values())

        if served:
            run(app, settings, listener, ready, announce, access_log=not quiet, failed=lambda: not loaded)
    if not loaded:  # the reason is in the log
        raise typer.Exit(1)


def _origin(given: str) -> str:
    """An origin in the form that browsers send."""
    scheme, separator, host = given.lower().removesuffix("/").partition("://")
    if scheme not in ("http", "https") or not host or set(host) & set("/?#@* "):
        raise GeniusError(f"{given!r} is not an origin. Give one such as https://example.org or http://localhost:3000.")
    return f"{scheme}{separator}{host}"


def address_of(settings: "Settings") -> str:
    """The URL of the page in a browser on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(settings.host, settings.host)
    return f"http://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{settings.port}"


def _announce(items: dict[str, int], settings: "Settings", open_browser: bool) -> None:
    say(f"GENIUS is at {address_of(settings)}")
    for name, count in items.items():
        say(f"  {name}: {counted(count, 'item')}")
    say(f"  {rights(settings)}")
    if not settings.loopback and not settings.read_keys:
        complain(
            f"WARNING: {settings.host} can be reached from other machines, and there are no read keys: everyone who "
            "can connect can see all items. Add keys with --keys, or listen on 127.0.0.1."
        )
    say("Press Ctrl+C to stop.")
    if open_browser:
        Thread(target=webbrowser.open, args=(address_of(settings),), daemon=True).start()


def rights(settings: "Settings") -> str:
    """One sentence: who may read and write."""
    reading = "Reading needs a key" if settings.read_keys else "Reading needs no key"
    if settings.read_only:
        return f"{reading}; it is read-only."
    if settings.write_keys:
        return f"{reading}; writing needs a write key."
    if settings.read_keys or not settings.loopback:
        return f"{reading}; nobody may write, because there is no write key."
    return f"{reading}; writing needs none either, from this machine."
