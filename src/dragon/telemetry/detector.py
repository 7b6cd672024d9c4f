"""Looks again and again at what a metric has been lately, and tells what stands out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from dragon.infrastructure.errors import NotSupportedError
from dragon.runtime.log import runtime_log
from dragon.telemetry.analysis import AnalysisClient
from dragon.telemetry.collectors import checked_rate
from dragon.telemetry.standing_out import standing_out

__all__ = ["Detector"]

log = runtime_log("telemetry")

_PERIODS_CHECKED = 10  # as many periods are looked back


class Detector:
    """Says which nodes or GPUs stand out in a metric, which may be a program's own or one that the runtime measures.

    detect() looks once. Between start() and stop() a thread looks every `collection_rate` seconds, and hands what
    stands out to report(); as a context manager it starts and stops. `tags` choose series as in
    AnalysisClient.get_data(), and `sacred_nodes` are hosts that are never named.

    `analysis_args` are handed to analyze_data(): by default options of the rule there. A subclass decides by a rule of
    its own. Raises ValueError for a rate that is too short, NotSupportedError for `restartable_ddicts`.

    Examples:
        >>> from dragon.telemetry import Detector, Telemetry
        >>> Telemetry().start(1)
        >>> for rank, seconds in enumerate([0.5, 0.5, 0.5, 0.9] * 3):
        ...     Telemetry().add_data("step_seconds", seconds, tags={"rank": rank % 4})
        >>> [record["tags"]["rank"] for record in Detector("step_seconds").detect()]
        ['3']
    """

    def __init__(
        self,
        metric_name: str,
        collection_rate: float = 3,
        sacred_nodes: Iterable[str] | None = None,
        restartable_ddicts: Iterable[Any] | None = None,
        tags: Mapping[str, object] | None = None,
        analysis_args: Any = None,
    ) -> None:
        if isinstance(sacred_nodes, str):
            raise TypeError(f"sacred_nodes is a list of host names, not {sacred_nodes!r}")
        if restartable_ddicts:
            raise NotSupportedError(
                "restartable_ddicts: a run is not started again without its slow nodes, so its dictionaries stay; "
                "DDict(persister_class=PosixCheckpointPersister, persist_freq=1) writes one to files"
            )
        self._metric_name = metric_name
        self._collection_rate = checked_rate(collection_rate)
        self._sacred_nodes = frozenset(sacred_nodes or ())
        self._chosen_tags = tags
        self._analysis_args = analysis_args
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._told: set[tuple[tuple[str, str], ...]] = set()

    @staticmethod
    def analyze_data(data: list[dict[str, Any]], args: Any) -> list[dict[str, Any]]:
        """Those of the records that stand out. `data` is what AnalysisClient.get_data() gives, with every value.

        Here those whose median is much higher than the others'. `args` may say what that means:
        `{"ratio": 1.25, "lowest": False, "least_values": 3}` is a quarter more than is usual, by three values at least,
        and `"lowest": True` looks for lower ones.
        """
        return standing_out(data, **(args or {}))

    def detect(self) -> list[dict[str, Any]]:
        """The records that stand out now, of the last ten times `collection_rate` seconds."""
        since = time.time() - _PERIODS_CHECKED * self._collection_rate
        data = AnalysisClient().get_data(self._metric_name, self._chosen_tags, since, interval=0)
        found = self.analyze_data(data, self._analysis_args)
        return [record for record in found if record["tags"]["host"] not in self._sacred_nodes]

    def slow_hosts(self) -> list[str]:
        """The hosts of what stands out now."""
        return sorted({record["tags"]["host"] for record in self.detect()})

    def report(self, found: list[dict[str, Any]]) -> None:
        """Called with the records that stand out, whenever there are any: here each is said once in the log. A
        subclass may do something about it."""
        for record in found:
            tags = tuple(sorted(record["tags"].items()))
            if tags not in self._told:
                self._told.add(tags)
                told = ", ".join(f"{name} {value}" for name, value in tags)
                newest = list(record["dps"].values())[-1]
                log.warning("metric %s stands out on %s: it is %g", self._metric_name, told, newest)

    def trigger_restart(self, *args: Any, **kwargs: Any) -> None:
        """Not offered: raises NotSupportedError."""
        raise NotSupportedError(
            "a run is not started again without its slow nodes; place processes on the others: "
            "[policy for policy in System().hostname_policies() if policy.host_name not in detector.slow_hosts()]"
        )

    def start(self) -> None:
        """Begin to look. Raises RuntimeError where it looks already or the run measures nothing."""
        if self._thread is not None:
            raise RuntimeError(f"the detector of {self._metric_name!r} runs already; stop() ends it")
        AnalysisClient().connect()
        self._ending.clear()
        self._told.clear()
        self._thread = threading.Thread(target=self._look, name=f"detector of {self._metric_name}", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ending.wait(self._collection_rate):
            try:
                found = self.detect()
                if found:
                    self.report(found)
            except Exception as error:
                log.error("the detector of %s ends: %s: %s", self._metric_name, type(error).__name__, error)
                self._failure = error
                return

    def stop(self) -> None:
        """Look no more. Raises what analyze_data() or report() had raised, which ended it. Again is fine."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._ending.set()
        if thread is not threading.current_thread():  # which report() is called in
            thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
