"""Studies made up for the tests of the report: real run directories, with predictions drawn at random."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hace import Hierarchy, build_loss
from hace.lab.report.document import Document, Entry, Section, Table
from hace.lab.report.page import to_page
from hace.lab.runs.config import DataConfig, LabelsConfig, LossConfig, ProbeConfig
from hace.lab.runs.result import Temperature, diverged_result, evaluate_outputs
from hace.lab.runs.run import DataPrint, Run, start_run
from hace.lab.study.configurations import Configuration, ConfigurationKey, rate_candidates
from hace.lab.study.presets import METHODS
from hace.lab.study.records import Record

ANIMALS = {
    "husky": ("animal", "dog"),
    "beagle": ("animal", "dog"),
    "tabby": ("animal", "cat"),
    "siamese": ("animal", "cat"),
    "sparrow": ("animal", "bird"),
    "</script><b>&\"'$x_1$": ("animal", "bird"),
}


def animals() -> Hierarchy:
    """Two levels below a root, and a class whose name is hostile."""
    return Hierarchy.from_paths([(*above, leaf) for leaf, above in ANIMALS.items()], leaves=list(ANIMALS))


def make_run(
    folder: Path,
    hierarchy: Hierarchy,
    config: ProbeConfig,
    name: str,
    skill: float,
    samples: int = 40,
    status: str = "finished",
) -> Run:
    """A run whose outputs are noise and `skill` times the truth."""
    data = DataPrint(name, f"data of {name}", hierarchy.fingerprint)
    path = folder / config.identity(data.fingerprint)
    with start_run(path, config, data, hierarchy) as writer:
        train = {"samples": 100, "epochs": config.epochs}
        if status == "diverged":
            return writer.finish(diverged_result(config.evaluate, {"epoch": 1}, train, 0.5))
        truth = np.arange(samples) % hierarchy.num_leaves
        rng = np.random.default_rng([config.seed, int(1000 * config.lr), int(1000 * skill)])
        z = rng.normal(size=(samples, hierarchy.num_leaves))
        z[np.arange(samples), truth] += skill
        loss = build_loss("cross_entropy", hierarchy)
        outputs, warm = [torch.tensor(z, dtype=torch.float32)], config.temperature
        nodes = hierarchy.leaf_nodes[truth]
        outcome = evaluate_outputs(loss, outputs, nodes, hierarchy, temperature=warm)
        if warm is not None:
            outcome = replace(outcome, temperature=Temperature(warm, "config"))
        keep = outcome.predictions() if config.keep else None
        return writer.finish(outcome.result(config.evaluate, train, 1.25), predictions=keep)


def config_of(
    method: str, dilution: float | None, seed: int, lr: float, shuffle: bool = False
) -> ProbeConfig:
    """A run's configuration."""
    loss = (
        METHODS[method].loss_at(dilution if METHODS[method].diluted else None)
        if method in METHODS
        else LossConfig()
    )
    return ProbeConfig(data=DataConfig(shuffle=0 if shuffle else None), loss=loss, seed=seed, lr=lr)


def fair_records(
    folder: Path,
    hierarchy: Hierarchy,
    skills: Mapping[str, float],
    *,
    dataset: str = "pets",
    model: str = "backbone",
    seeds: Sequence[int] = (0, 1, 2),
    rates: Sequence[float] = (1.0, 4.0),
    samples: int = 40,
    temperature: float | None = None,
    labels: LabelsConfig | None = None,
) -> list[Record]:
    """The fair protocol: a search over rates, and the final run at the last of them."""
    labels = labels or LabelsConfig()
    records = []
    for method, skill in skills.items():
        dilution = 0.5 if METHODS[method].diluted else None
        for seed in seeds:
            key = ConfigurationKey("fair", dataset, model, method, dilution, None, seed, labels.text)
            base = config_of(method, dilution, seed, rates[-1], METHODS[method].shuffled)
            known = replace(labels, drop=labels.drop or METHODS[method].drops)
            base = replace(base, temperature=temperature, data=replace(base.data, labels=known))
            for lr in rates:
                config = replace(base, lr=lr, validation=0.1, evaluate="val", keep=False)
                run = make_run(
                    folder, hierarchy, config, dataset, skill * (1 if lr == rates[-1] else 0.2), samples
                )
                records.append(Record(key, "search", lr, run))
            final = make_run(folder, hierarchy, base, dataset, skill, samples)
            edge = "largest rate" if len(rates) > 2 else ""
            records.append(Record(key, "final", base.lr, final, candidates=len(rates), edge=edge))
    return records


def paper_records(
    folder: Path, hierarchy: Hierarchy, *, dataset: str = "aircraft", model: str = "dinov2_large"
) -> list[Record]:
    """The paper's protocol with two seeds: HACE at two dilutions, cross-entropy at two rates; one run diverged, one failed."""
    records = []
    plan = [
        ("hace", 0.2, "standard", 1.0, 2.0, "finished"),
        ("hace", 0.2, "adjusted", 5.0, 3.0, "finished"),
        ("hace", 0.5, "adjusted", 2.0, 1.0, "diverged"),
        ("cross_entropy", 0.2, "standard", 0.2, 1.5, "finished"),
        ("cross_entropy", None, "adjusted", 1.0, 2.5, "finished"),
        ("hxe_0.2", None, None, 1.0, 1.0, "diverged"),
    ]
    for seed in (0, 1):
        for method, dilution, pairing, lr, skill, status in plan:
            key = ConfigurationKey("paper", dataset, model, method, dilution, pairing, seed)
            config = config_of(method, dilution, seed, lr)
            records.append(
                Record(key, "final", lr, make_run(folder, hierarchy, config, dataset, skill, status=status))
            )
        failed = ConfigurationKey("paper", dataset, model, "soft_label_10", None, None, seed)
        records.append(Record(failed, "final", 1.0, None, error="ValueError: out of <memory> & 'luck'"))
        records.append(Record(replace(failed, method="soft_label_30"), "final", 1.0, None))
    return records


def write_study(folder: Path, records: Sequence[Record], hierarchy: Hierarchy) -> Path:
    """The study.json whose grid has these records; their runs are in folder/runs."""
    finals = {}
    rates: dict[ConfigurationKey, list[float]] = {}
    for record in records:
        if record.stage == "final":
            config = (
                record.run.config
                if record.run
                else config_of(record.key.method, record.key.dilution, record.key.seed, 1.0)
            )
            finals[record.key] = config
        else:
            rates.setdefault(record.key, []).append(record.lr)
    configurations = [
        Configuration(key, config, rate_candidates(rates.get(key, [config.lr])))
        for key, config in finals.items()
    ]
    known = {
        name: {
            "config": DataConfig().to_dict(),
            "kind": "probe",
            "fingerprint": f"data of {name}",
            "hierarchy": hierarchy.fingerprint,
            "classes": hierarchy.num_leaves,
            "nodes": hierarchy.num_nodes,
            "samples": {"train": 100, "test": 40},
            "changed": {"40% wrong within parent": 0.2},
        }
        for name in dict.fromkeys(record.key.dataset for record in records)
    }
    document = {
        "format": 2,
        "preset": "animals",
        "command": "hace study animals --methods cross_entropy,hace --seeds 2 --out STUDY",
        "choices": {"methods": ["cross_entropy", "hace"], "seeds": 2},
        "runs": "runs",
        "data": known,
        "configurations": [configuration.to_dict() for configuration in configurations],
        "made_with": {"hace": "0.1", "python": "3.11", "torch": "2.13"},
    }
    (folder / "study.json").write_text(json.dumps(document))
    return folder


def row(table: Table, *names: str) -> dict[str, Entry]:
    """The row of a table whose first cells are these, by heading."""
    results = [r for r in table.rows if tuple(e.text for e in r[: len(names)]) == names]
    assert len(results) == 1
    return dict(zip(table.head, results[0], strict=True))


def page_with(*blocks: Any, **parts: Any) -> str:
    """A page with these blocks."""
    return to_page(
        Document("t", [], sections=[Section("s", "s", blocks)], **parts), ("hace", "cross_entropy"), "1"
    )
