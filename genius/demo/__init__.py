"""The demo: two artists' emoji as a searchable collection, a benchmark made of it, and a gallery of answers."""
