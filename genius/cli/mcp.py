"""The command `genius mcp`."""

from typing import Annotated

import typer

from genius.cli.console import examples, named_indexes
from genius.errors import MissingExtra

EPILOG = examples(
    "genius mcp photos.genius news=articles.genius",
    notes="Assistants start this command themselves. Enter it, with the full path of the index, as the command of an "
    "MCP server in the assistant's settings.",
)


def mcp(
    indexes: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]INDEX",
            help="Folder of an index, optionally with a name. May be repeated.",
            show_default=False,
        ),
    ],
) -> None:
    """Let an assistant search indexes: a Model Context Protocol server on standard input and output."""
    paths = named_indexes(indexes)
    try:
        from genius.integrations.mcp import serve
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("mcp", "mcp_types", "anyio", "pydantic"):
            raise
        raise MissingExtra("genius mcp", "mcp") from error

    serve(paths)
