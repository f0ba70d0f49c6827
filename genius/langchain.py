"""The LangChain retriever; see `genius.integrations.langchain`."""

from genius.integrations.langchain import *  # noqa: F403
