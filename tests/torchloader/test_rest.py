"""The rest of an epoch whose batches are given out of order: each one is given once, with any order and any stops."""

from __future__ import annotations

import json
from random import Random

from torchloader.loader.iteration import Rest
from torchloader.loader.order import Gaps, SampleOrder, SamplerOrder, digest

WINDOW = 5
PLACE = 0, 1


def part_of_an_epoch(dice: Random, rest: Rest) -> tuple[list[list[int]], int | Gaps]:
    """Take batches in random order until a random stop or the end; return them and the position of the trainer."""
    given, ahead, over = [], [], False
    while dice.random() > 0.05:
        while not over and len(ahead) < WINDOW:
            drawn = rest.draw()
            over = drawn is None
            if drawn is not None:
                ahead.append(drawn)
        if not ahead:
            break
        indices, part = ahead.pop(dice.randrange(len(ahead)))
        rest.give(part)
        given.append(indices)
    return given, rest.position


def test_batches_are_given_once_with_any_order_and_any_stops() -> None:
    for seed in range(300):
        dice = Random(seed)
        length, batch = dice.randrange(1, 200), dice.randrange(1, 6)
        order = SampleOrder(range(length), seed, batch, dice.random() < 0.5, *PLACE, shuffle=True)
        expected = [indices for indices, _ in order.batches(0, 0)]
        given: list[list[int]] = []
        standing: int | Gaps = 0
        while len(given) < len(expected):
            rest = Rest(order, 0, standing, None, in_order=False, with_digest=False)
            more, standing = part_of_an_epoch(dice, rest)
            given += more
            told = json.loads(json.dumps(order.state_of(standing)))
            assert len(told.get("beyond", {"given": []})["given"]) < WINDOW
            standing = order.place(told)
        assert sorted(given) == sorted(expected), seed


def test_the_digest_covers_the_samples_before_the_position() -> None:
    for seed in range(100):
        dice = Random(seed)
        samples = dice.sample(range(150), 150)
        order = SamplerOrder(samples, seed, 4, False)
        standing: int | Gaps = 0
        before = 0
        while (standing.position if isinstance(standing, Gaps) else standing) < len(samples):
            rest = Rest(order, 0, standing, before, in_order=False, with_digest=True)  # which checks it
            _, standing = part_of_an_epoch(dice, rest)
            before = rest.digest
            position = standing.position if isinstance(standing, Gaps) else standing
            assert before == digest(samples[:position]), seed
