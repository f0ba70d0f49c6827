"""The LangChain retriever, see `genius.integrations.langchain`."""

from genius.integrations.langchain import GeniusRetriever

__all__ = ["GeniusRetriever"]
