"""Progress bar with counts and rate."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def show_progress(what: str, total: int | None, show: bool = True) -> Iterator[Callable[..., None]]:
    """Show a progress bar on stderr. total: number of items, or None if unknown.

    Yields `advance(done, bad=0)`: call it with the number of items just done and the total number of bad ones.
    """
    if not show:
        yield lambda done, bad=0: None
        return
    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:,.0f} items/s{task.fields[note]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total, rate=0.0, note="")

        def advance(done: int, bad: int = 0) -> None:
            completed = bar.tasks[0].completed + done
            rate = completed / (bar.tasks[0].elapsed or 1.0)
            bar.update(task, completed=completed, rate=rate, note=f", {bad:,} bad" if bad else "")

        yield advance
