"""The `genius mcp` command: give an index to an assistant."""

from typing import Annotated

import typer

from genius.cli.console import named_indexes
from genius.errors import MissingExtra

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
        from genius.integrations.mcp import serve
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("mcp", "mcp_types", "anyio", "pydantic"):
            raise
        raise MissingExtra("genius mcp", "mcp") from error

    serve(paths)
