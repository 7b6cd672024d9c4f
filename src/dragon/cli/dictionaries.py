"""Accesses the dictionaries of the runs on this machine, and those that were persisted in a folder."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import groupby
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dragon import _core
from dragon.cli.ps import PATIENCE
from dragon.data.ddict import DDict, DDictManagerStats
from dragon.data.ddict.creation import from_text
from dragon.data.plain_files import loader
from dragon.infrastructure import variables
from dragon.infrastructure.errors import DestroyedError, DragonError, RunEndedError
from dragon.infrastructure.structs import msgspec
from dragon.runs import Run
from dragon.runtime.agent_client import ask
from dragon.runtime.inspection import ask_agent
from dragon.runtime.nodes import run_nodes
from dragon.runtime.protocol.shards import ListDictionaries
from dragon.runtime.run import join_run
from dragon.shards.records import decode_key, decode_value
from dragon.shards.shard import BROADCAST
from dragon.shards.snapshot import files_in, managers_of, read_header, records_in

_ANSWER_TIMEOUT_S = 20.0  # seconds for a run to describe all its dictionaries
_UNDER_WAY = 32  # values in flight


class NoSuchDictionaryError(DragonError):
    """Raised if a name matches no dictionary, or several; the message lists those that exist."""


class Live(msgspec.Struct):
    """A dictionary of a run. `text` is its descriptor, with which a process attaches."""

    run: str
    name: str
    text: str
    replicas: int
    checkpoints: tuple[int, int]
    frozen: bool
    managers: list[DDictManagerStats]
    nodes: list[int]

    @property
    def keys(self) -> int:
        return sum(one.num_keys for one in self.managers)

    @property
    def sizes(self) -> tuple[int, int]:
        """The bytes that all managers use, and those of their memory."""
        return sum(one.total_used_bytes for one in self.managers), sum(one.total_bytes for one in self.managers)


class Persisted(msgspec.Struct):
    """A checkpoint of a dictionary on disk, and the file of each manager."""

    name: str
    checkpoint: int
    files: dict[int, Path]

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.files.values())


# ---- of runs


def in_run(run: Run) -> list[Live]:
    """Return the dictionaries of a run, sorted by name. A new process joins it: a process belongs to only one run."""
    try:
        ask_agent(run.nodes[0].folder, ListDictionaries(run.nodes[0].info.node), PATIENCE)
    except TimeoutError:
        raise _silent(run) from None
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, run))
    process.start()
    theirs.close()
    try:
        if not ours.poll(_ANSWER_TIMEOUT_S):
            process.kill()
            raise _silent(run)
        answer: list[Live] | DragonError = ours.recv()
    except EOFError:
        raise RunEndedError(f"run {run.name} ended meanwhile") from None
    finally:
        process.join()
        ours.close()
    if isinstance(answer, DragonError):
        raise answer
    return answer


def _silent(run: Run) -> DragonError:
    return DragonError(f"run {run.name} does not answer; `dragon doctor {run.name}` shows why")


def _answer(connection: Connection, run: Run) -> None:
    result: list[Live] | DragonError
    try:
        join(run)
        try:
            found = []
            for node in run_nodes():
                for text in ask(ListDictionaries(node.index)):
                    with contextlib.suppress(DestroyedError):  # it was destroyed meanwhile
                        found.append(_described(run, text))
            result = sorted(found, key=lambda one: one.name)
        finally:
            _core.leave_arena()
    except Exception as error:
        result = error if isinstance(error, DragonError) else DragonError(f"{type(error).__name__}: {error}")
    connection.send(result)


def join(run: Run) -> None:
    """Make this process a member of a run. Raises RunEndedError."""
    # This process may have inherited the variables of another run, in which it was started.
    for name in (variables.RUN, variables.PROCESS):
        os.environ.pop(name, None)
    join_run(run.nodes[0].folder)


def _described(run: Run, text: str) -> Live:
    descriptor = from_text(text)
    ddict = DDict.attach(text, timeout=_ANSWER_TIMEOUT_S)
    ddict.sync_to_newest_checkpoint()
    states = ddict._scope.on_all("state")
    described = Live(
        run.name,
        ddict.get_name(),
        text,
        descriptor.options.replicas,
        (min(state[0] for state in states), max(state[1] for state in states)),
        ddict.is_frozen,
        ddict.stats,
        [settings.node for settings in descriptor.shards],
    )
    ddict.detach()
    return described


def choose(name: str, found: list[Live]) -> Live:
    """Return the dictionary whose name is, or begins with, `name`. Raises NoSuchDictionaryError."""
    exact = [one for one in found if one.name == name]
    chosen = exact or [one for one in found if one.name.startswith(name)]
    if len(chosen) == 1:
        return chosen[0]
    if chosen:
        where = ", ".join(f"{one.name} of run {one.run}" for one in chosen)
        raise NoSuchDictionaryError(f"{name!r} may be any of these: {where}; --run names a run")
    there = ", ".join(f"{one.name} of run {one.run}" for one in found)
    raise NoSuchDictionaryError(f"there is no dictionary {name!r}; there is " + (there or "none"))


def open_live(one: Live, checkpoint: int | None) -> DDict:
    """Return a handle, in a process that belongs to the run. Raises DestroyedError, DDictError."""
    ddict = DDict.attach(one.text)
    if checkpoint is None:
        ddict.sync_to_newest_checkpoint()
    else:
        check_held(one, checkpoint)
        ddict.checkpoint_id = checkpoint
    return ddict


def check_held(one: Live, checkpoint: int) -> None:
    """Raise NoSuchDictionaryError if the dictionary does not hold that checkpoint."""
    if not one.checkpoints[0] <= checkpoint <= one.checkpoints[1]:
        held = " to ".join(map(str, sorted(set(one.checkpoints))))
        raise NoSuchDictionaryError(f"{one.name!r} holds checkpoint {held}, not {checkpoint}")


def readable(pairs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """Yield the pairs. Raises DragonError for an object that cannot be unpickled in this process."""
    try:
        yield from pairs
    except (AttributeError, ImportError) as error:
        raise DragonError(
            f"a value is of a class that cannot be imported here: {error}; "
            "set PYTHONPATH to the folder of the program's modules"
        ) from error


def put_all(ddict: DDict, pairs: Iterable[tuple[Any, Any]]) -> int:
    """Put keys and values, several at a time. Returns their number."""
    under_way: deque[Any] = deque()
    count = 0
    for key, value in pairs:
        under_way.append(ddict.begin_put(key, value))
        count += 1
        if len(under_way) == _UNDER_WAY:
            under_way.popleft().result()
    while under_way:
        under_way.popleft().result()
    return count


# ---- on disk


def persisted_in(folder: Path) -> list[Persisted]:
    """Return the checkpoints in a folder, sorted by name and number: the latest complete files of each, or the
    latest."""
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    found: dict[tuple[str, int], Persisted] = {}
    for (name, checkpoint, _), group in groupby(sorted(files_in(folder)), key=lambda file: file[:3]):
        files = {file.manager: file.path for file in group}
        if managers_of(files) or (name, checkpoint) not in found:
            found[name, checkpoint] = Persisted(name, checkpoint, files)
    return list(found.values())


def pairs_in(one: Persisted, allow_pickle: bool) -> tuple[int, Iterator[tuple[Any, Any]]]:
    """Return the number of keys of a checkpoint, and an iterator over its keys and values."""
    managers = {read_header(path).managers for path in one.files.values()}
    missing = sorted(set(range(max(managers))) - one.files.keys())
    if missing:
        raise NoSuchDictionaryError(
            f"checkpoint {one.checkpoint} of {one.name!r} lacks the files of manager {', '.join(map(str, missing))}"
        )
    count = sum(not flags & BROADCAST for path in one.files.values() for _, flags, _ in records_in(path))
    return count, (pair for path in one.files.values() for pair in _records(path, allow_pickle))


def _records(path: Path, allow_pickle: bool) -> Iterator[tuple[Any, Any]]:
    loads = loader(allow_pickle, path)
    for key, flags, record in records_in(path):
        if not flags & BROADCAST:
            yield decode_key(key, loads), decode_value(record.head, partial(_blob, record.blobs), loads)


def _blob(blobs: list[Any], place: int, as_bytes: bool) -> object:
    return blobs[place] if as_bytes else bytearray(blobs[place])
