"""RADICAL-Pilot, whose executor for dragon runs tasks of its pilots in a run that it starts itself."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from conftest import Site

ENVIRONMENT = Path(sys.prefix) / "peers" / "radical.pilot"

# Its resource `local.dragon`, with the launch method that takes functions and tasks of several ranks.
RESOURCE = {
    "dragon": {
        "default_schema": "local",
        "schemas": {"local": {"job_manager_endpoint": "fork://localhost", "filesystem_endpoint": "file://localhost"}},
        "default_remote_workdir": "$HOME",
        "resource_manager": "FORK",
        "agent_config": "default",
        "agent_scheduler": "CONTINUOUS",
        "agent_spawner": "DRAGON",
        "launch_methods": {"order": ["DRAGON"], "DRAGON": {}},
        "rp_version": "installed",
        "virtenv_mode": "local",
        "python_dist": "default",
        "cores_per_node": 4,
        "fake_resources": True,
    }
}

PROGRAM = """
    import radical.pilot as rp


    @rp.pythontask
    def square(number):
        return number**2


    def describe(**fields):
        return rp.TaskDescription(fields)


    if __name__ == "__main__":
        session = rp.Session()
        try:
            pilots, tasks = rp.PilotManager(session=session), rp.TaskManager(session=session)
            description = {"resource": "site.dragon", "runtime": 5, "cores": 2, "exit_on_error": False}
            tasks.add_pilots(pilots.submit_pilots(rp.PilotDescription(description)))
            programs = tasks.submit_tasks(
                [describe(executable="/bin/echo", arguments=[str(number)]) for number in range(4)]
            )
            functions = tasks.submit_tasks(
                [describe(mode=rp.TASK_FUNCTION, function=square(number)) for number in range(4)]
            )
            ranks = tasks.submit_tasks(describe(executable="/bin/echo", arguments=["rank"], ranks=2))
            failing = tasks.submit_tasks(describe(executable="/bin/false"))
            tasks.wait_tasks(timeout=120)
            print([task.stdout.strip() for task in programs])
            print([task.return_value for task in functions])
            print(ranks.state, ranks.stdout.split())
            print(failing.state, failing.exit_code)
        finally:
            session.close(download=False)
"""


@pytest.mark.timeout(480)
def test_a_pilot_runs_tasks(site: Site) -> None:
    if not (ENVIRONMENT / "ready").exists():
        pytest.skip(f"there is no RADICAL-Pilot in {ENVIRONMENT} (make programs)")
    configs = site.folder / ".radical" / "pilot" / "configs"
    configs.mkdir(parents=True)
    (configs / "resource_site.json").write_text(json.dumps(RESOURCE))
    # As in the activated environment.
    environment = {
        "HOME": str(site.folder),
        "PWD": str(site.folder),
        "TMPDIR": str(site.folder),
        "VIRTUAL_ENV": str(ENVIRONMENT),
        # It asks for names of addresses and gives its parts ten seconds to start: too few without a name server.
        "RES_OPTIONS": "timeout:1 attempts:1",
        "PATH": f"{ENVIRONMENT / 'bin'}:{os.environ['PATH']}",
    }
    try:
        done = site.run(ENVIRONMENT / "bin" / "python", site.write(PROGRAM), timeout=360, env=environment)
    finally:
        # Its agent does not end the run that it started; what a batch system ends with the job, the test does.
        commands = [pid for pid, line in site.processes() if f"{ENVIRONMENT}/bin/dragon -N" in line]
        if commands:
            os.kill(min(commands), signal.SIGTERM)
    assert done.returncode == 0, done.stderr
    assert commands
    assert [line for line in done.stdout.splitlines() if not line.startswith("\x1b")] == [
        "['0', '1', '2', '3']",
        "[0, 1, 4, 9]",
        "DONE ['rank', 'rank']",
        "FAILED 1",
    ]
