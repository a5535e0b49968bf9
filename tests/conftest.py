from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Test helpers live in tests/support; with --import-mode=importlib nothing puts the root on the path.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.support import brokers


@pytest.fixture(scope="session")
def mosquitto_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.RunningBroker]:
    """One mosquitto with default limits for all tests of the session; do not stop it."""
    if brokers.MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    with brokers.mosquitto(tmp_path_factory.mktemp("mosquitto")) as broker:
        yield broker


@pytest.fixture
def own_mosquitto(tmp_path: Path) -> Iterator[brokers.RunningBroker]:
    """A mosquitto of the test's own, to be stopped and started at will."""
    if brokers.MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    with brokers.mosquitto(tmp_path / "mosquitto") as broker:
        yield broker


@pytest.fixture(scope="session")
def rumqttd_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.RunningBroker]:
    """One rumqttd for all tests of the session; do not stop it."""
    if not brokers.HAS_IOTCORE:
        pytest.skip("iotcore is not installed")
    with brokers.rumqttd(tmp_path_factory.mktemp("rumqttd")) as broker:
        yield broker


@pytest.fixture
def own_rumqttd(tmp_path: Path) -> Iterator[brokers.RunningBroker]:
    """A rumqttd of the test's own, for retained messages that others must not see."""
    if not brokers.HAS_IOTCORE:
        pytest.skip("iotcore is not installed")
    with brokers.rumqttd(tmp_path / "rumqttd") as broker:
        yield broker
