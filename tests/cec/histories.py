"""Random histories of the naive operator, and random ways to feed a log backwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from tests.cec.model import Identity, Model

Draw = Callable[[st.SearchStrategy[Any]], Any]
KEYS = st.sampled_from([b"a", b"", None, b"a key longer than a slot", b"a key longer than a slut", b"12345678"])
IDENTITIES: st.SearchStrategy[Identity] = st.tuples(KEYS, st.sampled_from([0, 1, -(2**63)]))
INPUTS = st.lists(st.tuples(IDENTITIES, st.integers(-5, 5)), max_size=12)


@st.composite
def histories(draw: st.DrawFn, *, footprint_changes: bool | None = None) -> Model:
    """A model after some epochs, with groups of other queries, resets, rebases and torn groups between them."""
    micro = draw(st.booleans()) if footprint_changes is None else footprint_changes
    model = Model(draw(st.integers(1, 6)), footprint_changes=micro)
    for step in range(draw(st.integers(0, 14))):
        kind = draw(st.sampled_from(["epoch"] * 6 + ["reset"] * 2 + ["foreign", "torn", "rebase"]))
        if kind == "foreign":
            model.foreign(draw(st.lists(IDENTITIES, max_size=4)))
        elif kind == "reset":
            model.reset(draw(st.sampled_from(sorted(model.states))))
        else:
            model.epoch(
                draw(INPUTS),
                checks=draw(st.integers(0, 4)),
                cuts=draw(st.integers(1, 4)),
                attempt=f"a{step}",
                torn=kind == "torn",
                rebase=kind == "rebase",
            )
    return model


def pieces_of(model: Model, draw: Draw, *, start: int = 0) -> list[bytes]:
    """The log from its `start`-th control batch on, newest first, cut into pieces at random."""
    batches = [stored.data for stored in reversed(model.log[start:])]
    pieces: list[bytes] = []
    while batches:
        count = draw(st.integers(1, len(batches)))
        pieces.append(b"".join(batches[:count]))
        batches = batches[count:]
    return pieces
