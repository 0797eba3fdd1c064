"""What pytest loads from the testkit: the fixtures for plugin authors; runs in the test process."""

from __future__ import annotations
