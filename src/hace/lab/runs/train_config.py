"""The configuration of end-to-end training."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from hace.data import DATASETS
from hace.errors import ConfigError, HaceError
from hace.files.writing import sha256
from hace.lab.models import check_model_name
from hace.lab.runs.config import DataConfig, RunConfig
from hace.lab.runs.labels import LabelsConfig
from hace.lab.runs.settings import AT_LEAST_ONE, AT_LEAST_ZERO, POSITIVE, SHARE, setting


@dataclass(frozen=True)
class TrainConfig(RunConfig):
    """A model trained end to end on images.

    Attributes:
        data: The images and their hierarchy.
        epochs: Passes over the training samples.
        batch_size: Images per step, over all processes.
        lr: The highest learning rate.
        weight_decay: Added to the gradient by SGD, apart from it by AdamW.
        model: One of the paper's six (resnet18, resnet34, resnet50, convnext_tiny, swin_tiny, vit_base), or any timm name.
        image_size: The side of the images in pixels; by default the data set's own: 32 for CIFAR-100, 224 for images on disk.
        dropout: The dropout rate.
        drop_path: The rate of stochastic depth.
        init_from: A file of weights to start from (.safetensors, or a torch file of tensors), for fine-tuning.
        init_head: "fit" takes the file's head too, which must have the loss's size; "drop" starts with a new one.
        init_hash: sha256 of that file, which decides the result wherever the file is. Filled in automatically.
        start: Initial weights of a new last layer: "random", as the model has it, or "zeros"; "auto" is zeros where some
            training samples are labelled above the leaves, because losses reinforce whatever random weights prefer below
            such a label, and random where the model does not end in one linear layer.
        per_class: Train on this many samples of every class, chosen by the seed; by default on all.
        optimizer: "sgd" with momentum, or "adamw".
        schedule: "cosine" to 0 over all steps, "warmup_cosine" with a linear start before it, or "constant".
        warmup_epochs: The length of that start.
        accumulate: Parts in which a batch goes through the model, to save memory. Batch norms see one part at a time.
        clip_norm: The largest norm of the gradient.
        augment: "standard": at 32 px a crop of the image with a border of zeros, and a flip; on disk a random part, and a
            flip. "none" leaves training images as they are.
        mixup_alpha: Alpha of mixup; 0 switches it off.
        cutmix_alpha: Alpha of CutMix; 0 switches it off. With both, each batch gets one of them.
        precision: "bf16" and "fp16" compute under autocast; the loss is in float32 anyway.
        ema_decay: Evaluate and keep an average of the weights that decays by this factor per step; 0 switches it off.
        channels_last: Store images channels-last, which makes convolutions faster on some devices.
        device: cpu, cuda, cuda:1, mps; "auto" takes an accelerator if there is one.
        workers: Processes that read images from disk; by default 0 on a CPU, else one per processor of the job, up to 8.
        checkpoint_seconds: Seconds between checkpoints.
        checkpoint_steps: Also write a checkpoint after this many steps.
        tensorboard: Whether to write the log for TensorBoard too.
        keep: Whether to keep weights and predictions beside the result.
        timeout: Seconds to wait for the other processes of a job before giving up.
    """

    kind: ClassVar[str] = "train"

    data: DataConfig = field(default_factory=lambda: DataConfig("synthetic"))
    epochs: int = setting(30, AT_LEAST_ONE)
    batch_size: int = setting(128, AT_LEAST_ONE)
    lr: float = setting(0.1, POSITIVE)
    weight_decay: float = setting(1e-4, AT_LEAST_ZERO)
    model: str = setting("resnet18")
    image_size: int | None = setting(None, AT_LEAST_ONE)
    dropout: float = setting(0.0, SHARE)
    drop_path: float = setting(0.0, SHARE)
    init_from: str | None = setting(None, decides=False)
    init_head: Literal["fit", "drop"] = setting("drop")
    init_hash: str | None = setting(None)
    start: Literal["auto", "random", "zeros"] = setting("auto")
    per_class: int | None = setting(None, AT_LEAST_ONE)
    optimizer: Literal["sgd", "adamw"] = setting("sgd")
    schedule: Literal["cosine", "warmup_cosine", "constant"] = setting("cosine")
    warmup_epochs: int = setting(0, AT_LEAST_ZERO)
    accumulate: int = setting(1, AT_LEAST_ONE)
    clip_norm: float | None = setting(None, POSITIVE)
    augment: Literal["standard", "none"] = setting("standard")
    mixup_alpha: float = setting(0.0, AT_LEAST_ZERO)
    cutmix_alpha: float = setting(0.0, AT_LEAST_ZERO)
    precision: Literal["fp32", "bf16", "fp16"] = setting("fp32")
    ema_decay: float = setting(0.0, SHARE)
    channels_last: bool = setting(False)
    device: str = setting("auto", decides=False)
    workers: int | None = setting(None, AT_LEAST_ZERO, decides=False)
    checkpoint_seconds: float = setting(300.0, POSITIVE, decides=False)
    checkpoint_steps: int | None = setting(None, AT_LEAST_ONE, decides=False)
    tensorboard: bool = setting(False, decides=False)
    keep: bool = setting(True, decides=False)
    timeout: float = setting(600.0, POSITIVE, decides=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init_from is not None and self.init_hash is None:
            object.__setattr__(self, "init_hash", sha256(Path(self.init_from)))

    def conflicts(self) -> list[str]:
        """Also features instead of images, an unknown model, a warm-up that does not fit, missing weights."""
        problems = super().conflicts()
        if DATASETS[self.data.name].size is None:
            problems.append(f"data.name {self.data.name!r} must hold images. It holds features.")
        try:
            check_model_name(self.model)
        except ConfigError as error:
            problems.append(str(error))
        except HaceError:
            pass  # without timm runs can still be read
        if self.warmup_epochs and self.schedule != "warmup_cosine":
            problems.append(
                f"warmup_epochs is {self.warmup_epochs}, and the schedule {self.schedule!r} has no warm-up: take "
                "'warmup_cosine', or 0."
            )
        if self.warmup_epochs >= self.epochs:
            problems.append(
                f"warmup_epochs must be fewer than epochs. Got {self.warmup_epochs} of {self.epochs}."
            )
        if self.per_class is not None and self.data.labels != LabelsConfig():
            problems.append(
                f"per_class must be left out with data.labels. Got {self.per_class}. data.labels.fine={self.per_class} with "
                "data.labels.drop=true trains on as many of each class."
            )
        if self.head.name == "poincare" and self.start == "zeros":
            problems.append("head.name=poincare must come with start random or auto. Got zeros.")
        if self.accumulate > self.batch_size:
            problems.append(
                f"accumulate must be at most batch_size. Got {self.accumulate} parts of {self.batch_size}."
            )
        if self.init_from is None and self.init_hash is not None:
            problems.append("init_hash is the hash of init_from, which is not given.")
        if self.init_from is not None and self.init_hash is None and not Path(self.init_from).is_file():
            problems.append(f"init_from must be a file of weights, and {self.init_from} is not one.")
        return problems
