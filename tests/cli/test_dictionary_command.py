"""`dragon ddict`: lists and exports dictionaries of runs and of folders."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import numpy as np
import pytest
from hanging import Program, running

from conftest import Site
from dragon.data.plain_files import read_folder

pytestmark = pytest.mark.xdist_group("dictionaries of a run")  # which is started once

HOLDING = """
    import json, os, sys, time
    import numpy as np
    from dragon.data.ddict import DDict, PosixCheckpointPersister
    from dragon.native.machine import System

    class Own:
        pass

    if __name__ == "__main__":
        nodes = System().nnodes
        weights = DDict(2, nodes, 2**25, name="weights", working_set_size=2, persist_path="files", persist_count=-1,
                        persister_class=PosixCheckpointPersister)
        weights.update({f"layer {i}": np.full(20_000, i, dtype="f4") for i in range(20)})
        weights.persist()
        weights.checkpoint()
        weights["layer 0"] = np.zeros(3, dtype="f4")
        weights.persist()
        words = DDict(1, 1, 2**22, name="words")
        words.update({"one": "1", "two": "2"})
        mixed = DDict(1, 1, 2**22, name="mixed")
        mixed.update({1: None, "raw": b"bytes", (2, "x"): [1]})
        own = DDict(1, 1, 2**22, name="own")
        own["key"] = Own()
        print(json.dumps({"head": os.getpid()}), flush=True)
        while "stop" not in words:
            time.sleep(0.05)
        print(json.dumps({key: str(value) for key, value in mixed.items() if isinstance(key, str)}), flush=True)
        time.sleep(1000)
"""


@pytest.fixture(scope="module")
def program(shared_site: Site) -> Iterator[Program]:
    with running(shared_site, HOLDING, "--nodes", "2") as started:
        yield started


@pytest.fixture
def site(program: Program) -> Site:
    """The place of the run that the tests share, in the order in which they are here."""
    return program.site


def ddict(site: Site, *words: str, fails: bool = False) -> str:
    done = site.dragon("ddict", *words)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def test_ls_and_stat_show_the_dictionaries_of_a_run(site: Site, program: Program) -> None:
    name = program.name
    lines = site.dragon("ddict", "ls").stdout.splitlines()  # of all runs on this machine, not only of these tests
    assert lines[0].split() == ["RUN", "NAME", "MANAGERS", "NODES", "KEYS", "USED", "TOTAL"]
    rows = [line.split() for line in lines[1:] if line.startswith(name)]
    assert [row[1:5] for row in rows] == [
        ["mixed", "1", "1", "3"],
        ["own", "1", "1", "1"],
        ["weights", "4", "2", "20"],
        ["words", "1", "1", "2"],
    ]
    found = json.loads(ddict(site, "ls", name, "--json"))
    assert [one["name"] for one in found] == ["mixed", "own", "weights", "words"]
    weights = json.loads(ddict(site, "stat", "weights", "--run", name, "--json"))
    assert (weights["keys"], weights["checkpoints"], len(weights["managers"])) == (20, [0, 1], 4)
    assert sum(manager["keys"] for manager in weights["managers"]) == 20
    assert {manager["node"] for manager in weights["managers"]} == {0, 1}
    text = ddict(site, "stat", "weigh", "--run", name)
    assert text.startswith(f"weights of run {name}: checkpoints 0 to 1, 20 keys, ")
    assert len(text.splitlines()) == 6


def test_tables_can_be_dumped_and_loaded(site: Site, program: Program) -> None:
    pytest.importorskip("pyarrow")
    from dragon.data.arrow import read_table, write_table

    run = ("--run", program.name)
    for name in ("w.parquet", "w.arrow"):
        assert ddict(site, "dump", "weights", name, *run) == f"20 keys are in {name}\n"
        found = dict(read_table(site.folder / name)[1])
        assert found["layer 7"].tolist() == [7.0] * 20_000
        assert found["layer 0"].tolist() == [0.0] * 3
    ddict(site, "dump", "weights", "old.arrow", "--checkpoint", "0", *run)
    assert len(dict(read_table(site.folder / "old.arrow")[1])["layer 0"]) == 20_000
    write_table(site.folder / "new.parquet", {"three": "3", "two": "II", "four": "4"}.items)
    assert ddict(site, "load", "words", "new.parquet", *run) == "put 3 keys into words\n"
    ddict(site, "dump", "words", "words.arrow", *run)
    assert dict(read_table(site.folder / "words.arrow")[1]) == {"one": "1", "two": "II", "three": "3", "four": "4"}
    ddict(site, "dump", "mixed", "mixed.parquet", *run)
    assert "--allow-pickle" in ddict(site, "load", "mixed", "mixed.parquet", *run, fails=True)
    ddict(site, "load", "mixed", "mixed.parquet", "--allow-pickle", *run)


def test_folders_can_be_dumped_and_loaded(site: Site, program: Program) -> None:
    run = ("--run", program.name)
    assert ddict(site, "dump", "mixed", "out/", *run) == "3 keys are in out\n"
    assert dict(read_folder(site.folder / "out", allow_pickle=True)[1]) == {1: None, "raw": b"bytes", (2, "x"): [1]}
    assert "is not empty" in ddict(site, "dump", "mixed", "out", *run, fails=True)
    (site.folder / "in").mkdir()
    (site.folder / "in" / "raw").write_bytes(b"other")
    ddict(site, "load", "mixed", "in", *run)
    (site.folder / "in" / "raw").rename(site.folder / "in" / "stop")
    ddict(site, "load", "words", "in", *run)
    assert program.process.stdout is not None
    assert json.loads(program.process.stdout.readline()) == {"raw": "b'other'"}  # the program sees it


def test_persisted_dictionaries_are_shown_and_dumped(site: Site, program: Program) -> None:
    files = ("--persisted", "files")
    assert [line.split()[:3] for line in ddict(site, "ls", *files).splitlines()] == [
        ["NAME", "CHECKPOINT", "MANAGERS"],
        ["weights", "0", "4"],
        ["weights", "1", "4"],
    ]
    stat = json.loads(ddict(site, "stat", "weights", *files, "--json"))
    assert (stat["checkpoint"], sum(file["keys"] for file in stat["files"])) == (1, 20)
    assert "all files are whole" in ddict(site, "stat", "weights", "--checkpoint", "0", *files)
    assert "--allow-pickle" in ddict(site, "dump", "weights", "w", *files, fails=True)
    ddict(site, "dump", "weights", "again", "--allow-pickle", *files)
    found = dict(read_folder(site.folder / "again")[1])
    assert (len(found), found["layer 0"].tolist()) == (20, [0.0] * 3)
    assert np.array_equal(found["layer 9"], np.full(20_000, 9, dtype="f4"))
    assert "there is weights" in ddict(site, "stat", "other", *files, fails=True)
    assert "has no checkpoint 5 there, but 0, 1" in ddict(
        site, "stat", "weights", "--checkpoint", "5", *files, fails=True
    )
    (file,) = (site.folder / "files").glob("weights_2_1.*")
    file.write_bytes(b"damaged")
    assert "is not a checkpoint of a dictionary" in ddict(site, "stat", "weights", *files, fails=True)
    file.unlink()
    assert "lacks the files of manager 2" in ddict(site, "dump", "weights", "x", "--allow-pickle", *files, fails=True)


def test_errors_name_the_existing_dictionaries_and_checkpoints(site: Site, program: Program) -> None:
    run = ("--run", program.name)
    assert "there is no dictionary 'x'; there is mixed of run" in ddict(site, "stat", "x", *run, fails=True)
    assert "'w' may be any of these: weights of run" in ddict(site, "stat", "w", *run, fails=True)
    assert "that of a folder in /" in ddict(site, "dump", "words", "words.csv", *run, fails=True)
    assert "/dev/full is not a folder" in ddict(site, "dump", "words", "/dev/full", *run, fails=True)
    assert "there is no missing.arrow" in ddict(site, "load", "words", "missing.arrow", *run, fails=True)
    assert "holds checkpoint 0 to 1, not 7" in ddict(
        site, "dump", "weights", "x", "--checkpoint", "7", *run, fails=True
    )
    assert "holds checkpoint 0 to 1, not 7" in ddict(site, "stat", "weights", "--checkpoint", "7", *run, fails=True)
    assert "set PYTHONPATH to the folder" in ddict(site, "dump", "own", "x/", *run, fails=True)
    assert "is not a folder" in ddict(site, "ls", "--persisted", "nowhere", fails=True)
    assert "you have no run" in ddict(site, "ls", "nonsense", fails=True)


def test_the_help_has_examples(site: Site) -> None:
    text = ddict(site, "--help")
    assert "dragon ddict dump weights weights.parquet" in text
    assert "dragon ddict" in site.dragon("--help").stdout


def test_the_error_names_a_run_that_hangs(site: Site, program: Program) -> None:
    import os
    import signal

    agent = program.ask("ps")["run"]["nodes"][0]["agent"]
    name = program.name
    os.kill(agent, signal.SIGSTOP)
    try:
        done: subprocess.CompletedProcess[str] = site.dragon("ddict", "ls", name)
    finally:
        os.kill(agent, signal.SIGCONT)
    assert done.returncode == 1
    assert f"run {name} does not answer; `dragon doctor {name}` shows why" in done.stderr
