"""The public names: all can be imported, and the signatures of Index and Genius use no others."""

import inspect
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import pytest

import genius


def test_every_public_name_can_be_imported() -> None:
    assert {name for name in genius.__all__ if getattr(genius, name).__class__ is not None} == set(genius.__all__)
    assert genius.__all__ == sorted(genius.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Collection'"):
        _ = genius.Collection


def test_importing_genius_loads_nothing_heavy() -> None:
    code = "import sys, genius; print([name for name in ('torch', 'numpy', 'lance') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def types_in(annotation: Any) -> Iterator[type]:
    """All classes that an annotation names."""
    if get_origin(annotation) is not None or isinstance(annotation, types.UnionType):
        for part in get_args(annotation):
            yield from types_in(part)
    elif isinstance(annotation, list):
        for part in annotation:
            yield from types_in(part)
    elif isinstance(annotation, type):
        yield annotation


def signatures(owner: type) -> Iterator[tuple[str, Any]]:
    """Names and functions of the public methods and properties of a class, and its constructor."""
    for name, member in vars(owner).items():
        if name.startswith("_") and not (name == "__init__" and owner is genius.Genius):
            continue
        function = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
        if inspect.isfunction(function):
            yield f"{owner.__name__}.{name}", function


@pytest.mark.parametrize("owner", [genius.Index, genius.Genius])
def test_signatures_use_public_types_only(owner: type) -> None:
    public = {getattr(genius, name) for name in genius.__all__}
    found = 0
    for name, function in signatures(owner):
        hints = typing.get_type_hints(function)
        for hint in hints.values():
            for one in types_in(hint):
                if one.__module__.startswith("genius."):
                    found += 1
                    assert one in public, f"{name} uses {one.__name__}, which genius does not export"
    assert found > 5
