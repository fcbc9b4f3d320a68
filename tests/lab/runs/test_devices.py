"""Devices and loader workers follow what the process was given."""

from __future__ import annotations

import os

import pytest
import torch

from hace.lab.runs.process import choose_workers, fallback_note, processors


def test_loader_workers_follow_the_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)), raising=False)
    assert (choose_workers(None, gpu), choose_workers(None, torch.device("cpu"))) == (4, 0)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "2")
    assert (choose_workers(None, gpu), choose_workers(5, gpu)) == (2, 5)
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "none")
    monkeypatch.delattr(os, "sched_getaffinity")
    assert (processors(), choose_workers(None, gpu)) == (64, 8)


def test_training_on_the_cpu_by_default_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    cpu = torch.device("cpu")
    assert fallback_note("auto", cpu) == "device=auto: no GPU here, so it trains on the CPU."
    assert fallback_note("cpu", cpu) == fallback_note("auto", torch.device("cuda")) == ""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert "this job has no GPU" in fallback_note("auto", cpu)
