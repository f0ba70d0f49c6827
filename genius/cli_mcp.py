"""The `genius mcp` command: give an index to an assistant."""

from pathlib import Path
from typing import Annotated

import typer

from genius.errors import BadIndex, GeniusError, MissingExtra

EPILOG = (
    "Assistants start it themselves: enter [bold]genius mcp photos.genius[/bold], with the full path of the index, as "
    "the command of an MCP server in the assistant's settings.\n\n"
    "Example: [bold]genius mcp photos.genius news=articles.genius[/bold]"
)


def mcp(
    indexes: Annotated[
        list[str],
        typer.Argument(metavar="INDEX [NAME=INDEX]...", help="Folders of indexes.", show_default=False),
    ],
) -> None:
    """Let an assistant search an index: a server of the Model Context Protocol on standard input and output."""
    paths = named_indexes(indexes)
    try:
        from genius.mcp_server import serve
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("mcp", "mcp_types", "anyio", "pydantic"):
            raise
        raise MissingExtra("genius mcp", "mcp") from error

    serve(paths)


def named_indexes(given: list[str]) -> dict[str, Path]:
    """The folders by their names: NAME=INDEX, or INDEX alone, which is called as its folder without the ending."""
    paths: dict[str, Path] = {}
    for one in given:
        name, equals, folder = one.partition("=")
        if not equals or Path(one).exists():
            name, folder = Path(one).resolve().stem, one
        if not name or not folder:
            raise GeniusError(f"{one!r} is neither INDEX nor NAME=INDEX.")
        if name in paths:
            raise GeniusError(f"Two indexes are called {name!r}. Give one of them another name: NAME={folder}")
        if not (Path(folder) / "items.lance").is_dir():
            raise BadIndex(f"{folder} is not an index. Make one with: genius index create {folder} SOURCE")
        paths[name] = Path(folder)
    return paths
