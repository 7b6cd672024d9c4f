"""The checker finds every violation in a history, and none in a correct history."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen.checker import check, reads_that_go_back, stale_reads, without_reads
from jepsen.history import FINAL, Operation, Recorder, gathered, read, write
from jepsen.linear import COUNTER, REGISTER, Model, Verdict, explained, is_linearizable


def done(
    name: str, begun: int, ended: int | None, given: Any = None, result: Any = None, what: str = "register a"
) -> Operation:
    return Operation(f"client {begun}", what, name, given, begun, ended, result)


def put(value: str, begun: int, ended: int | None) -> Operation:
    return done("put", begun, ended, value)


def get(value: str | None, begun: int, ended: int) -> Operation:
    return done("get", begun, ended, None, value)


def add(before: int | None, begun: int, ended: int | None, by: int = 1) -> Operation:
    return done("add", begun, ended, by, before, "counter")


RIGHT = {
    "one after the other": [put("a", 1, 2), get("a", 3, 4), put("b", 5, 6), get("b", 7, 8)],
    "a read at the same time sees either": [put("a", 1, 2), put("b", 3, 9), get("b", 4, 5), get("b", 6, 7)],
    "a put at the same time that is last": [put("a", 1, 9), put("b", 2, 8), get("b", 10, 11), get("b", 12, 13)],
    "an unknown put happened late": [put("a", 1, None), put("b", 2, 3), get("b", 4, 5), get("a", 6, 7)],
    "an unknown put never happened": [put("a", 1, 2), put("b", 3, None), get("a", 4, 5), get("a", 90, 91)],
    "one default for all": [done("setdefault", 1, 5, "a", "b"), done("setdefault", 2, 4, "b", "b")],
    "taken and there no more": [put("a", 1, 2), done("pop", 3, 4, None, "a"), get(None, 5, 6)],
    "an unknown pop": [put("a", 1, 2), done("pop", 3, None), get("a", 4, 5), get(None, 6, 7)],
}
WRONG = {
    "a stale read": [put("a", 1, 2), put("b", 3, 4), get("a", 5, 6)],
    "a read that goes back": [put("a", 1, 2), put("b", 3, 20), get("b", 4, 5), get("a", 6, 7)],
    "a lost update": [put("a", 1, 2), get(None, 3, 4)],
    "a value from nowhere": [get("a", 1, 2)],
    "a value before its put": [get("a", 1, 2), put("a", 3, 4)],
    "an unknown put that came and went": [put("a", 1, 2), put("b", 3, None), get("b", 4, 5), get("a", 6, 7)],
    "two defaults": [done("setdefault", 1, 5, "a", "a"), done("setdefault", 2, 4, "b", "b")],
    "taken twice": [put("a", 1, 2), done("pop", 3, 6, None, "a"), done("pop", 4, 5, None, "a")],
    "two that do not agree about the order": [
        put("a", 1, 2),
        put("b", 1, 2),
        *[get("a", 3, 4), get("b", 5, 6)],
        *[get("b", 3, 4), get("a", 5, 6)],
    ],
}


@pytest.mark.parametrize("history", RIGHT.values(), ids=RIGHT)
def test_possible_histories_are_accepted(history: list[Operation]) -> None:
    assert check(history) == []


@pytest.mark.parametrize("history", WRONG.values(), ids=WRONG)
def test_impossible_histories_are_reported(history: list[Operation]) -> None:
    [fault] = check(history)
    assert fault.sure
    assert is_linearizable(REGISTER, fault.operations) is Verdict.NO


def test_additions_that_are_counted_once_are_accepted() -> None:
    assert check([add(0, 1, 9), add(1, 2, 8), add(2, 3, None, 5), done("get", 10, 11, None, 7, "counter")]) == []


def test_an_addition_that_is_counted_twice_is_reported() -> None:
    assert check([add(0, 1, 2), done("get", 3, 4, None, 2, "counter")])


def test_two_additions_with_the_same_previous_value_are_reported() -> None:
    assert check([add(0, 1, 2), add(0, 1, 2)])


def test_a_lost_addition_is_reported() -> None:
    assert check([add(0, 1, 2), add(1, 3, 4), done("get", 5, 6, None, 1, "counter")])


def test_a_partial_put_of_a_pair_is_reported() -> None:
    first = done("put", 1, 2, "a", what="pair")
    both, half = done("get_many", 3, 4, None, ["a", "a"], "pair"), done("get_many", 5, 6, None, ["b", "a"], "pair")
    assert check([first, both]) == []
    assert check([first, both, done("put", 3, 9, "b", what="pair"), half]) == []
    again = done("get_many", 7, 8, None, ["a", "a"], "pair")
    assert check([first, done("put", 3, 9, "b", what="pair"), half, again])


def element(begun: int, ended: int | None, value: str) -> Operation:
    return done("add", begun, ended, value, what="set")


def elements(begun: int, ended: int, *values: str) -> Operation:
    return Operation(FINAL, "set", "elements", None, begun, ended, list(values))


def test_an_element_with_an_unknown_outcome_may_be_in_the_set() -> None:
    for seen in (["a"], ["a", "b"]):
        assert check([element(1, 2, "a"), element(3, None, "b"), elements(5, 6, *seen)]) == []


def test_a_missing_element_is_reported() -> None:
    [fault] = check([element(1, 2, "a"), element(3, 4, "b"), elements(5, 6, "b")])
    assert fault.operations[0] == element(1, 2, "a")


def test_an_element_that_was_never_added_is_reported() -> None:
    assert check([element(1, 2, "a"), elements(5, 6, "a", "b")])


def test_a_set_without_a_final_read_is_reported() -> None:
    assert check([element(1, 2, "a")])


def sent(begun: int, ended: int | None, message: str) -> Operation:
    return done("put", begun, ended, message, True, "queue node1")


def taken(begun: int, ended: int | None, message: str | None) -> Operation:
    return done("take", begun, ended, None, message, "queue node1")


DRAINED = done("drained", 100, 101, what="queue node1")


def test_messages_that_are_taken_once_are_accepted() -> None:
    assert check([sent(1, 2, "a"), sent(3, None, "b"), taken(4, 5, "a"), taken(6, 7, None), DRAINED]) == []


def test_a_message_that_was_taken_twice_is_reported() -> None:
    assert check([sent(1, 2, "a"), taken(4, 5, "a"), taken(6, 7, "a"), DRAINED])


def test_a_message_that_was_never_put_is_reported() -> None:
    assert check([taken(4, 5, "a"), DRAINED])
    assert check([done("put", 1, 2, "a", False, "queue node1"), taken(4, 5, "a"), DRAINED])


def test_a_lost_message_is_reported_unless_a_take_has_an_unknown_outcome() -> None:
    assert check([sent(1, 2, "a"), DRAINED])
    assert check([sent(1, 2, "a"), taken(3, None, None), DRAINED]) == []


def test_a_queue_may_be_lost_only_with_its_host() -> None:
    history = [sent(1, 2, "a")]
    assert check(history)
    assert check(history, lost=["node2"])
    assert check(history, lost=["node1"]) == []


def test_messages_in_the_wrong_order_are_reported() -> None:
    one, other = sent(1, 2, "a"), sent(3, 4, "b")
    assert check([one, other, taken(5, 6, "b"), taken(7, 8, "a"), DRAINED])
    assert check([one, other, taken(5, 8, "b"), taken(7, 9, "a"), DRAINED]) == []
    assert check([sent(1, 4, "a"), sent(3, 5, "b"), taken(6, 7, "b"), taken(8, 9, "a"), DRAINED]) == []


def test_a_message_may_be_overtaken_only_if_an_unknown_take_can_have_put_it_back() -> None:
    overtaking = [sent(1, 2, "a"), sent(3, 4, "b"), taken(6, 7, "b"), taken(8, 9, "a"), DRAINED]
    assert check([*overtaking, taken(5, None, None)]) == []
    assert check([*overtaking, taken(8, None, None)])
    assert check([*overtaking, sent(1, 2, "c"), taken(8, 9, "c"), taken(5, None, None)])
    assert check([*overtaking, sent(10, 11, "lost"), taken(5, None, None)])


def look(amounts: list[int], begun: int) -> Operation:
    return done("look", begun, begun + 1, None, amounts, "bank")


def test_a_bank_with_a_constant_sum_is_accepted() -> None:
    assert check([look([100, 100], 1), look([90, 110], 3), look([90, 110], 5)]) == []


def test_a_change_of_the_sum_of_a_bank_is_reported() -> None:
    transfer = done("transfer", 3, None, 5, None, "bank")
    [fault] = check([look([100, 100], 1), transfer, look([100, 105], 5), look([100, 105], 7)])
    assert (fault.object, len(fault.operations)) == ("bank", 3)


def test_an_unexpected_error_is_reported() -> None:
    assert check([Operation("client", "register a", "get", None, 1, error="ValueError", broken=True)])


def test_stale_reads_are_distinguished_from_wrong_writes() -> None:
    behind, wrong = WRONG["a stale read"], WRONG["taken twice"]
    assert check(without_reads(behind)) == []
    found = done("setdefault", 5, 6, "c", "a")
    assert check(without_reads([*behind[:2], found])) == []
    assert stale_reads(behind)
    assert check(without_reads(wrong))
    assert not stale_reads(wrong)


def of_process(process: str, one: Operation) -> Operation:
    return replace(one, client=f"{process}.{one.client}")


BEHIND = {
    "what it put itself": [put("a", 1, 2), of_process("p", put("b", 3, 4)), of_process("p", get("a", 5, 6))],
    "its own put, for nothing": [of_process("p", put("a", 1, 2)), of_process("p", get(None, 3, 4))],
    "its own addition": [of_process("p", add(4, 1, 2)), of_process("p", done("get", 3, 4, None, 4, "counter"))],
}
BACK = {
    "back to an older value": [
        *[put("a", 1, 2), put("b", 3, 9)],
        *[of_process("p", get("b", 4, 5)), of_process("p", get("a", 6, 7))],
    ],
    "back to an older count": [of_process("p", done("get", at, at, None, 9 - at, "counter")) for at in (1, 2)],
}
FORTH = {
    "another process is behind": [put("a", 1, 2), of_process("p", put("b", 3, 4)), of_process("q", get("a", 5, 6))],
    "a put at the same time may be the later one": [
        *[of_process("p", put("a", 1, 5)), put("b", 2, 4)],
        *[of_process("p", get("b", 6, 7)), of_process("p", get("a", 8, 9))],
    ],
    "it was taken": [of_process("p", put("a", 1, 2)), done("pop", 3, 4, None, "a"), of_process("p", get(None, 5, 6))],
}


@pytest.mark.parametrize("history", [*BEHIND.values(), *BACK.values()], ids=[*BEHIND, *BACK])
def test_reads_that_go_back_in_one_process_are_reported(history: list[Operation]) -> None:
    assert len(reads_that_go_back(history)) == 1


@pytest.mark.parametrize("history", FORTH.values(), ids=FORTH)
def test_reads_that_do_not_go_back_are_accepted(history: list[Operation]) -> None:
    assert reads_that_go_back(history) == []


@pytest.mark.parametrize("history", [*BEHIND.values(), *BACK.values()], ids=[*BEHIND, *BACK])
def test_after_a_loss_of_the_primary_only_values_of_other_processes_may_be_lost(history: list[Operation]) -> None:
    assert bool(reads_that_go_back(history, ["node2"])) == (history in BEHIND.values())


def test_a_violation_in_a_long_history_is_explained_by_a_few_operations() -> None:
    history = [operation for n in range(0, 4000, 4) for operation in (put(str(n), n, n + 1), get(str(n), n + 2, n + 3))]
    wrong = get("3996", 4002, 4003)
    later = [put("later", 4004, 4005), get("later", 4006, 4007)]
    history += [put("new", 4000, 4001), wrong, *later]
    told = explained(REGISTER, history)
    assert set(told) == {put("3996", 3996, 3997), put("new", 4000, 4001), wrong}


def test_operations_before_a_known_state_are_omitted_from_an_explanation() -> None:
    history = [add(n, 10 * n, 10 * n + 1) for n in range(100)]
    told = explained(COUNTER, [*history, add(100, 1000, 1001), add(100, 1002, 1003)])
    assert [(one.given, one.result) for one in told] == [(101, 0), (1, 100)]
    taking = [one for n in range(0, 400, 4) for one in (put(str(n), n, n + 1), done("pop", n + 2, n + 3, None, str(n)))]
    stale = get("0", 500, 501)
    told = explained(REGISTER, [*taking, stale])
    assert [(one.name, one.result) for one in told] == [("put", None), ("pop", "0"), ("get", None), ("get", "0")]


def test_a_history_with_many_additions_of_unknown_outcome_is_decided() -> None:
    unknown = [add(None, 1, None) for _ in range(40)]
    assert is_linearizable(COUNTER, [*unknown, add(20, 5, 6), add(25, 7, 8)]) is Verdict.YES
    assert is_linearizable(COUNTER, [*unknown, add(20, 5, 6), add(20, 7, 8)]) is Verdict.NO


def test_a_search_that_reaches_its_limit_is_open() -> None:
    assert is_linearizable(REGISTER, RIGHT["one after the other"], steps=2) is Verdict.OPEN


def test_a_history_is_recorded_and_read_back(tmp_path: Any) -> None:
    recorder = Recorder(tmp_path, "client")

    def fail(error: Exception) -> Any:
        raise error

    recorder.do("register a", "put", "1", lambda: None)
    recorder.do("register a", "get", None, lambda: fail(ConnectionError("gone")))
    with pytest.raises(ValueError, match="wrong"):
        recorder.do("register a", "get", None, lambda: fail(ValueError("wrong")))
    history = gathered(tmp_path)
    write(tmp_path / "history", history)
    assert read(tmp_path / "history") == history
    assert [(one.ended is None, one.error, one.broken) for one in history] == [
        (False, "", False),
        (True, "ConnectionError: gone", False),
        (True, "ValueError: wrong", True),
    ]


def every_order_was_tried(model: Model, history: list[Operation]) -> bool:
    """Return whether any order of the operations that may have happened is possible."""
    sure = [operation for operation in history if operation.ended is not None]
    unknown = [operation for operation in history if operation.ended is None]
    for count in range(len(unknown) + 1):
        for chosen in itertools.combinations(unknown, count):
            if any(is_possible(model, order) for order in itertools.permutations([*sure, *chosen])):
                return True
    return False


def is_possible(model: Model, order: tuple[Operation, ...]) -> bool:
    state = model.first
    for index, operation in enumerate(order):
        possible, state = model.step(state, operation)
        if not possible or any(later.ended is not None and later.ended < operation.begun for later in order[index:]):
            return False
    return True


times = st.tuples(st.integers(0, 12), st.integers(1, 6) | st.none())
steps = st.tuples(times, st.sampled_from(["get", "put", "pop", "setdefault"]), st.integers(0, 5))


@settings(max_examples=400)
@given(st.lists(steps, max_size=6))
def test_the_verdict_on_a_register_equals_that_of_trying_every_order(drawn: list[Any]) -> None:
    values = [f"v{number}" for number in range(len(drawn))]
    history = []
    for value, ((begun, lasting), name, seen) in zip(values, drawn, strict=True):
        given = value if name in ("put", "setdefault") else None
        result = None if name == "put" or seen >= len(values) else values[seen]
        if name == "setdefault" and result is None:
            result = value
        ended = None if lasting is None else begun + lasting
        history.append(done(name, begun, ended, given, result if ended is not None else None))
    agree(REGISTER, history)


@settings(max_examples=400)
@given(st.lists(st.tuples(times, st.sampled_from([0, 1, 1, 3]), st.integers(0, 6)), max_size=6))
def test_the_verdict_on_a_counter_equals_that_of_trying_every_order(drawn: list[Any]) -> None:
    history = []
    for (begun, lasting), by, seen in drawn:
        ended = None if lasting is None else begun + lasting
        history.append(done("add" if by else "get", begun, ended, by or None, seen if ended is not None else None))
    agree(COUNTER, history)


def agree(model: Model, history: list[Operation]) -> None:
    right = every_order_was_tried(model, history)
    assert is_linearizable(model, history) is (Verdict.YES if right else Verdict.NO)
    if not right:
        told = explained(model, history)
        assert len(told) <= len(history)
        assert not every_order_was_tried(model, told)
