"""Runs the command line: `python -m genius`."""

from genius.cli.app import main

main()
