"""The command `genius mcp`."""

from genius.cli.console import NamedIndexes, examples, named_indexes
from genius.errors import MissingExtra

EPILOG = examples(
    "genius mcp photos.genius news=articles.genius",
    notes="Assistants start this command themselves. Enter it, with the full path of the index, as the command of an "
    "MCP server in the assistant's settings.",
)


def mcp(indexes: NamedIndexes) -> None:
    """Let an assistant search indexes: a Model Context Protocol server on standard input and output."""
    paths = named_indexes(indexes)
    try:
        from genius.integrations.mcp import serve
    except ModuleNotFoundError as error:
        raise MissingExtra("genius mcp", "mcp") from error

    serve(paths)
