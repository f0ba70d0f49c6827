"""Trie, constrained beam search, re-ranking, and the searcher that combines them."""
