"""Building and serving indexes on many machines, with Ray."""
