"""Runs the command line: `python -m genius.cli`."""

from genius.cli.app import main

main()
