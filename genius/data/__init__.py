"""Items, queries and images; readers of folders, tables and benchmarks."""
