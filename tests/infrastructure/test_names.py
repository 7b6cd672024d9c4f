"""Names that programs for dragonhpc import: each exists, or docs/from_dragonhpc.md names a replacement."""

from __future__ import annotations

import ctypes
import fnmatch
import importlib
import logging
import pickle
import pkgutil
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from signatures import GUIDE, NAMES, bound, listed, shown

import dragon
from dragon.infrastructure.errors import NotSupportedError
from dragon.infrastructure.facts import DRAGON_BASE_DIR, PMIBackend
from dragon.infrastructure.policy import Policy
from dragon.native import Array, Process, Queue, Value
from dragon.native.process import ProcessTemplate

SIGNATURES = Path(__file__).with_name("dragonhpc_signatures.txt")
EXTRAS = {
    "fsspec",
    "joblib",
    "parsl",
    "pyarrow",
    "torch",
    "zarr",
}  # packages that modules need, and that not every installation has


def is_told_of(module: ModuleType, name: str) -> bool:
    """Return whether a module has a name, or an error for it that names the replacement."""
    try:
        getattr(module, name)
    except AttributeError as error:
        return "is not offered" in str(error)
    return True


def test_every_public_name_exists_or_is_in_the_guide() -> None:
    modules, names = listed()
    missing, stale, lacking = [], set(names), set[str]()
    for line in NAMES.read_text().splitlines()[1:]:
        module, _, defined = line.partition(":")
        if any(module == known or module.startswith(f"{known}.") for known in modules):
            continue
        try:
            here = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name in EXTRAS:
                lacking.add(error.name)
                stale -= {f"{module}.{name}" for name in defined.split()}
            else:
                missing.append(module)
            continue
        for name in defined.split():
            stale.discard(f"{module}.{name}")
            if not is_told_of(here, name) and f"{module}.{name}" not in names and f"{module}.*" not in names:
                missing.append(f"{module}.{name}")
    assert missing == []
    assert {name for name in stale if not name.endswith("*")} == set()  # listed, and no name of dragonhpc's
    if lacking:
        pytest.skip(f"modules that need {' and '.join(sorted(lacking))} were not looked at")


def split(shown_parameters: str) -> tuple[list[str], dict[str, bool], set[str]]:
    """Return names that may be given by position, which of all have a default, and the stars."""
    by_position: list[str] = []
    optional: dict[str, bool] = {}
    stars: set[str] = set()
    for parameter in filter(None, shown_parameters.split(", ")):
        name = parameter.rstrip("=")
        if name.startswith("*"):
            stars.add("only" if name == "*" else name[: name.count("*")])
            continue
        optional[name] = parameter.endswith("=")
        if not stars:
            by_position.append(name)
    return by_position, optional, stars


def unaccepted(there: str, here: str) -> str | None:
    """Return why a call with the parameters `there` fails with those `here`, or None."""
    positions, defaults, _ = split(there)
    own_positions, own_defaults, stars = split(here)
    if "**" not in stars and (unknown := [name for name in defaults if name not in own_defaults]):
        return f"no {', '.join(unknown)}"
    if "*" not in stars and own_positions[: len(positions)] != positions:
        return "another order"
    needed = [name for name, optional in own_defaults.items() if not optional and defaults.get(name, True)]
    return f"needs {', '.join(needed)}" if needed else None


def test_what_the_examples_of_the_guide_lack_is_not_here() -> None:
    table = GUIDE.read_text().partition("## Examples of its guide")[2].partition("\n## ")[0]
    names = [name for name in re.findall(r"`([^`]+)`", table) if name.startswith("dragon.")]
    assert len(names) > 5
    for name in names:
        with pytest.raises((ImportError, AttributeError)):
            pkgutil.resolve_name(name)


def differing() -> list[str]:
    """Return the patterns of names in the guide's table of different parameters."""
    table = GUIDE.read_text().partition("## Parameters")[2]
    return [
        name
        for line in table.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([^`]+)`", line.split("|")[1])
    ]


def test_every_callable_takes_the_parameters_of_dragonhpc() -> None:
    faults = {}
    for line in SIGNATURES.read_text().splitlines()[1:]:
        name, _, there = line.removesuffix(")").partition("(")
        try:
            owner, _, last = name.rpartition(".")
            above, found = pkgutil.resolve_name(owner), pkgutil.resolve_name(name)
            if isinstance(found, types.MethodDescriptorType) or type(found).__name__.startswith("nb_"):
                continue  # of the core: some versions of Python show its parameters, others do not
            here = shown((bound(above, last) if isinstance(above, type) else None) or found)
        except ImportError as error:
            if error.name in EXTRAS:
                continue
            raise
        except AttributeError as error:
            if "is not offered" not in str(error):
                faults[name] = "missing"
            continue
        except ValueError:
            continue
        if fault := unaccepted(there, here):
            faults[name] = f"{fault}: ({there}) there, ({here}) here"
    matched = {pattern: fnmatch.filter(faults, pattern) for pattern in differing()}
    allowed = {name for names in matched.values() for name in names}
    assert {name: fault for name, fault in faults.items() if name not in allowed} == {}
    assert [pattern for pattern, names in matched.items() if not names] == []


@pytest.mark.parametrize(
    "expression",
    [
        "dragon.native.process_group.ProcessGroup",
        "dragon.mpbridge.queues.DragonQueue",
        "dragon.data.ddict.ddict.DDictFullError",
        "dragon.globalservices.channel.create",
        "dragon.infrastructure.policy.Policy",
        "dragon.workflows.batch.batch.TaskNotReadyError",
        "dragon.telemetry.analysis.AnalysisClient",
        "dragon.utils.get_local_kv",
        "dragon.channels.Channel",
        "dragon.rc.DragonError",
        "dragon.ai.collective_group.CollectiveGroup",
    ],
)
def test_the_packages_of_dragon_are_available_after_import_dragon(expression: str) -> None:
    code = f"import dragon; {expression}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    for module in (
        dragon,
        importlib.import_module("dragon.native"),
        importlib.import_module("dragon.data.ddict.ddict"),
    ):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            getattr(module, "nothing")  # noqa: B009


def test_the_classes_of_mpbridge_have_their_names_of_dragonhpc() -> None:
    from dragon import mpbridge
    from dragon.mpbridge import context, pool, process, queues, sharedctypes, synchronize

    assert (queues.DragonQueue, queues.DragonJoinableQueue) == (queues.Queue, queues.JoinableQueue)
    assert (synchronize.DragonLock, synchronize.DragonCondition) == (synchronize.Lock, synchronize.Condition)
    assert synchronize.BrokenBarrierError is importlib.import_module("threading").BrokenBarrierError
    assert (sharedctypes.DragonArray, sharedctypes.DragonValue) == (sharedctypes.Array, sharedctypes.Value)
    assert process.DragonProcess is context.DragonProcess is mpbridge.DragonProcess
    assert (mpbridge.DragonContext, mpbridge.DragonPool) == (context.DragonContext, pool.DragonPool)
    assert (mpbridge.DragonQueue, mpbridge.DragonPopen) == (queues.Queue, process.DragonPopen)
    assert process.DragonPopen.__name__ == "Popen"


def test_a_name_that_is_not_offered_can_be_asked_for() -> None:
    channels = importlib.import_module("dragon.channels")
    memory = importlib.import_module("dragon.managed_memory")
    assert not hasattr(channels, "discard_gateways")
    assert not hasattr(memory.MemoryPool.default(), "register")
    with pytest.raises(ImportError, match="discard_gateways"):
        exec("from dragon.channels import discard_gateways")


def test_the_calling_process_has_its_names_of_dragonhpc() -> None:
    from dragon.globalservices import process
    from dragon.infrastructure.parameters import this_process

    assert process.this_process is this_process


def test_the_heap_of_multiprocessing_is_available_after_a_lock_was_made() -> None:
    code = """
import dragon, multiprocessing
multiprocessing.set_start_method("dragon")
multiprocessing.Lock()
multiprocessing.heap.Arena
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_process_classes_have_constants_for_streams() -> None:
    for kind in (Process, ProcessTemplate):
        assert (kind.PIPE, kind.STDOUT, kind.DEVNULL) == (-1, -2, -3)
    process = Process("true", ident="named")
    assert (process.ident, Process("true").ident) == ("named", None)
    shown = Process("echo", ["text"], stdout=Process.PIPE)
    shown.start()
    assert shown.stdout_conn is not None
    assert shown.stdout_conn.recv() == "text\n"
    shown.join()


def test_a_single_device_number_becomes_a_list() -> None:
    assert Policy(cpu_affinity=0).cpu_affinity == [0]  # type: ignore[arg-type]
    assert Policy(gpu_affinity=1).gpu_affinity == [1]  # type: ignore[arg-type]


def test_a_pmi_backend_is_found_by_its_name() -> None:
    assert PMIBackend.from_str("PMIX") == PMIBackend.PMIX
    assert PMIBackend.from_str("None") is PMIBackend.from_str(None) is None
    with pytest.raises(ValueError, match="'pigeon' is not a valid PMIBackend: there are 'cray'"):
        PMIBackend.from_str("pigeon")


def put_value(queue: Queue) -> None:
    from dragon.utils import get_local_kv, host_id, set_local_kv

    set_local_kv("from the child", "ä")
    queue.put((get_local_kv("from the parent"), host_id()))


def test_processes_of_a_node_share_key_value_pairs() -> None:
    from dragon.utils import b64decode, b64encode, get_local_kv, hash, host_id, set_local_kv

    queue = Queue()
    set_local_kv("from the parent", "x" * 100_000)
    process = Process(put_value, (queue,))
    process.start()
    assert get_local_kv("from the child", timeout=60) == "ä"
    assert queue.get(timeout=60) == ("x" * 100_000, host_id())
    process.join()
    with pytest.raises(KeyError):
        get_local_kv("from nobody", timeout=0.01)
    assert b64decode(b64encode(b"\0\1")) == b"\0\1"
    assert hash(b"abc") == hash(b"abc") != hash(b"abd")


def test_policies_are_evaluated_without_starting_processes() -> None:
    from dragon.globalservices import node
    from dragon.globalservices.policy_eval import PolicyEvaluator

    host = node.query_all()[0].host_name
    first, second = PolicyEvaluator(node.query_all(), Policy(cpu_affinity=[0])).evaluate(
        [Policy(), Policy(host_name=host)]
    )
    assert (first.cpu_core, first.node_specified, second.node_specified) == ([0], False, True)
    assert second.host_name == host
    with pytest.raises(ValueError, match="nowhere"):
        PolicyEvaluator().evaluate([Policy(host_name="nowhere")])


def test_setup_of_the_log_uses_the_loggers_of_python(tmp_path: Path) -> None:
    from dragon.dlogging.util import DragonLoggingServices, setup_BE_logging

    before = logging.getLogger().handlers[:]
    level, name = setup_BE_logging(DragonLoggingServices.TEST, fname=str(tmp_path / "log"))
    assert (level, name) == (logging.getLogger("TEST").getEffectiveLevel(), str(tmp_path / "log"))
    for handler in logging.getLogger().handlers:
        if handler not in before:
            logging.getLogger().removeHandler(handler)
            handler.close()


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: importlib.import_module("dragon.ai.inference").Inference(None), "vLLM"),
        (lambda: importlib.import_module("dragon.telemetry.collector").Collector({}), "Telemetry"),
    ],
)
def test_the_error_for_an_unsupported_class_names_the_replacement(make: Callable[[], object], advice: str) -> None:
    with pytest.raises(NotSupportedError, match=advice):
        make()


def test_the_description_of_gpus_and_the_folder_of_the_package_are_available() -> None:
    from dragon.infrastructure.gpu_desc import AcceleratorDescriptor, find_accelerators

    found = find_accelerators()
    assert AcceleratorDescriptor.from_sdict(found.get_sdict()) == found
    assert Path(DRAGON_BASE_DIR, "native").is_dir()


# ---- values and arrays of any type


class Point(ctypes.Structure):
    _fields_ = (("x", ctypes.c_double), ("y", ctypes.c_int))


class Named(ctypes.Structure):
    _fields_ = (("point", Point), ("numbers", ctypes.c_int * 3))


def change(point: Any, points: Any, named: Any, queue: Queue) -> None:
    point.x = 5
    points[1].y = 7
    named.point.y = 8
    named.numbers[2] = 9
    queue.put((point.x, points[0].x, len(points)))


def test_structures_are_shared_between_processes() -> None:
    point, points, named, queue = Value(Point, (1.5, 2)), Array(Point, [(1, 2), (3, 4)]), Value(Named), Queue()
    process = Process(change, (point, points, named, queue))
    process.start()
    assert queue.get(timeout=60) == (5, 1, 2)
    process.join()
    assert (point.x, points[1].y, named.point.y, list(named.numbers)) == (5, 7, 8, [0, 0, 9])
    point.value = Point(3, 4)
    assert (point.value.x, point.value.y) == (3, 4)
    point.value = (6, 7)
    assert Value(Point, point.value).y == 7


@pytest.mark.parametrize(
    "kind", [ctypes.c_bool, ctypes.c_char, ctypes.c_wchar, ctypes.c_longdouble, ctypes.c_int8, ctypes.c_int * 4, Point]
)
def test_values_and_arrays_of_any_type_are_pickled(kind: Any) -> None:
    value, array = pickle.loads(pickle.dumps(Value(kind))), pickle.loads(pickle.dumps(Array(kind, 3)))
    assert len(array) == 3
    assert type(array.get_obj())._type_ is kind
    assert type(value.get_obj()) is kind


def test_structures_that_are_defined_in_a_function_can_be_sent() -> None:
    class Bits(ctypes.Structure):
        _fields_ = (("low", ctypes.c_uint, 4), ("high", ctypes.c_uint, 4), ("points", Point * 2))

    queue = Queue()
    value, array = Value(Bits, (3, 9)), Array(Bits, 2)
    queue.put((value, array))
    got, others = queue.get(timeout=60)
    got.low = 7
    others[1].points[0].y = 5
    assert (value.low, value.high, array[1].points[0].y) == (7, 9, 5)
