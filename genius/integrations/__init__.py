"""Client, LangChain, LlamaIndex and MCP."""
