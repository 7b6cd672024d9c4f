"""Clients observe the documented guarantees while processes, hosts and cables fail. run.py continues for hours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Site
from jepsen.nemesis import start_victims
from jepsen.rounds import round_of
from peers.ssh import SshHosts


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with start_victims(tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


@pytest.mark.parametrize("reads", ["linearizable", "default"])
def test_clients_observe_the_documented_guarantees_during_faults(
    site: Site, victims: SshHosts, tmp_path: Path, reads: str
) -> None:
    seed = f"{os.environ.get('JEPSEN_SEED', 'a')}-{reads}"
    print(f"seed {seed}")
    done = round_of(victims, site, tmp_path / seed, seed, 15, reads)
    print(done.summary())
    assert len(done.operations) > 100
    assert not done.faults, "\n".join(map(str, done.faults)) + f"\n{done.done}\n{done.said}"
