"""The three training stages."""
