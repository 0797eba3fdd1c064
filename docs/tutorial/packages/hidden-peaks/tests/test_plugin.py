"""The conformance suite of runner features."""

from __future__ import annotations

from tenonry_testkit.runner_feature import RunnerFeatureContract


class TestHiddenPeaks(RunnerFeatureContract):
    feature = "hidden_peaks.plugin:HiddenPeaks"
