"""Telemetry: the measurements of a run, metrics of its programs, recordings, and detectors of slow nodes."""

from __future__ import annotations

from types import ModuleType

from dragon.lazy_modules import submodule
from dragon.telemetry.analysis import AnalysisClient
from dragon.telemetry.collectors import CollectorDetectorGroup, CollectorGroup, Detector, SlowGPUDetector
from dragon.telemetry.recording import NoRecordingError, Recording
from dragon.telemetry.telemetry import Counter, Telemetry, Timer

__all__ = [
    "AnalysisClient",
    "CollectorDetectorGroup",
    "CollectorGroup",
    "Counter",
    "Detector",
    "NoRecordingError",
    "Recording",
    "SlowGPUDetector",
    "Telemetry",
    "Timer",
]


def __getattr__(name: str) -> ModuleType:
    return submodule(__name__, name)
