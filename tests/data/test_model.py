"""A dictionary with checkpoints, compared with a model after random operations."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dragon.data.ddict import DDict, DDictCheckpointSyncError

KEYS = st.sampled_from(["a", "b", 1, (1, "c"), b"k" * 600])
VALUES = st.one_of(st.integers(), st.text(max_size=20), st.builds(bytes, st.sampled_from([0, 5, 40_000])))
GONE = object()


class Checkpointed(RuleBasedStateMachine):
    """The model: the values written in each checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.written: dict[int, dict[Any, Any]] = {}
        self.newest = 0

    @initialize(held=st.integers(1, 3))
    def make(self, held: int) -> None:
        self.held = held
        self.ddict = DDict(1, 1, 16 * 2**20, working_set_size=held)

    def teardown(self) -> None:
        self.ddict.destroy()

    @property
    def oldest(self) -> int:
        return max(0, self.newest - self.held + 1)

    def visible(self) -> dict[Any, Any]:
        seen: dict[Any, Any] = {}
        for checkpoint in sorted(self.written):
            # With one checkpoint held there is one state only.
            if checkpoint <= self.ddict.checkpoint_id or self.held == 1:
                seen.update(self.written[checkpoint])
        return {key: value for key, value in seen.items() if value is not GONE}

    def write(self, key: Any, value: Any) -> None:
        here = self.ddict.checkpoint_id
        self.newest = max(self.newest, here)
        self.written.setdefault(here, {})[key] = value

    def is_retired(self) -> bool:
        return self.ddict.checkpoint_id < self.oldest

    @rule(key=KEYS, value=VALUES)
    def put(self, key: Any, value: Any) -> None:
        try:
            self.ddict[key] = value
        except DDictCheckpointSyncError:
            assert self.is_retired()
        else:
            assert not self.is_retired()
            self.write(key, value)

    @rule(key=KEYS)
    def delete(self, key: Any) -> None:
        if self.is_retired():
            return
        before = self.visible()
        self.newest = max(self.newest, self.ddict.checkpoint_id)  # to delete nothing is to be there, too
        assert (self.ddict.pop(key, GONE_VALUE) == GONE_VALUE) == (key not in before)
        if key in before:
            self.write(key, GONE)

    @rule(steps=st.integers(-2, 3))
    def go(self, steps: int) -> None:
        self.ddict.checkpoint_id = max(self.oldest, self.ddict.checkpoint_id + steps)

    @rule()
    def go_to_the_newest(self) -> None:
        self.ddict.sync_to_newest_checkpoint()
        assert self.ddict.checkpoint_id == self.newest

    @invariant()
    def both_show_the_same(self) -> None:
        if not hasattr(self, "ddict") or self.is_retired():
            return
        expected = self.visible()
        assert len(self.ddict) == len(expected)
        found = dict(self.ddict.items())
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[key], expected[key]) for key in expected)


GONE_VALUE = "there is no such key"

TestCheckpointed = Checkpointed.TestCase
TestCheckpointed.settings = settings(max_examples=30, stateful_step_count=40)
