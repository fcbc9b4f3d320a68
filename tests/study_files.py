"""A tiny study for tests: features in a file, a hierarchy, and what its runs leave behind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from hace.lab.study.folder import StudyFolder, started
from hace.lab.study.plan import Choices, StudyPlan
from hace.lab.study.survey import Survey

PATHS = {
    "husky": "animal/dog",
    "beagle": "animal/dog",
    "tabby": "animal/cat",
    "siamese": "animal/cat",
    "oak": "plant/tree",
    "fir": "plant/tree",
    "rose": "plant/flower",
}
TIMES = ("seconds",)


def write_features(folder: Path, *, seed: int = 0, noise: float = 0.6) -> tuple[Path, Path]:
    """A file of features, and one with the hierarchy: seven classes, twenty samples each."""
    rng = np.random.default_rng(seed)
    names = sorted(PATHS)
    groups = sorted(set(PATHS.values()))
    steps = {name: rng.normal(size=8) for name in [*groups, *names]}
    x, y, split = [], [], []
    for name in names:
        for i in range(20):
            x.append(steps[PATHS[name]] + 0.5 * steps[name] + noise * rng.normal(size=8))
            y.append(name)
            split.append("train" if i < 14 else "test")
    features, hierarchy = folder / "plants.npz", folder / "plants.csv"
    np.savez(features, X=np.array(x, np.float32), y=np.array(y), split=np.array(split))
    lines = {f"{path.split('/')[0]},{path}" for path in PATHS.values()}
    lines |= {f"{path},{name}" for name, path in PATHS.items()}
    hierarchy.write_text("parent,child\n" + "\n".join(sorted(lines)) + "\n")
    return features, hierarchy


def plants_study(folder: Path) -> list[str]:
    """The beginning of `hace study` on these features, which are written if they are not there."""
    features, hierarchy = folder / "plants.npz", folder / "plants.csv"
    if not features.exists():
        write_features(folder)
    return ["study", "fair-probe", "--features", f"plants={features}", "--hierarchy", f"plants={hierarchy}"]


def start_study(folder: Path, plan: StudyPlan, choices: Choices, survey: Survey) -> StudyFolder:
    """A study whose runs are not made yet, and whose lock is free again."""
    with started(folder, plan, choices, survey) as study:
        return study


def study_options(folder: Path, *more: str) -> list[str]:
    """`hace study` with four methods on these features."""
    options = plants_study(folder)
    options += [
        "--methods",
        "cross_entropy,hace,cross_entropy_paths,conditional_softmax",
        "--rates",
        "1,8",
        "--seeds",
        "1",
        "--only",
        "dilution=0.5,None",
    ]
    return [*options, *more]


def outcomes(runs: Path) -> dict[str, tuple[bytes | None, ...]]:
    """All that finished runs say, but for times: the bytes of results, weights, predictions and logs."""
    results = {}
    for folder in sorted(runs.iterdir()):
        result = json.loads((folder / "result.json").read_text())
        rest = {key: value for key, value in result.items() if key not in TIMES}
        names = ("weights.safetensors", "predictions.safetensors", "log.jsonl", "hierarchy.json")
        files = [(folder / name).read_bytes() if (folder / name).exists() else None for name in names]
        results[folder.name] = (json.dumps(rest).encode(), *files)
    return results
