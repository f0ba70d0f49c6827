"""The LlamaIndex retriever, see `genius.integrations.llamaindex`."""

from genius.integrations.llamaindex import GeniusRetriever

__all__ = ["GeniusRetriever"]
