"""The paper's experiments, their fair counterparts and the controls, as presets of `hace study`.

To add a study, add a row to `STUDIES`; to add a method, an entry to `hace.lab.study.methods.METHODS`; to add an architecture,
its row in `hace.paper.recipes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from hace.lab.study.methods import CONTROLS, METHODS, PAPER_METHODS
from hace.lab.study.presets import PRESETS, Preset
from hace.paper.assumptions import PROBE_RATE
from hace.paper.recipes import DILUTIONS, PAPER_DATASETS, RECIPES, fixed_runs, study_recipe

NABIRDS_METHODS = tuple(key for key in PAPER_METHODS if key not in ("hace_soft10", "hace_soft30"))
TRAIN_RATES = (0.25, 0.5, 1.0, 2.0, 4.0)  # times the recipe's: about the range that the paper's pairings span
_PAIR = ("hace", "sce")
_LABEL_METHODS = ("sce", "hace", "conditional", "sce_paths", "hace_paths")

_PAPER_TRAIN = Preset(
    "end to end, best to best: ten runs for each of 18 pairs of model and data set",
    "train",
    _PAIR,
    datasets=PAPER_DATASETS,
    reserved=PAPER_DATASETS,
    models=tuple(RECIPES),
    dilutions=DILUTIONS,
    recipe=study_recipe,
    fixed=fixed_runs,
)
_FAIR_TRAIN = replace(
    _PAPER_TRAIN,
    title="end to end, fairly: HACE and SCE, the same rates, chosen on held-out samples",
    methods=(*_PAIR, "hace_tuned"),
    seeds=3,
    dilutions=(0.5,),
    rates=TRAIN_RATES,
    fixed=None,
)
_FAIR_PROBE = Preset(
    "linear probes, fairly: ten methods, and HACE with a tuned dilution",
    "probe",
    (*PAPER_METHODS, "hace_tuned"),
    datasets=PAPER_DATASETS,
    reserved=PAPER_DATASETS,
    seeds=5,
)

STUDIES: Mapping[str, Preset] = MappingProxyType(
    {
        "paper-end-to-end": _PAPER_TRAIN,
        "paper-fgvc": replace(
            _PAPER_TRAIN,
            title="end to end on FGVC-Aircraft: HACE against SCE at each dilution and pairing of rates",
            datasets=("aircraft",),
        ),
        "paper-family": replace(
            _PAPER_TRAIN,
            title="families and manufacturers: ResNet-50 on FGVC-Aircraft, ten runs",
            datasets=("aircraft",),
            models=("resnet50",),
        ),
        "paper-nabirds": replace(
            _PAPER_TRAIN,
            title="end to end on NABirds: eight methods",
            methods=NABIRDS_METHODS,
            datasets=("nabirds",),
        ),
        "paper-probe": replace(
            _FAIR_PROBE,
            title="linear probes: ten methods at each dilution and pairing of rates",
            methods=PAPER_METHODS,
            seeds=1,
            lr=PROBE_RATE,
            fixed=fixed_runs,
        ),
        "fair-end-to-end": _FAIR_TRAIN,
        "fair-nabirds": replace(
            _FAIR_TRAIN,
            title="end to end on NABirds, fairly: eight methods",
            methods=(*NABIRDS_METHODS, "hace_tuned"),
            datasets=("nabirds",),
        ),
        "fair-probe": _FAIR_PROBE,
        "controls": replace(
            _FAIR_PROBE,
            title="linear probes, fairly: HACE, SCE and the controls",
            methods=(*_PAIR, "hace_tuned", *CONTROLS),
        ),
        **{
            f"{name}-end-to-end": replace(
                _FAIR_TRAIN,
                title=f"end to end: {PRESETS[name].title}",
                methods=(*_LABEL_METHODS, *(key for key in PRESETS[name].methods if METHODS[key].drops)),
                models=("resnet18",),
                labels=PRESETS[name].labels,
            )
            for name in ("mixed-labels", "low-shot", "noisy-labels")
        },
    }
)
