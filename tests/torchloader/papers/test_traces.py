"""Jobs from public traces, in their published formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torchloader_papers.traces import TraceError, read_trace, stretched

from torchloader.allocation.catalogue import policy
from torchloader.scheduling.application import Node
from torchloader.scheduling.scheduler import Scheduler
from torchloader.simulation.simulator import simulate

HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
7,uA,vcB,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
6,uX,vcJ,1,6,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0
8,uX,vcJ,0,6,1,COMPLETED,2020-06-09 18:42:01,2020-06-09 18:42:01,2020-06-10 04:55:09,36788,0
"""
POLLUX = """\
name,time,application,num_replicas,batch_size
cifar10-0,107,cifar10,6,2048
imagenet-11,1604,imagenet,32,6400
"""
PAI = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-1,12000,16384,1,1000,,LS,Running,100,1300,160
pod-2,88000,327680,8,1000,,Burstable,Succeeded,50,650,50
pod-3,8000,30517,0,0,,BE,Running,60,900,60
pod-4,11908,47104,1,1000,,BE,Pending,70,140,
"""
GAVEL = "ResNet-18 (batch size 32)\tpython3 main.py\t--num_steps\t1\t1104675\t6.000000\t4\n"
TRACES = Path(__file__).parents[1] / "traces"
PHILLY: list[dict[str, object]] = [
    {
        "status": "Pass",
        "vc": "v",
        "jobid": "application_1",
        "user": "u",
        "submitted_time": "2017-10-07 01:11:39",
        "attempts": [
            {
                "start_time": "2017-10-07 01:12:00",
                "end_time": "2017-10-07 01:13:00",
                "detail": [{"ip": ip, "gpus": ["gpu0", "gpu1"]} for ip in ("m1", "m2")],
            },
            {"start_time": "2017-10-07 01:14:00", "end_time": "None", "detail": []},
        ],
    },
    {"status": "Killed", "vc": "v", "jobid": "application_2", "user": "u", "submitted_time": "None", "attempts": []},
]
# Of each job the name, the arrival, the devices, and the seconds of its training. Jobs without devices, or that never
# ran, are left out.
FORMS: dict[str, tuple[str, list[tuple[str, float, int, float]]]] = {
    "helios": (HELIOS, [("6", 0, 1, 36848), ("7", 26, 4, 249)]),
    "pollux": (POLLUX, [("cifar10-0", 0, 6, 1800 / 6), ("imagenet-11", 1497, 32, 720_000 / 32)]),
    "sia": (POLLUX, [("cifar10-0", 0, 6, 1800 / 6), ("imagenet-11", 1497, 32, 720_000 / 32)]),
    "pai": (PAI, [("pod-2", 0, 8, 600), ("pod-1", 50, 1, 1140)]),
    "philly": (json.dumps(PHILLY), [("application_1", 0, 4, 60)]),
    "gavel": (GAVEL, [("resnet-18-1", 0, 4, 1_104_675 / 41.6 / 4)]),
}


@pytest.mark.parametrize("form", FORMS)
def test_traces_of_each_format_are_read(tmp_path: Path, form: str) -> None:
    content, expected = FORMS[form]
    (tmp_path / "workload-1").write_text(content)
    jobs = read_trace(tmp_path / "workload-1", form)
    assert [(job.spec.name, job.spec.arrival, job.spec.size) for job in jobs] == [each[:3] for each in expected]
    assert [job.shortest for job in jobs] == pytest.approx([each[3] for each in expected], rel=0.02)


def test_cores_and_networks_are_those_of_the_trace(tmp_path: Path) -> None:
    for form, content, told in (("helios", HELIOS, [6, 4]), ("pai", PAI, [11, 12])):
        (tmp_path / form).write_text(content)
        assert [job.spec.requested for job in read_trace(tmp_path / form, form)] == told
    for form, content, told in (("pollux", POLLUX, ["cifar10", "imagenet"]), ("gavel", GAVEL, ["resnet-18"])):
        (tmp_path / form).write_text(content)
        assert [job.spec.arch for job in read_trace(tmp_path / form, form)] == told


def test_policies_are_equal_on_a_trace_whose_jobs_need_few_cores() -> None:
    jobs = read_trace(TRACES / "pollux-workload-1.csv", "pollux")
    nodes = {f"node{number}": Node(16, (0, 1, 2, 3)) for number in range(16)}
    ours, fields = (simulate(jobs, nodes, Scheduler(policy(name))) for name in ("proportional", "gpu-proportional"))
    assert len(jobs) == 100
    assert ours.mean_completion == pytest.approx(fields.mean_completion, rel=0.001)


def test_cores_of_any_node_shorten_jobs_of_philly() -> None:
    jobs = read_trace(TRACES / "philly-2017-11-15.csv", "philly")
    nodes = {f"node{number}": Node(32, tuple(range(8))) for number in range(8)}
    schedulers = Scheduler(policy("proportional"), anywhere=True), Scheduler(policy("gpu-proportional"))
    ours, fields = (simulate(jobs, nodes, each) for each in schedulers)
    assert len(jobs) == 110
    assert ours.mean_completion < 0.85 * fields.mean_completion


def test_traces_of_gavel_are_read() -> None:
    jobs = read_trace(TRACES / "gavel-max-min-fairness.trace", "gavel")
    first, last = next(job for job in jobs if job.spec.name == "resnet-18-1"), jobs[-1]
    assert (len(jobs), first.spec.arrival, last.spec.arrival) == (60, 0, 15637)
    assert (first.spec.arch, first.spec.size, first.spec.batch) == ("resnet-18", 4, 4 * 128)
    assert first.shortest == pytest.approx(925_982 / 13.0 / 4, rel=0.01)


def test_drawn_attributes_depend_only_on_the_seed_and_the_name(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(HELIOS)
    assert read_trace(tmp_path / "log.csv", "helios", limit=1) == read_trace(tmp_path / "log.csv", "helios")[:1]
    assert read_trace(tmp_path / "log.csv", "helios", seed=1) != read_trace(tmp_path / "log.csv", "helios", seed=2)


@pytest.mark.parametrize(
    ("form", "content", "says"),
    [
        ("helios", HELIOS.replace("4,16", "four,16"), "row 2, column gpu_num: 'four'"),
        ("helios", HELIOS.replace("2020-06-09 18:41:01,2020", "yesterday,2020", 1), "row 3, column submit_time"),
        ("helios", POLLUX, "row 1: there is no column job_id, gpu_num"),
        ("pollux", POLLUX.replace("imagenet,", "gpt,"), "row 3, column application: 'gpt'"),
        ("helios", HELIOS.replace(",36848,", ",inf,"), "row 3, column duration: 'inf'"),
        ("pollux", POLLUX.replace(",107,", ",inf,"), "row 2, column time: 'inf'"),
        ("pollux", POLLUX.replace(",107,", ",nan,"), "row 2, column time: 'nan'"),
        ("pollux", POLLUX + POLLUX.splitlines()[1], "/trace: two jobs are named "),
        ("philly", "{}", "no list of jobs"),
        ("philly", "", "is not valid JSON"),
        pytest.param("philly", 5000 * "[", "is not valid JSON", id="deep"),
        ("philly", json.dumps([*PHILLY, {"jobid": "x"}]), "job 3, key submitted_time: KeyError"),
        ("philly", json.dumps([{**PHILLY[0], "submitted_time": "soon"}]), "job 1, key submitted_time"),
        ("borg", "", "the formats are philly, helios, pollux, sia, pai, gavel"),
        ("gavel", HELIOS, "row 1: there are 1 columns, not 10 or 7"),
        (
            "gavel",
            GAVEL.replace("ResNet-18 (batch", "GPT (batch"),
            "row 1, column 1: .* how fast 'GPT .batch size 32.'",
        ),
        ("gavel", GAVEL.replace("size 32", "size 33"), "how fast 'ResNet-18 .batch size 33.' trains"),
        ("gavel", GAVEL.replace("1104675", "many"), "row 1, column 5: 'many'"),
        ("gavel", GAVEL.replace("6.000000", "inf"), "row 1, column 6: 'inf'"),
    ],
)
def test_an_error_has_the_row_and_the_column(tmp_path: Path, form: str, content: str, says: str) -> None:
    (tmp_path / "trace").write_text(content)
    with pytest.raises(TraceError, match=says):
        read_trace(tmp_path / "trace", form)


@pytest.mark.parametrize("content", [b"\xff\xfej", b"job_id," + b"x" * 200_000])
def test_an_error_names_a_file_that_is_not_csv(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "trace").write_bytes(content)
    with pytest.raises(TraceError, match=r"/trace: .*; is this the right format\?"):
        read_trace(tmp_path / "trace", "helios")


def test_arrivals_can_be_stretched_to_a_load(tmp_path: Path) -> None:
    (tmp_path / "workload.csv").write_text(POLLUX)
    jobs = stretched(read_trace(tmp_path / "workload.csv", "pollux"), devices=10, load=0.5)
    work = sum(each.shortest * each.spec.size for each in jobs)
    assert work / (jobs[-1].spec.arrival * 10) == pytest.approx(0.5)
