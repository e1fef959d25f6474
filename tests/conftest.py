"""Fixtures for tests of several folders."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def no_gpu_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fairseq's --fp16 find the CPU where it looks for a GPU."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
