"""The paper's recipes for end-to-end training: its table of hyperparameters, its learning rates, and what it leaves open.

recipe("resnet18")                        the row of the table (appendix "Models")
print(describe("resnet18", "cifar100"))   the same in words, with the cost and the accuracy to expect
paper_runs("cifar100", "resnet18")        the ten runs of a model on a data set (appendix "Learning Rates")

The values stand here as the paper prints them. Where it says nothing, `ASSUMPTIONS` says what was assumed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from hace.errors import ConfigError, nearest
from hace.lab.train import models
from hace.lab.train.models import ARCHITECTURES
from hace.paper import paper_tables

DATASETS = ("cifar100", "aircraft", "nabirds")  # the table's C / F / N; the paper calls the second FGVC
IMAGE_SIZES: Mapping[str, int] = MappingProxyType({"cifar100": 32, "aircraft": 224, "nabirds": 224})
DILUTIONS = (0.2, 0.5, 0.7)
PAIRINGS = ("standard", "adjusted")
LOSSES = ("hace", "sce")


@dataclass(frozen=True)
class Recipe:
    """A row of the paper's table of hyperparameters.

    Attributes:
        model: A key of `hace.lab.train.models.ARCHITECTURES`.
        batch_size: Images of a step.
        lr: The base rate l, before `learning_rates`.
        weight_decay: As the optimiser applies it.
        momentum: Of SGD; AdamW's first beta.
        dropout: The rate; 0 where the table has a dash.
        epochs: By data set.
        schedule: "cosine" for the table's CosineAnnealing, "warmup_cosine" for its Lambda.
        warmup_epochs: Not in the table, see `ASSUMPTIONS`.
        optimizer: "sgd" or "adamw".
    """

    model: str
    batch_size: int
    lr: float
    weight_decay: float
    momentum: float
    dropout: float
    epochs: Mapping[str, int]
    schedule: str
    warmup_epochs: int
    optimizer: str


class PaperRun(NamedTuple):
    """One of the ten runs of a model on a data set; SCE at the base rate belongs to no dilution."""

    loss: str
    dilution: float | None
    pairing: str
    lr: float


def _epochs(*values: int) -> Mapping[str, int]:
    return MappingProxyType(dict(zip(DATASETS, values, strict=True)))


# fmt: off
_ROWS = (
    #      model            batch  rate     decay  mom. drop  epochs C / F / N         schedule    warm-up  optimiser
    Recipe("resnet18",      128,   0.1,     1e-4,  0.9, 0.0, _epochs(450, 750, 750), "cosine",        0,  "sgd"),
    Recipe("resnet34",      128,   0.1,     1e-4,  0.9, 0.0, _epochs(450, 750, 750), "cosine",        0,  "sgd"),
    Recipe("resnet50",      128,   0.1,     1e-4,  0.9, 0.0, _epochs(450, 750, 750), "cosine",        0,  "sgd"),
    Recipe("convnext_tiny", 128,   1.25e-4, 0.05,  0.9, 0.0, _epochs(400, 400, 500), "cosine",        0,  "adamw"),
    Recipe("swin_tiny",     128,   1.25e-4, 0.05,  0.9, 0.0, _epochs(500, 500, 500), "warmup_cosine", 20, "adamw"),
    Recipe("vit_base",      64,    3e-3,    0.3,   0.9, 0.1, _epochs(300, 300, 300), "warmup_cosine", 32, "adamw"),
)
# fmt: on
RECIPES: Mapping[str, Recipe] = MappingProxyType({row.model: row for row in _ROWS})

# Billions of multiplications and additions for one image, forwards, as counted by torch: (at 32 px, at 224 px).
GMACS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "resnet18": (0.556, 1.81),
        "resnet34": (1.16, 3.66),
        "resnet50": (1.30, 4.09),
        "convnext_tiny": (0.364, 4.46),
        "swin_tiny": (0.359, 4.49),
        "vit_base": (5.60, 17.6),
    }
)
TRAINING_IMAGES: Mapping[str, int] = MappingProxyType(
    {"cifar100": 50_000, "aircraft": 6_667, "nabirds": 23_929}
)
SUSTAINED = 50e12  # operations a second, for the hours of `describe`

ASSUMPTIONS = (
    *models.ASSUMPTIONS,
    "Image sizes: 32 px for CIFAR-100 and 224 px for FGVC-Aircraft and NABirds, as the table of data sets says.",
    "Augmentation: at 32 px a random crop of the image with 4 px of zeros around it, and a flip; at 224 px a random part of "
    "8 to 100 % of the area, and a flip. Tests see the whole image at 32 px, and at 224 px the middle of the image with "
    "its shorter side at 256. No mixup, CutMix, RandAugment or erasing, which the authors of ConvNeXt and Swin use.",
    "The scheduler 'Lambda' (Swin-T, ViT-B/16) is a linear warm-up to the base rate and a cosine to 0 after it.",
    "Warm-up: 20 epochs for Swin-T, as its authors have; 32 for ViT-B/16, whose authors' 10,000 steps of 4,096 images are "
    "32 epochs of ImageNet. None with CosineAnnealing.",
    "The cosine ends at a rate of 0 and moves with every step, not every epoch.",
    "'Momentum 0.9' of AdamW is its first beta; the second is 0.999.",
    "Weight decay: of every parameter with SGD, as ResNets have it; with AdamW not of biases, norms, positions, class "
    "token, layer scales and biases of relative positions, as the authors of ConvNeXt and Swin do.",
    "Selection: the weights after the last epoch count. The paper does not say whether it takes the last or the best epoch, "
    "nor on what it chooses; its best-of tables choose among runs by the test set.",
    "Early stopping: none; every run has all its epochs.",
    "Seeds: the paper has one run of each kind and names no seed. Ours is 0 where none is given.",
    "SCE's rate in the HACE-anchored pairing: l times d, as the table of learning rates says; one sentence says l / d.",
    "Label smoothing (but for the methods that have it in their name), gradient clipping, averaging of weights: none.",
)


def recipe(model: str) -> Recipe:
    """The paper's recipe for a model.

    Example:
        >>> recipe("vit_base").lr, recipe("resnet50").epochs["aircraft"]
        (0.003, 750)
    """
    return RECIPES[_checked("model", model, RECIPES)]


def learning_rates(loss: str, base_lr: float, dilution: float, pairing: str) -> float:
    """The learning rate of a loss in a pairing: the paper's table of learning rates.

    | pairing | HACE | SCE |
    | --- | --- | --- |
    | "standard", anchored at HACE | l | l d |
    | "adjusted", anchored at SCE | l / d | l |

    Args:
        loss: "hace" or "sce".
        base_lr: l, the recipe's rate.
        dilution: d, of the HACE run in the pair.
        pairing: "standard" or "adjusted".

    Example:
        >>> learning_rates("hace", 0.1, 0.2, "adjusted"), learning_rates("sce", 0.1, 0.5, "standard")
        (0.5, 0.05)
    """
    _checked("loss", loss, LOSSES)
    _checked("pairing", pairing, PAIRINGS)
    if not 0 < base_lr < math.inf:
        raise ConfigError(f"base_lr must be a number above 0, got {base_lr!r}.")
    if not 0 < dilution <= 1:
        raise ConfigError(f"dilution must be above 0 and at most 1, got {dilution!r}.")
    if pairing == "standard":
        return base_lr if loss == "hace" else base_lr * dilution
    return base_lr / dilution if loss == "hace" else base_lr


def paper_runs(dataset: str, model: str) -> tuple[PaperRun, ...]:
    """The ten runs of a model on a data set: six of HACE, four of SCE. The rates are the same on every data set.

    Example:
        >>> runs = paper_runs("aircraft", "resnet18")
        >>> len(runs), runs[0], runs[-1]
        (10, PaperRun(loss='hace', dilution=0.2, pairing='standard', lr=0.1),
             PaperRun(loss='sce', dilution=None, pairing='adjusted', lr=0.1))
    """
    _checked("dataset", dataset, DATASETS)
    base = recipe(model).lr
    runs = [
        PaperRun(loss, d, pairing, learning_rates(loss, base, d, pairing))
        for loss, pairing in (("hace", "standard"), ("hace", "adjusted"), ("sce", "standard"))
        for d in DILUTIONS
    ]
    return (*runs, PaperRun("sce", None, "adjusted", base))


def training_cost(dataset: str, model: str) -> float:
    """Floating-point operations of one run: 2 for each multiplication with its addition, and 3 passes' worth of them.

    Example:
        >>> f"{training_cost('cifar100', 'resnet18'):.1e}"
        '7.5e+16'
    """
    _checked("dataset", dataset, DATASETS)
    epochs = recipe(model).epochs[dataset]
    gmacs = GMACS[model][0 if IMAGE_SIZES[dataset] == 32 else 1]
    return 6 * gmacs * 1e9 * TRAINING_IMAGES[dataset] * epochs


def describe(model: str, dataset: str) -> str:
    """A recipe in words: the paper's values, the cost of a run, and the accuracy that the paper prints.

    Example:
        >>> print(describe("resnet18", "cifar100"))
        ResNet-18 on cifar100, as the paper's table of hyperparameters has it: 450 epochs at 32 px, batches of 128, sgd with
        rate 0.1, decay 0.0001, momentum 0.9, dropout 0, schedule cosine.
        Cost: 7.5e+16 operations a run, 0.4 hours at 50 TFLOP/s; ten runs make the paper's cell.
        Expect: top-1 77.93 % with HACE (best of 6 runs, chosen on the test set), 76.52 % with SCE (best of 4).
    """
    row = recipe(model)
    cost = training_cost(dataset, model)
    warmup = f" with {row.warmup_epochs} epochs of warm-up" if row.warmup_epochs else ""
    printed = paper_tables()["best_to_best"]
    hace, sce = (printed.value(model=model, dataset=dataset, method=method) for method in LOSSES)
    return (
        f"{ARCHITECTURES[model].title} on {dataset}, as the paper's table of hyperparameters has it: "
        f"{row.epochs[dataset]} epochs at {IMAGE_SIZES[dataset]} px, batches of {row.batch_size}, {row.optimizer} with\n"
        f"rate {row.lr:g}, decay {row.weight_decay:g}, momentum {row.momentum:g}, dropout {row.dropout:g}, "
        f"schedule {row.schedule}{warmup}.\n"
        f"Cost: {cost:.1e} operations a run, {cost / SUSTAINED / 3600:.1f} hours at {SUSTAINED / 1e12:.0f} TFLOP/s; "
        "ten runs make the paper's cell.\n"
        f"Expect: top-1 {hace:.2f} % with HACE (best of 6 runs, chosen on the test set), {sce:.2f} % with SCE "
        "(best of 4)."
    )


def _checked(option: str, value: str, known: Collection[str]) -> str:
    if value not in known:
        raise ConfigError(
            f"{option} must be one of {', '.join(known)}, got {value!r}.{nearest(value, known)}"
        )
    return value
