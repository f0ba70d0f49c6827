"""The texts of Lance's errors, without the places in Lance's source that they name."""

import re

_SOURCE = re.compile(r",?\s*(?:location: )?(?:/|[A-Za-z]:[\\/])[^\s,()]*\.rs:\d+(?::\d+)?")
_WRAPPERS = re.compile(r"\b(?:External error: |Query Execution error: |LanceError\(\w+\): |Generic [\w/]+ error: )")


def lance_reason(error: BaseException) -> str:
    """Return the text of an error of Lance without file names of Rust sources and names of wrapping errors.

    Lance appends the file and line of its source to each text, as they were on the machine that built it.
    """
    return " ".join(_WRAPPERS.sub("", _SOURCE.sub("", str(error))).split())
