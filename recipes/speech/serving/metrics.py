"""Metrics of a speech server in Prometheus' text format, for `GET /metrics`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from overtone.recipes.serving.prometheus_metrics import RequestMetrics, ServerMetrics, format_by_model


@dataclass
class VoiceMetrics(RequestMetrics):
    """Counters of one voice since the server started."""

    audio_seconds: float = 0.0
    """Duration of the generated speech."""


class SpeechServerMetrics(ServerMetrics[VoiceMetrics]):
    """Counters of a speech server since it started."""

    prefix: ClassVar = "speech"
    first_part: ClassVar = "audio"
    api_path: ClassVar = "/v1/audio/speech"

    def list_result_families(self) -> list[list[str]]:
        """Duration of the generated speech."""
        durations = [(name, voice.audio_seconds) for name, voice in self.models.items()]
        return [format_by_model("speech_audio_seconds_total", "Duration of the generated speech.", durations)]
