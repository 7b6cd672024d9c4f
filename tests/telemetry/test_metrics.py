"""The metrics that a program adds, and queries for them."""

from __future__ import annotations

import math
import pickle
import time
from pathlib import Path

import pytest

from dragon.infrastructure.errors import NotSupportedError
from dragon.telemetry import AnalysisClient, Telemetry

LONG_AGO = 1_000_000_000  # seconds since 1970


@pytest.fixture
def client(telemetry: Telemetry) -> AnalysisClient:
    return AnalysisClient()


def values(client: AnalysisClient, metric: str, **options: object) -> list[list[float]]:
    return [list(record["dps"].values()) for record in client.get_data(metric, **options)]  # type: ignore[arg-type]


def test_a_value_is_stored_with_its_time_host_and_process(telemetry: Telemetry, client: AnalysisClient) -> None:
    telemetry.add_data("loss", 0.5, timestamp=LONG_AGO, tagk="model", tagv="small")
    (record,) = client.get_data("loss", start_time=LONG_AGO)
    assert record["metric"] == "loss"
    assert record["dps"] == {str(LONG_AGO): 0.5}
    assert set(record["tags"]) == {"host", "puid", "model"}
    assert client.get_metrics() == {"loss"}


@pytest.mark.parametrize("half", [{"tagk": "model"}, {"tagv": "small"}])
def test_a_tag_without_name_or_value_is_refused(telemetry: Telemetry, half: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="a tag is a name and a value"):
        telemetry.add_data("loss", 0.5, **half)  # type: ignore[arg-type]


def test_settings_are_read_from_a_mapping_or_a_yaml_file(tmp_path: Path) -> None:
    file = tmp_path / "telemetry.yaml"
    file.write_text("collector_rate: 0.01\n")
    for settings in ({"collector_rate": 0.01}, file, str(file), {"collector_rate": "often"}):
        with pytest.raises(ValueError, match=r"collector_rate=.*: the shortest is"):
            Telemetry(telem_cfg=settings)
    file.write_text("collector_rate: [")
    with pytest.raises(ValueError, match=r"telemetry\.yaml is no YAML"):
        Telemetry(telem_cfg=file)
    with pytest.raises(TypeError, match="settings by name"):
        Telemetry(telem_cfg=7)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        Telemetry(telem_cfg="absent.yaml")


def test_a_query_without_times_returns_the_last_five_minutes(telemetry: Telemetry, client: AnalysisClient) -> None:
    now = time.time()
    for ago in (400, 200, 100):
        telemetry.add_data("loss", ago, timestamp=now - ago)
    assert values(client, "loss") == [[200, 100]]
    assert values(client, "loss", start_time=now - 500) == [[400, 200, 100]]
    assert values(client, "loss", start_time=now - 500, end_time=now - 150) == [[400, 200]]


def test_each_set_of_tags_has_a_separate_record(telemetry: Telemetry, client: AnalysisClient) -> None:
    for model, rank in (("small", 0), ("small", 1), ("large", 0)):
        telemetry.add_data("loss", rank, tags={"model": model, "rank": rank})
    telemetry.add_data("loss", 7)
    assert len(client.get_data("loss")) == 4
    assert values(client, "loss", tags={"model": "small"}) == [[0], [1]]
    assert values(client, "loss", tags={"model": ["small", "large"], "rank": "0"}) == [[0], [0]]
    assert values(client, "loss", tags={"model": "small", "rank": 0}) == [[0]]
    assert values(client, "loss", tags={"model": "small", "rank": range(2)}) == [[0], [1]]
    assert values(client, "loss", tags={"model": "*"}) == [[0], [1], [0]]
    assert values(client, "loss", tags={"model": "other"}) == []


def test_a_query_can_name_several_metrics(telemetry: Telemetry, client: AnalysisClient) -> None:
    telemetry.add_data("loss", 1)
    telemetry.add_data("accuracy", 2)
    assert {record["metric"] for record in client.get_data(["loss", "accuracy", "unknown"])} == {"loss", "accuracy"}


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        ("last", [3, 5]),
        ("avg", [2, 5]),
        ("min", [1, 5]),
        ("max", [3, 5]),
        ("sum", [6, 5]),
        ("count", [3, 1]),
        ("dev", [pytest.approx((2 / 3) ** 0.5), 0]),
    ],
)
def test_values_within_an_interval_are_aggregated(
    telemetry: Telemetry, client: AnalysisClient, aggregate: str, expected: list[float]
) -> None:
    for second, value in ((0, 1), (5, 2), (9, 3), (10, 5)):
        telemetry.add_data("loss", value, timestamp=LONG_AGO + second)
    options = {"start_time": LONG_AGO, "interval": 10, "aggregate": aggregate}
    (record,) = client.get_data("loss", **options)  # type: ignore[arg-type]
    assert record["dps"] == dict(zip((str(LONG_AGO), str(LONG_AGO + 10)), expected, strict=True))


def test_a_query_without_an_interval_returns_all_values_in_order_of_time(
    telemetry: Telemetry, client: AnalysisClient
) -> None:
    for part in (0.75, 0.25, 0.5):
        telemetry.add_data("loss", part, timestamp=LONG_AGO + part)
    (record,) = client.get_data("loss", start_time=LONG_AGO, interval=0)
    assert record["dps"] == {f"{LONG_AGO + part}": part for part in (0.25, 0.5, 0.75)}


def test_values_can_be_infinite(telemetry: Telemetry, client: AnalysisClient) -> None:
    for value in (math.inf, 1, -math.inf):
        telemetry.add_data("loss", value, timestamp=LONG_AGO)
    assert values(client, "loss", start_time=LONG_AGO, aggregate="max") == [[math.inf]]
    assert math.isnan(values(client, "loss", start_time=LONG_AGO, aggregate="sum")[0][0])


def test_a_counter_can_only_grow(telemetry: Telemetry, client: AnalysisClient) -> None:
    images = telemetry.counter("images", kind="cat")
    images.add()
    images.add(4)
    telemetry.counter("images", kind="cat").add(2)
    assert values(client, "images", tags={"kind": "cat"}, interval=0) == [[1, 5, 7]]
    with pytest.raises(ValueError, match="cannot shrink"):
        images.add(-1)
    for count in (math.nan, math.inf):
        with pytest.raises(ValueError, match="cannot grow by"):
            images.add(count)


def test_a_timer_measures_its_block_and_nested_blocks(telemetry: Telemetry, client: AnalysisClient) -> None:
    timer = telemetry.timer("step")
    with timer:
        time.sleep(0.02)
        with pytest.raises(KeyError), timer:
            raise KeyError
    ((inner, outer),) = values(client, "step", interval=0)
    assert 0 < inner < outer
    assert outer >= 0.02


def test_the_newest_values_are_kept(telemetry: Telemetry, client: AnalysisClient) -> None:
    for number in range(650):
        telemetry.add_data("loss", number, timestamp=LONG_AGO + number)
    assert values(client, "loss", start_time=LONG_AGO) == [[*range(50, 650)]]


def test_the_series_without_new_values_for_longest_is_removed_if_there_are_too_many(
    telemetry: Telemetry, client: AnalysisClient
) -> None:
    for number in range(8192):
        telemetry.add_data("loss", number, tags={"number": number})
    telemetry.add_data("loss", 0, tags={"number": 0})
    telemetry.add_data("one more", 0)
    records = client.get_data("loss", tags={"number": ["0", "1", "2"]})
    assert {record["tags"]["number"] for record in records} == {"0", "2"}


def test_values_of_a_higher_level_than_that_of_the_run_are_dropped(
    telemetry: Telemetry, client: AnalysisClient
) -> None:
    telemetry.add_data("loss", 1, telemetry_level=2)
    assert client.get_metrics() == set()


def test_a_telemetry_object_can_be_sent_to_other_processes(telemetry: Telemetry, client: AnalysisClient) -> None:
    pickle.loads(pickle.dumps(telemetry)).add_data("loss", 3)
    assert values(client, "loss") == [[3]]


def test_all_metrics_are_removed_by_the_shutdown(telemetry: Telemetry, client: AnalysisClient) -> None:
    telemetry.add_data("loss", 1)
    telemetry.shutdown()
    telemetry.add_data("loss", 2)
    assert client.get_metrics() == set()
    with pytest.raises(RuntimeError, match="the run has no telemetry"):
        client.connect(timeout=0.1)


def test_an_invalid_metric_is_refused(telemetry: Telemetry) -> None:
    with pytest.raises(TypeError, match="'high' is not a number"):
        telemetry.add_data("loss", "high")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not a valid name of a metric"):
        telemetry.add_data("", 1)
    with pytest.raises(ValueError, match="one that the runtime measures"):
        telemetry.add_data("cpu_percent", 1)
    with pytest.raises(ValueError, match="the tag 'host' is set by the run"):
        telemetry.add_data("loss", 1, tags={"host": "mine"})
    with pytest.raises(ValueError, match="nan is not a valid time"):
        telemetry.add_data("loss", 1, timestamp=math.nan)
    telemetry.add_data("loss", 1)
    with pytest.raises(ValueError, match="is a gauge already"):
        telemetry.counter("loss").add()


def test_an_invalid_query_is_refused(client: AnalysisClient) -> None:
    with pytest.raises(ValueError, match="aggregate='median'"):
        client.get_data("loss", aggregate="median")  # type: ignore[arg-type]
    for interval in (-1, 1e-9, math.inf, math.nan):
        with pytest.raises(ValueError, match="it must be 0, or at least"):
            client.get_data("loss", interval=interval)


def test_a_reboot_of_nodes_is_not_supported(client: AnalysisClient) -> None:
    with pytest.raises(NotSupportedError, match="--resilient"):
        client.reboot(exclude_hostnames=["a"])


@pytest.mark.parametrize("level", [-1, 0, 6])
def test_levels_other_than_1_to_5_are_refused(level: int) -> None:
    with pytest.raises(ValueError, match="the levels are 1 to 5"):
        Telemetry().start(level)


@pytest.mark.parametrize("level", ["2", 2.5, None])
def test_a_level_must_be_an_integer(telemetry: Telemetry, level: object) -> None:
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        telemetry.start(level)  # type: ignore[arg-type]
    assert telemetry.level == 1
