"""`dragon ddict`: lists, dumps and loads the distributed dictionaries of runs, and persisted checkpoints."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragon import runs
from dragon.cli import dictionaries
from dragon.cli.dictionaries import Live, NoSuchDictionaryError, Persisted
from dragon.commands import Parser, explained, table
from dragon.data import arrow, plain_files
from dragon.data.plain_files import progress
from dragon.infrastructure.errors import DragonError, RunEndedError
from dragon.shards.snapshot import read_header, records_in

if TYPE_CHECKING:
    from dragon.data.ddict import DDict

_EPILOG = """\
examples:
  dragon ddict ls                                 the dictionaries of your runs on this machine
  dragon ddict ls 3fa9c1                          those of one run (`dragon ps` lists runs)
  dragon ddict stat weights                       keys and memory of each of its managers
  dragon ddict dump weights weights.parquet       all keys and values as a table; .arrow and .feather too
  dragon ddict dump weights weights/              as a folder with a file for each key
  dragon ddict load weights weights.parquet       put the content of a table or a folder into a live dictionary
  dragon ddict ls --persisted /scratch/ckpt       the checkpoints that were written to a folder
  dragon ddict dump weights w.arrow --persisted /scratch/ckpt --checkpoint 3

NAME is what the program gave as DDict(name=...), or the beginning of it. The program continues meanwhile. Values that
are not all numbers, text, bytes objects or one-dimensional arrays of one kind are pickled, and so are most values of
persisted files; pickles of a file are only read with --allow-pickle, because they can execute any code.
"""


def main(words: Sequence[str]) -> int:
    arguments = parser().parse_args(words)
    command: Callable[[argparse.Namespace], int] = arguments.command
    return explained("dragon ddict", lambda: command(arguments), DragonError, ValueError, ModuleNotFoundError)


def parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="dragon ddict",
        description="List distributed dictionaries, and write them to files or read them from files.",
        epilog=_EPILOG,
    )
    commands = result.add_subparsers(required=True, metavar="COMMAND")

    ls = commands.add_parser("ls", help="list dictionaries", description="List dictionaries.")
    ls.add_argument("run", nargs="?", metavar="RUN", help="the run whose dictionaries to list")
    ls.set_defaults(command=_ls)
    stat = commands.add_parser("stat", help="keys and memory of each manager", description="Describe a dictionary.")
    stat.set_defaults(command=_stat)
    dump = commands.add_parser("dump", help="write a dictionary to a file", description="Write keys and values.")
    dump.set_defaults(command=_dump)
    what = "put the content of a file into a dictionary"
    load = commands.add_parser("load", help=what, description="Put keys and values of a file.")
    load.set_defaults(command=_load)
    for command in (stat, dump, load):
        command.add_argument("name", metavar="NAME", help="the dictionary")
        if command is not stat:
            command.add_argument("file", metavar="FILE", help=f"{', '.join(arrow.SUFFIXES)}, or a folder")
        command.add_argument("--run", metavar="RUN", help="the run, if several have a dictionary of that name")
    for command in (ls, stat, dump):
        command.add_argument("--persisted", type=Path, metavar="FOLDER", help="use the checkpoints in a folder")
    for command in (stat, dump, load):
        command.add_argument("--checkpoint", type=int, metavar="N", help="which checkpoint (default: the newest)")
    for command in (dump, load):
        command.add_argument("--allow-pickle", action="store_true", help="read pickles of files that you trust")
    for command in (ls, stat):
        command.add_argument("--json", action="store_true", help="print JSON")
    return result


# ---- ls, stat


def _ls(arguments: argparse.Namespace) -> int:
    if arguments.persisted is not None:
        persisted = dictionaries.persisted_in(arguments.persisted)
        rows = [[one.name, str(one.checkpoint), str(len(one.files)), _size(one.size)] for one in persisted]
        nothing = f"there are no checkpoints of dictionaries in {arguments.persisted}"
        _print(arguments, list(map(_plain_persisted, persisted)), "NAME CHECKPOINT MANAGERS BYTES", rows, nothing)
        return 0
    found, troubles = _live(arguments.run)
    rows = [
        [one.run, one.name, *map(str, (len(one.managers), len(set(one.nodes)), one.keys)), *map(_size, one.sizes)]
        for one in found
    ]
    nothing = "there are no dictionaries in your runs on this machine"
    _print(arguments, list(map(_plain, found)), "RUN NAME MANAGERS NODES KEYS USED TOTAL", rows, nothing)
    for trouble in troubles:
        print(f"dragon ddict: {trouble}", file=sys.stderr)
    return 1 if troubles else 0


def _print(arguments: argparse.Namespace, plain: object, header: str, rows: list[list[str]], nothing: str) -> None:
    if arguments.json:
        print(json.dumps(plain, indent=2))
    else:
        print(table([header.split(), *rows]) if rows else nothing)


def _stat(arguments: argparse.Namespace) -> int:
    if arguments.persisted is not None:
        return _stat_persisted(_chosen_persisted(arguments), arguments.json)
    one = _chosen(arguments)
    if arguments.checkpoint is not None:
        dictionaries.check_held(one, arguments.checkpoint)
    if arguments.json:
        print(json.dumps(_plain(one), indent=2))
        return 0
    oldest, newest = one.checkpoints
    held = f"checkpoint {newest}" if oldest == newest else f"checkpoints {oldest} to {newest}"
    used, total = map(_size, one.sizes)
    notes = [held, f"{one.keys} keys", f"{used} of {total} used"]
    notes += [f"{one.replicas} replicas"] * (one.replicas > 1) + ["frozen"] * one.frozen
    print(f"{one.name} of run {one.run}: {', '.join(notes)}")
    rows = [["MANAGER", "NODE", "HOST", "KEYS", "USED", "TOTAL", "FULL"]]
    for node, manager in zip(one.nodes, one.managers, strict=True):
        where, sizes = manager.hostname, (manager.total_used_bytes, manager.total_bytes)
        about = str(manager.manager_id), str(node), where, str(manager.num_keys)
        rows.append([*about, *map(_size, sizes), f"{manager.pool_utilization:.0f}%"])
    print(table(rows))
    return 0


def _stat_persisted(one: Persisted, as_json: bool) -> int:
    files: list[dict[str, Any]] = []
    for manager, path in sorted(one.files.items()):
        header = read_header(path)  # compares the checksum
        keys = sum(1 for _ in records_in(path))
        files.append({"manager": f"{manager} of {header.managers}", "keys": keys, "file": str(path)})
    if as_json:
        print(json.dumps({**_plain_persisted(one), "files": files}, indent=2))
        return 0
    print(f"{one.name}, checkpoint {one.checkpoint}: {_size(one.size)}, all files are whole")
    lines = [[of["manager"], str(of["keys"]), _size(Path(of["file"]).stat().st_size), of["file"]] for of in files]
    print(table([["MANAGER", "KEYS", "BYTES", "FILE"], *lines]))
    return 0


def _plain(one: Live) -> dict[str, Any]:
    managers = [
        {
            "manager": manager.manager_id,
            "node": node,
            "host": manager.hostname,
            "keys": manager.num_keys,
            "used": manager.total_used_bytes,
            "total": manager.total_bytes,
        }
        for node, manager in zip(one.nodes, one.managers, strict=True)
    ]
    sums = {"keys": one.keys, "used": one.sizes[0], "total": one.sizes[1]}
    names = ("run", "name", "replicas", "checkpoints", "frozen")
    return {**{name: getattr(one, name) for name in names}, **sums, "managers": managers}


def _plain_persisted(one: Persisted) -> dict[str, Any]:
    return {"name": one.name, "checkpoint": one.checkpoint, "managers": len(one.files), "bytes": one.size}


def _size(count: int) -> str:
    number, unit = float(count), "B"
    for larger in ("K", "M", "G", "T"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{count}B" if unit == "B" else f"{number:.1f}{unit}"


# ---- dump, load


def _dump(arguments: argparse.Namespace) -> int:
    path = _checked(arguments.file)
    pairs: Callable[[], Iterable[tuple[Any, Any]]]
    if arguments.persisted is not None:
        one = _chosen_persisted(arguments)
        count = dictionaries.pairs_in(one, arguments.allow_pickle)[0]

        def pairs() -> Iterable[tuple[Any, Any]]:
            return dictionaries.pairs_in(one, arguments.allow_pickle)[1]
    else:
        ddict = _opened(arguments)
        count, pairs = len(ddict), ddict.items

    if path.suffix in arrow.SUFFIXES:
        written = arrow.write_table(path, lambda: progress(dictionaries.readable(pairs()), "keys", count))
    else:
        written = plain_files.write_folder(path, progress(dictionaries.readable(pairs()), "keys", count))
    print(f"{written} keys are in {path}")
    return 0


def _load(arguments: argparse.Namespace) -> int:
    path = _checked(arguments.file)
    read = arrow.read_table if path.suffix in arrow.SUFFIXES else plain_files.read_folder
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}")
    count, pairs = read(path, arguments.allow_pickle)
    ddict = _opened(arguments)
    try:
        put = dictionaries.put_all(ddict, progress(dictionaries.readable(pairs), "keys", count))
    finally:
        ddict.detach()
    print(f"put {put} keys into {ddict.get_name()}")
    return 0


def _checked(file: str) -> Path:
    """Return the file or folder to write or read. Raises ValueError for an unknown suffix."""
    path = Path(file)
    known = path.suffix in arrow.SUFFIXES
    if path.is_dir() or file.endswith("/") or known or not path.suffix:
        return path
    raise ValueError(f"{file}: the name of a table ends in {', '.join(arrow.SUFFIXES)}, that of a folder in /")


# ---- which one is meant


def _live(word: str | None) -> tuple[list[Live], list[str]]:
    """Return the dictionaries of one run or all, and the errors of runs that could not be read."""
    found = runs.find()
    chosen = found if word is None else [runs.choose(word, found)]
    live: list[Live] = []
    troubles: list[str] = []
    for run in chosen:
        try:
            live += dictionaries.in_run(run)
        except RunEndedError:
            continue  # it has ended meanwhile
        except DragonError as error:
            troubles.append(f"run {run.name}: {error}")
    return live, troubles


def _chosen(arguments: argparse.Namespace) -> Live:
    found, troubles = _live(arguments.run)
    try:
        return dictionaries.choose(arguments.name, found)
    except NoSuchDictionaryError as error:
        raise NoSuchDictionaryError("; ".join([str(error), *troubles])) from None


def _opened(arguments: argparse.Namespace) -> DDict:
    """Return a handle of the selected dictionary. This process joins its run."""
    one = _chosen(arguments)
    dictionaries.join(runs.choose(one.run, runs.find()))
    return dictionaries.open_live(one, arguments.checkpoint)


def _chosen_persisted(arguments: argparse.Namespace) -> Persisted:
    found = dictionaries.persisted_in(arguments.persisted)
    named = [one for one in found if one.name == arguments.name]
    if not named:
        there = ", ".join(sorted({one.name for one in found})) or "none"
        raise NoSuchDictionaryError(
            f"there is no dictionary {arguments.name!r} in {arguments.persisted}; there is {there}"
        )
    if arguments.checkpoint is None:
        return named[-1]
    for one in named:
        if one.checkpoint == arguments.checkpoint:
            return one
    there = ", ".join(str(one.checkpoint) for one in named)
    raise NoSuchDictionaryError(f"{arguments.name!r} has no checkpoint {arguments.checkpoint} there, but {there}")
