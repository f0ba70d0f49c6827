"""The command `genius`: translates options and prints."""
