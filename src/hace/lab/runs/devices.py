"""Which device a run computes on, and how many processes read its images."""

from __future__ import annotations

import os

import torch

from hace.errors import ConfigError

MOST_WORKERS = 8


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """A device by its name.

    Args:
        name: "cpu", "cuda", "cuda:1", "mps"; "auto" takes an accelerator if there is one.
        local_rank: This process among those of the machine: each takes another GPU.

    Raises:
        ConfigError: It cannot be used here.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", local_rank % torch.cuda.device_count())
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {name} cannot be used here: {reason} Try cpu.") from error
    if name == "cuda":
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return torch.device(name)


def fallback_note(name: str, device: torch.device) -> str:
    """A note for when device="auto" found no accelerator; "" otherwise.

    Example:
        >>> fallback_note("cpu", torch.device("cpu"))
        ''
    """
    if name != "auto" or device.type != "cpu":
        return ""
    if "SLURM_JOB_ID" in os.environ:
        return "device=auto: this job has no GPU, so it trains on the CPU. Ask for one, as with --gpus 1 of hace study."
    return "device=auto: no GPU here, so it trains on the CPU."


def choose_workers(asked: int | None, device: torch.device) -> int:
    """How many processes read images.

    Args:
        asked: As the user says; None is 0 where the processor also runs the model, else what this process may use, up to 8.
        device: Where the model computes.
    """
    if asked is not None:
        return asked
    return 0 if device.type == "cpu" else min(MOST_WORKERS, processors())


def processors() -> int:
    """The processors that this process may use: of its job, not of the machine."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    slurm = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return min(allowed, int(slurm)) if slurm.isdecimal() and int(slurm) else allowed
