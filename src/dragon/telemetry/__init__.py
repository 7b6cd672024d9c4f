"""What a run measures of itself, and what its programs add to that."""

from dragon.telemetry.analysis import AnalysisClient
from dragon.telemetry.recording import NoRecordingError, Recording
from dragon.telemetry.telemetry import Counter, Telemetry, Timer

__all__ = ["AnalysisClient", "Counter", "NoRecordingError", "Recording", "Telemetry", "Timer"]
