"""The LlamaIndex retriever; see `genius.integrations.llamaindex`."""

from genius.integrations.llamaindex import *  # noqa: F403
