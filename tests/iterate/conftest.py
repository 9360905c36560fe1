"""What `examples/iterate_gsm8k.sh` sets for its settings."""

import pytest


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes with eight accelerators each."""
    sizes = {"N_GPUS": "8", "N_NODES": "2"}
    for name, value in {"MODEL": "org/model", "DATA": "/data", **sizes}.items():
        monkeypatch.setenv(name, value)
