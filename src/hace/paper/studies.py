"""The paper's experiments, their fair counterparts and the controls, as presets of `hace study`.

To add a study, add a row to `STUDIES`; to add a method, an entry to `hace.lab.study.presets.METHODS`; to add an architecture,
its row in `hace.paper.recipes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hace.lab.study.presets import CONTROLS, METHODS, PAPER_METHODS, PRESETS, Preset
from hace.paper.recipes import DILUTIONS, PAPER_DATASETS, RECIPES, fixed_runs, study_recipe

PROBE_RATE = 3e-3  # the base rate of probes under the paper's protocol: with AdamW, its pattern appears
TRAIN_RATES = (0.25, 0.5, 1.0, 2.0, 4.0)  # times the recipe's: about the range that the paper's pairings span
_NABIRDS = tuple(key for key in PAPER_METHODS if key not in ("hace_soft10", "hace_soft30"))
_PAIR = ("hace", "sce")
_LABEL_METHODS = ("sce", "hace", "conditional", "sce_paths", "hace_paths")
_DATA: dict[str, Any] = {"datasets": PAPER_DATASETS, "reserved": PAPER_DATASETS}
_TRAIN: dict[str, Any] = {**_DATA, "models": tuple(RECIPES), "recipe": study_recipe}


def _paper_train(title: str, methods: tuple[str, ...] = _PAIR, **changes: Any) -> Preset:
    options = {**_TRAIN, "dilutions": DILUTIONS, "fixed": fixed_runs, **changes}
    return Preset(title, "train", methods, **options)


def _fair_train(title: str, methods: tuple[str, ...] = (*_PAIR, "hace_tuned"), **changes: Any) -> Preset:
    return Preset(title, "train", methods, seeds=3, rates=TRAIN_RATES, **{**_TRAIN, **changes})


def _end_to_end(labels: Preset) -> Preset:
    """A study of labels, trained end to end."""
    methods = (*_LABEL_METHODS, *(key for key in labels.methods if METHODS[key].drops))
    return _fair_train(f"end to end: {labels.title}", methods, models=("resnet18",), labels=labels.labels)


_BEST = "end to end, best to best: ten runs for each of 18 pairs of model and dataset"
_BIRDS = "end to end on NABirds: eight methods"
_FGVC = "end to end on FGVC-Aircraft: HACE against cross-entropy at each dilution and pairing of rates"
_FAMILY = "families and manufacturers: ResNet-50 on FGVC-Aircraft, ten runs"
_PROBES = "linear probes: ten methods at each dilution and pairing of rates"
_FAIR = "end to end, fairly: HACE and cross-entropy, the same rates, chosen on held-out samples"
_FAIR_NABIRDS = "end to end on NABirds, fairly: eight methods"
_FAIR_PROBES = "linear probes, fairly: ten methods, and HACE with a tuned dilution"
_CONTROLS = "linear probes, fairly: HACE, cross-entropy and the controls"

STUDIES: Mapping[str, Preset] = MappingProxyType(
    {
        "paper-end-to-end": _paper_train(_BEST),
        "paper-fgvc": _paper_train(_FGVC, datasets=("aircraft",)),
        "paper-family": _paper_train(_FAMILY, datasets=("aircraft",), models=("resnet50",)),
        "paper-nabirds": _paper_train(_BIRDS, _NABIRDS, datasets=("nabirds",)),
        "paper-probe": Preset(
            _PROBES, "probe", PAPER_METHODS, lr=PROBE_RATE, optimizer="adamw", fixed=fixed_runs, **_DATA
        ),
        "fair-end-to-end": _fair_train(_FAIR),
        "fair-nabirds": _fair_train(_FAIR_NABIRDS, (*_NABIRDS, "hace_tuned"), datasets=("nabirds",)),
        "fair-probe": Preset(_FAIR_PROBES, "probe", (*PAPER_METHODS, "hace_tuned"), seeds=5, **_DATA),
        "controls": Preset(_CONTROLS, "probe", (*_PAIR, "hace_tuned", *CONTROLS), seeds=5, **_DATA),
        **{
            f"{name}-end-to-end": _end_to_end(PRESETS[name])
            for name in ("mixed-labels", "low-shot", "noisy-labels")
        },
    }
)
