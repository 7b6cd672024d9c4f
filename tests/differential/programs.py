"""Draw random programs for the driver."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

__all__ = ["programs"]

Steps = st.SearchStrategy[list[Any]]

numbers = st.integers(-5, 50)
counts = st.sampled_from([0, 1, 2, 3, 7, 20, 130])
chunks = st.sampled_from([None, 1, 2, 5])
values = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=5), st.lists(numbers, max_size=3))
mappable = st.sampled_from(["same", "double", "fail_if_odd", "initialized", "large", "fail"])
callable_ = st.sampled_from(["same", "double", "fail", "fail_oddly", "initialized", "large_result"])


def step(name: str, *given: Any) -> Steps:
    return st.tuples(
        st.just(name), *(each if isinstance(each, st.SearchStrategy) else st.just(each) for each in given)
    ).map(list)


def program(kind: str, given: Any, steps: list[Steps], most: int = 8) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "kind": st.just(kind),
            "given": st.tuples(*given).map(list),
            "steps": st.lists(st.one_of(steps), max_size=most),
        }
    )


pools = program(
    "Pools",
    (st.integers(1, 3), st.booleans(), st.sampled_from([None, None, 1, 3])),
    [
        step("apply", callable_, numbers),
        step("apply_async", callable_, numbers),
        step("map", mappable, counts, chunks, st.sampled_from(["list", "slow", "failing"])),
        step("map_async", mappable, counts, chunks),
        step("starmap", counts, chunks),
        step("imap", mappable, st.sampled_from(["list", "slow", "failing"]), counts, st.integers(1, 4), st.booleans()),
        step("imap", st.sampled_from(["same", "double"]), "waiting", counts, 1, st.booleans()),
        step("take", st.integers(0, 3)),
        step("rest"),
        step("get"),
        step("waited"),
        step("abandon"),
        step("forget"),
        step("close"),
        step("join"),
    ],
)
queues = program(
    "Queues",
    (st.sampled_from(["Queue", "JoinableQueue", "SimpleQueue"]), st.sampled_from([0, 1, 3])),
    [
        step("put", values),
        step("put_from_a_process", st.lists(values, max_size=2)),
        *[step(name) for name in ("get", "get", "size", "full", "empty", "task_done", "close")],
    ],
    12,
)
ends = st.integers(0, 1)
pipes = program(
    "Pipes",
    (st.booleans(),),
    [
        step("send", ends, values),
        step("send_bytes", ends, st.integers(-1, 11), st.integers(-1, 11)),
        step("recv_bytes", ends, st.sampled_from([-1, 0, 3, 100])),
        *[step(name, ends) for name in ("send_bytes", "recv", "recv", "recv_bytes", "poll", "close", "state")],
    ],
    10,
)
indices = st.integers(-4, 4)
sync = program(
    "Sync",
    (),
    [
        *[
            step(name, method)
            for name in ("lock", "rlock", "semaphore", "bounded")
            for method in ("release", "__enter__")
            if (name, method) not in (("lock", "__enter__"), ("semaphore", "__enter__"), ("bounded", "__enter__"))
        ],
        *[step(name, "acquire", st.booleans(), 0.02) for name in ("lock", "rlock", "semaphore", "bounded")],
        *[step(name, "get_value") for name in ("semaphore", "bounded")],
        *[step("event", method) for method in ("set", "clear", "is_set")],
        step("event", "wait", 0.01),
        *[step("condition", method) for method in ("acquire", "release", "notify", "notify_all")],
        step("condition", "wait", 0.01),
        step("barrier", "wait", 0.01),
        *[step(name, method) for name in ("barrier", "alone") for method in ("reset", "abort")],
        *[step(name, "property", each) for name in ("barrier", "alone") for each in ("broken", "parties", "n_waiting")],
        step("alone", "wait"),
        step("value", "value"),
        step("value", "value", st.one_of(numbers, st.just("text"), st.just(2**40), st.just(1.5))),
        step("value", "increment", st.integers(0, 5)),
        step("array", "item", indices),
        step("array", "item", indices, st.one_of(numbers, st.just("text"))),
        step("array", "slice", indices, indices),
        step("array", "len"),
        step("text", "value"),
    ],
    10,
)
processes = program(
    "Processes",
    (
        st.sampled_from(
            [
                "return",
                "raise",
                "exit 0",
                "exit 3",
                "exit 300",
                "exit -1",
                "exit none",
                "exit text",
                "os._exit",
                "kill",
                "term",
                "abrt",
                "sleep",
            ]
        ),
        st.sampled_from([None, True, False]),
    ),
    [
        step(name)
        for name in (
            [
                "start",
                "start",
                "end",
                "join",
                "join shortly",
                "terminate",
                "kill",
                "daemon",
                "make a daemon",
                "alive",
                "close",
            ]
        )
    ],
)
keys = st.sampled_from(["a", "b", "c"])
managers = program(
    "Managers",
    (),
    [
        step("dict", "__setitem__", keys, values),
        step("dict", "item", keys),
        step("dict", "pop", keys),
        step("dict", "pop", keys, None),
        step("dict", "get", keys),
        *[step("dict", method) for method in ("keys", "len", "copy", "clear")],
        step("dict", "in a process", keys, numbers),
        step("list", "append", values),
        step("list", "item", indices),
        step("list", "pop", indices),
        step("list", "in a process", st.integers(-2, 5), numbers),
        *[step("list", method) for method in ("reverse", "len", "sort")],
        step("namespace", "set", st.sampled_from(["x", "y"]), numbers),
        step("namespace", "read", st.sampled_from(["x", "y"])),
        step("queue", "put", values, False),
        step("queue", "get", False),
        *[step("queue", method) for method in ("qsize", "empty", "full", "task_done")],
        *[step("event", method) for method in ("set", "is_set", "clear")],
        step("lock", "acquire", False),
        step("lock", "release"),
        step("value", "read", "value"),
        step("value", "set", "value", numbers),
    ],
    10,
)
executors = program(
    "Executors",
    (st.integers(1, 2), st.booleans()),
    [
        step("submit", callable_, numbers),
        step("submit", callable_, numbers),
        step("map", mappable, counts, st.integers(0, 4)),
        *[step(name) for name in ("result", "exception", "wait", "as completed", "shut down")],
    ],
)
memory = program(
    "Memory",
    (st.sampled_from([1, 10, 5000]),),
    [
        step("write", st.integers(-1, 12), st.one_of(st.integers(0, 255), st.just(300))),
        step("read", st.integers(-1, 12)),
        step("edit in a process"),
        step("attach", st.integers(0, 12)),
        step("set item", st.integers(0, 6), st.one_of(numbers, st.just("longer text"), st.just("t"), st.none())),
        step("item", st.integers(0, 6)),
        step("count", st.sampled_from([1, "text", 9])),
        step("index", st.sampled_from([1, "text", 9])),
    ],
)
programs = st.one_of(pools, pools, queues, pipes, sync, processes, managers, executors, memory)
