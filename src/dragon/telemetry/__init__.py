"""What a run measures of itself, and what its programs add to that."""

import dragon.infrastructure  # noqa: F401  which imports msgspec, before a module here does
from dragon.telemetry.analysis import AnalysisClient
from dragon.telemetry.collector_detector import CollectorDetectorGroup
from dragon.telemetry.collectors import CollectorGroup
from dragon.telemetry.detector import Detector
from dragon.telemetry.recording import NoRecordingError, Recording
from dragon.telemetry.slow_gpus import SlowGPUDetector
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
