"""The options of `dragon` that choose the nodes of a run, and answers to those that have no effect."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Iterator

from dragon.commands import at_least, checked, need
from dragon.infrastructure import variables
from dragon.launcher.choice import WLMS, Wanted

_LAST_PORT = 65535

count = at_least(0)
"""Convert an option's value to a whole number of at least 0."""
seconds = checked(float, lambda number: 0 < number < math.inf, "a number of seconds above 0")
"""Convert an option's value to a time in seconds above 0."""
port = checked(int, lambda number: 0 <= number <= _LAST_PORT, f"a TCP port: 0 to {_LAST_PORT}")
"""Convert an option's value to a TCP port; 0 for any."""
_url = checked(str, lambda text: text.startswith(("http://", "https://")), "an address like http://HOST:4318")


def add_telemetry(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("telemetry").add_argument
    level = (
        "what to measure while the program runs: 0 nothing (the default without the options below), 1 the program's "
        "own metrics, 2 nodes, 3 GPUs, 4 processes too, 5 what they wait for (`dragon trace`)"
    )
    levels = range(variables.HIGHEST_TELEMETRY_LEVEL + 1)
    add("-T", "--telemetry-level", type=int, choices=levels, metavar="LEVEL", help=level)
    served = "TCP port of this machine at which metrics are served to Prometheus; 0: any free port"
    add("--telemetry-port", type=port, metavar="PORT", help=served)
    recorded = (
        "write measurements to files in this directory, at level 4 unless another is given; `dragon dashboard DIR` "
        "makes a page of them"
    )
    add("--telemetry", metavar="DIR", help=recorded)
    collector = "send the metrics to this OpenTelemetry collector, http://HOST:4318 for instance, every ten seconds"
    add("--otlp", type=_url, metavar="URL", help=collector)
    page = (
        "serve a page that shows the run, on this machine; its address is printed on stderr. Measures at level 4 "
        "unless -T is given; the port is that of --telemetry-port, if given"
    )
    add("--dashboard", action="store_true", help=page)


def apply_telemetry(arguments: argparse.Namespace) -> None:
    """Set the run's environment variables from the options. Raises ModuleNotFoundError."""
    told = {
        variables.TELEMETRY_LEVEL: arguments.telemetry_level,
        variables.TELEMETRY_PORT: arguments.telemetry_port,
        variables.TELEMETRY_DIRECTORY: arguments.telemetry,
        variables.OTLP: arguments.otlp,
        variables.DASHBOARD: "1" if arguments.dashboard else None,
    }
    if arguments.telemetry is not None:
        need("--telemetry", "pyarrow", "telemetry")
    if arguments.otlp is not None:
        need("--otlp", "opentelemetry.exporter", "otlp")
    os.environ.update({name: str(value) for name, value in told.items() if value is not None})
    directory = variables.telemetry_directory()
    if directory is not None:
        # Absolute, since agents of other nodes have other working directories.
        os.environ[variables.TELEMETRY_DIRECTORY] = str(directory)


SINGLE, SEVERAL = "DRAGON_SINGLE_NODE_OVERRIDE", "DRAGON_MULTI_NODE_OVERRIDE"
HOST_FILE = "DRAGON_RUN_NODEFILE"
_BY_SSH = ("ssh", "drun")


def add_options(parser: argparse.ArgumentParser) -> None:
    nodes = parser.add_argument_group("nodes")
    add_count_and_shape(nodes)
    add_hosts(nodes)
    add = nodes.add_mutually_exclusive_group().add_argument
    add("-s", "--single-node-override", action="store_true", help="run on this node only, in an allocation too")
    add("--multi-node-override", action="store_true", help="use the allocation even if it has only one node")
    add = parser.add_argument_group("failure").add_argument
    add("-r", "--resilient", action="store_true", help="restart the program on the other nodes when one is lost")
    add("-i", "--idle", type=count, default=0, metavar="N", help="spare nodes kept for --resilient")
    add("-e", "--exhaust-resources", action="store_true", help="with -r: restart until no node is left")
    grace = "seconds between SIGTERM and SIGKILL when the run ends (default 3; 25 in Slurm and Kubernetes)"
    add("--grace", type=seconds, metavar="S", help=grace)
    network = parser.add_argument_group("network")
    add_network(network)
    add = network.add_argument
    add("--network-config", metavar="FILE", help="nodes as `dragon-network-config` wrote them")
    transport = (
        "transport of bulk data between nodes: tcp, encrypted; plain, TCP without encryption for a trusted network; "
        "ucx (default: ucx if it has an RDMA device, else tcp)"
    )
    add("-t", "--transport", choices=("tcp", "plain", "ucx", "hsta"), help=transport)
    ignored = parser.add_argument_group("accepted, without effect")
    ignored.add_argument("--overlay-port", metavar="PORT", help=argparse.SUPPRESS)
    ignored.add_argument("-o", "--overlay-transport", metavar="KIND", help=argparse.SUPPRESS)
    ignored.add_argument("-a", "--attachable", action="store_true", help=argparse.SUPPRESS)
    ignored.description = "--overlay-port, --overlay-transport, --attachable, --passphrase"


def add_count_and_shape(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    nodes = "nodes of the allocation or list to use (default: all); without one: simulate N nodes on this machine"
    add("-N", "--nodes", type=count, default=0, metavar="N", help=nodes)
    add("--cpus", type=count, metavar="N", help="CPUs that each simulated node claims")
    add("--gpus", type=count, metavar="N", help="GPUs that each simulated node claims")


def add_hosts(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-w", "--wlm", choices=WLMS, default="", help="where nodes come from (default: detected)")
    hosts = group.add_mutually_exclusive_group()
    listed = "run on these hosts, by ssh; ranges such as node[01-16] are expanded"
    hosts.add_argument("--hostlist", metavar="A,B,...", help=listed)
    hosts.add_argument("--hostfile", metavar="FILE", help="run on the hosts of a file, one per line, by ssh")
    add("--ssh-config-path", metavar="FILE", help="configuration for ssh instead of ~/.ssh/config")
    add("--private-key", metavar="FILE", help="key for ssh")
    add("--address", default="auto", metavar="A", help="with --wlm ray: address of the cluster (default: detected)")
    add("--passphrase", metavar="TEXT", help=argparse.SUPPRESS)


def add_network(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    prefix = "use network interfaces whose names begin with this pattern"
    add("--network-prefix", type=_pattern, default="", metavar="REGEX", help=prefix)
    listening = "TCP port at which the front end listens for its nodes (default: any free port)"
    add("-p", "--port", "--frontend-port", type=port, default=0, metavar="PORT", help=listening)
    within = "seconds within which nodes must join (60)"
    add("--join-timeout", type=seconds, default=60.0, metavar="S", help=within)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from error
    return text


def wanted(arguments: argparse.Namespace) -> Wanted:
    return Wanted(
        wlm=arguments.wlm,
        nodes=arguments.nodes,
        idle=arguments.idle,
        hosts=hosts(arguments),
        single=arguments.single_node_override or (_set(SINGLE) and not arguments.multi_node_override),
        several=arguments.multi_node_override or _set(SEVERAL),
        cpus=arguments.cpus,
        gpus=arguments.gpus,
        ssh_options=ssh_options(arguments),
        address=arguments.address,
    )


def _set(name: str) -> bool:
    return os.environ.get(name, "") not in ("", "0", "False")


def hosts(arguments: argparse.Namespace) -> list[str]:
    """Return the hosts that were named. Raises OSError or ValueError for unusable files and lists."""
    config = arguments.network_config
    by_ssh = arguments.wlm in _BY_SSH
    file = arguments.hostfile or (os.environ.get(HOST_FILE) if by_ssh and not config else None)
    if not (file or config or arguments.hostlist is not None):
        return []
    from dragon.launcher import slurm as listed

    if arguments.hostlist is not None:
        named = listed.unique(listed.expand(arguments.hostlist))
        if not named:
            raise ValueError(f"--hostlist {arguments.hostlist!r} names no hosts")
        return named
    return listed.read_host_file(file) if file else listed.read_network_config(str(config))


def ssh_options(arguments: argparse.Namespace) -> list[str]:
    config, key = arguments.ssh_config_path, arguments.private_key
    return [*(["-F", config] if config else []), *(["-i", key, "-o", "IdentitiesOnly=yes"] if key else [])]


def answers(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield a line for each given option that has no effect, with what is used instead."""
    if arguments.overlay_port:
        yield "--overlay-port: agents listen at free ports, and send each other the numbers"
    if arguments.overlay_transport:
        yield "--overlay-transport: control messages are sent over TCP with TLS"
    if arguments.transport == "hsta":
        yield "--transport hsta: not available; tcp is used"
    if arguments.attachable:
        yield "--attachable: no file is written; your programs on a node of the run join it with DRAGON_RUN"
    if arguments.passphrase:
        yield "--passphrase: it is visible to everybody in `ps`, and not used; load the key into ssh-agent"
    if arguments.address != "auto" and arguments.wlm != "ray":
        yield "--address: only used with --wlm ray"
    if arguments.wlm not in ("", *_BY_SSH) and (given := _host_option(arguments)):
        yield f"{given}: hosts are for ssh; with --wlm {arguments.wlm} they are not used"
    if arguments.network_config and (other := _host_option(arguments)) != "--network-config":
        yield f"--network-config: not used; the hosts are those of {other}"
    if arguments.exhaust_resources and not arguments.resilient:
        yield "--exhaust-resources: without --resilient nothing is restarted"


def _host_option(arguments: argparse.Namespace) -> str:
    """Return the option that names hosts; "" if none does."""
    given = {
        "--hostlist": arguments.hostlist,
        "--hostfile": arguments.hostfile,
        "--network-config": arguments.network_config,
    }
    return next((option for option, value in given.items() if value is not None), "")


def tell(lines: Iterator[str]) -> None:
    for line in lines:
        print(f"dragon: {line}", file=sys.stderr)
