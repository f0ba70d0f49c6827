"""The emoji demo."""
