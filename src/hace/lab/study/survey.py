"""The data of a study, looked at before anything runs: what study.json records of them, and which questions they leave open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hace.data import Dataset, Features
from hace.errors import ConfigError, DataError, HaceError
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import leaf_counts
from hace.lab.runs.config import DataConfig
from hace.lab.runs.samples import coarse_nodes, data_of, has_siblings, known_labels
from hace.lab.study.configurations import HELD_OUT, Configuration
from hace.lab.study.plan import StudyPlan

# Public datasets by classes, nodes and training samples: enough to price a study of them.
SIZES = {"cifar100": (100, 120, 50_000), "aircraft": (100, 201, 6_667), "nabirds": (555, 1_011, 23_929)}
DINOV2_FEATURES = 1024

Place = tuple[str, str]  # the name of a dataset, and the kind of runs on it


class Survey:
    """The data of a plan: what a study records of each dataset, and why others cannot be used."""

    def __init__(self, data: Mapping[Place, DataConfig]) -> None:
        self.datasets: dict[Place, dict[str, Any]] = {}  # for study.json
        # Of features, the data with one sample per split: enough to see which runs share a pass.
        self.sources: dict[str, Dataset[Any]] = {}
        self.trees: dict[str, Hierarchy] = {}
        self.problems: dict[str, str] = {}  # why a dataset cannot be used
        # Labels to train on, and how many are those of the split "train".
        self._truth: dict[Place, tuple[np.ndarray, int]] = {}
        for place, config in data.items():
            try:
                self.datasets[place] = self._look(place, config)
            except HaceError as error:
                self.problems[place[0]] = str(error)

    def document(self) -> dict[str, dict[str, Any]]:
        """The "data" of study.json: by name; the second kind of a dataset that has both is "also" there."""
        document: dict[str, dict[str, Any]] = {}
        for (name, _), about in self.datasets.items():
            document[name] = {**document[name], "also": about} if name in document else about
        return document

    def resolved(self, configuration: Configuration) -> Configuration:
        """A configuration that says what its search holds out: the data's validation split if there is one, else a share."""
        if configuration.validation is not None:
            return configuration
        samples = self.datasets[place_of(configuration)]["samples"]
        return replace(configuration, validation="split" if "val" in samples else HELD_OUT)

    def asked(self, plan: StudyPlan) -> StudyPlan:
        """The plan with the questions that its data leave open.

        Where training labels are at mixed levels already, it is whether to use or drop those, as they are. Elsewhere there is
        nothing to drop while all labels are known, and another tree, shuffled or induced, has no place for coarse labels.
        """
        self._check_levels(plan)
        configurations = [c for c in plan.configurations if self._is_informative(c)]
        self._reject_lost_data(plan, configurations)
        if not configurations:
            raise ConfigError(
                "A study must have at least one run. Got none: with all labels known there is nothing to drop, and labels "
                "that are coarse already are not made coarser. Change methods, shares or only."
            )
        self._count_changes(configurations)
        return plan._replace(configurations=configurations)

    def notes(self) -> Iterator[str]:
        """The datasets whose validation split chooses, labels at mixed levels, and what made labels really change."""
        for (name, _), about in self.datasets.items():
            samples = about["samples"]
            if samples.get("val"):
                yield f"{name}: its validation split ({samples['val']:,} samples) chooses under the fair protocol"
            # Final models train on both splits, so that is what "training samples" are, here as in the report.
            coarse = about.get("coarse", 0) + about.get("coarse_val", 0)
            if coarse:
                total = samples["train"] + samples.get("val", 0)
                yield f"{name}: {coarse:,} of {total:,} training samples are labelled above the leaves"
            for state, share in about.get("changed", {}).items():
                what = "are wrong" if "wrong" in state else "leave the class open"
                note = f"{name}, {state}: {100 * share:.0f}% of the training labels {what}"
                alone = about["classes"] - about["siblings"] if "parent" in state else 0
                if alone:
                    note += f"; {alone:,} of {about['classes']:,} classes have no sibling and keep theirs"
                yield note

    def _look(self, place: Place, config: DataConfig) -> dict[str, Any]:
        """What study.json records of a dataset; what the survey needs later is kept on the way.

        A published dataset without a folder, such as one to be downloaded, is recorded by its published size and not opened.
        """
        name, kind = place
        about: dict[str, Any] = {"kind": kind, "config": config.to_dict()}
        if config.root is None and name in SIZES:
            return {**about, **_published_size(name, kind)}
        data = data_of(config)
        data["test"]  # raises where there is none: better here than after the search
        self._remember(place, data)
        h = data.hierarchy
        first = next(iter(data.splits.values()))
        return {
            **about,
            "fingerprint": data.fingerprint,
            "hierarchy": h.fingerprint,
            "classes": h.num_leaves,
            "nodes": h.num_nodes,
            "samples": {split: len(samples) for split, samples in data.splits.items()},
            "coarse": _count_coarse(data, "train"),
            "coarse_val": _count_coarse(data, "val"),
            "siblings": int(has_siblings(h)[h.leaf_nodes].sum()),
            "features": int(first.x.shape[1]) if isinstance(first, Features) else None,
        }

    def _remember(self, place: Place, data: Dataset[Any]) -> None:
        """Keep the tree and the labels of a dataset; of features also one sample per split, for `sources`."""
        name, kind = place
        self.trees[name] = data.hierarchy
        labels = [data[split].nodes for split in ("train", "val") if split in data.splits]
        self._truth[place] = np.concatenate(labels), len(labels[0])
        if kind == "probe":
            one_each = {split: samples.select([0]) for split, samples in data.splits.items()}
            self.sources[name] = Dataset(data.name, data.hierarchy, one_each, source=data.source)

    def _check_levels(self, plan: StudyPlan) -> None:
        """Refuse a level that a hierarchy does not have, and data without labels at the leaves."""
        for configuration in plan.configurations:
            tree = self.trees.get(configuration.key.dataset)
            if tree is not None:
                coarse_nodes(tree, configuration.config.data.labels.to)
        for (name, _), about in self.datasets.items():
            if about.get("coarse") and about["coarse"] == about["samples"]["train"]:
                raise DataError(
                    f"{name} must have training samples labelled with a class. All are above the leaves."
                )

    def _reject_lost_data(self, plan: StudyPlan, asked: Sequence[Configuration]) -> None:
        """Refuse to leave out a dataset because its labels are coarse already."""
        left = {configuration.key.dataset for configuration in asked}
        for configuration in plan.configurations:
            name = configuration.key.dataset
            if name not in left and self._has_coarse_labels(configuration):
                raise ConfigError(
                    f"shares must hold 0, the labels as they are: some training samples of {name} are labelled "
                    f"above the leaves already, and the study asks whether to use or drop these samples. Got no 0."
                )

    def _is_informative(self, configuration: Configuration) -> bool:
        """Whether a configuration asks something of its data."""
        data = configuration.config.data
        all_known = not data.labels.coarse and data.labels.fine is None
        if self._has_coarse_labels(configuration):
            repeats = bool(data.labels.coarse)  # they are not made coarser
        else:
            repeats = all_known and data.labels.drop  # there is nothing to drop
        other_tree = data.shuffle is not None or data.induce is not None
        return not repeats and (not other_tree or all_known or data.labels.drop)

    def _has_coarse_labels(self, configuration: Configuration) -> bool:
        """Whether some training samples of a configuration's data are labelled above the leaves."""
        return bool(self.datasets.get(place_of(configuration), {}).get("coarse"))

    def _count_changes(self, configurations: Iterable[Configuration]) -> None:
        """Note in `datasets`, by the state of the labels, the share of training labels that it really changes, at seed 0: to
        another class, or to a node above several. A class alone under its parent keeps its labels.
        """
        for configuration in configurations:
            place = place_of(configuration)
            labels = configuration.config.data.labels
            if place not in self._truth or not labels.text or labels.drop:
                continue
            shares = self.datasets[place].setdefault("changed", {})
            if labels.text not in shares:
                h = self.trees[configuration.key.dataset]
                true, first = self._truth[place]
                known = known_labels(true, h, labels, 0, first)
                changed = known != true if labels.wrong else leaf_counts(h)[known] > 1
                shares[labels.text] = float(changed.mean())


def place_of(configuration: Configuration) -> Place:
    """Where the data of a configuration are."""
    return configuration.key.dataset, configuration.config.kind


def _published_size(name: str, kind: str) -> dict[str, Any]:
    """What is known of a public dataset that is not here."""
    classes, nodes, train = SIZES[name]
    features = DINOV2_FEATURES if kind == "probe" else None
    return {
        "fingerprint": "",
        "hierarchy": "",
        "classes": classes,
        "nodes": nodes,
        "samples": {"train": train},
        "features": features,
    }


def _count_coarse(data: Dataset[Any], split: str) -> int:
    """How many samples of a split, if there is one, are labelled above the leaves."""
    samples = data.splits.get(split)
    return 0 if samples is None else len(samples) - len(samples.leaf_only())
