"""Synthetic data: a ragged taxonomy with features or small images, for demos, tests and first steps.

Features diffuse down a random tree: every node adds a random step to the mean of its parent, so that classes close in the
tree look alike; `signal` scales the steps. Images follow the same idea: every node adds a smooth pattern of colour, coarse
near the top and finer below. On such data a hierarchy helps by construction: results show that a method works as intended,
not how much it gains on real data.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from hace.checks import require
from hace.data.dataset import Dataset
from hace.data.loading import HierarchyLike, chosen_hierarchy
from hace.data.split import Features, Samples
from hace.hierarchy import Hierarchy

SIDE = 32


def synthetic_hierarchy(classes: int = 40, seed: int = 0) -> Hierarchy:
    """A random ragged tree with a root: leaves at several depths, and nodes with two to five children.

    Args:
        classes: The number of leaves.
        seed: Seed of the tree.

    Example:
        >>> h = synthetic_hierarchy(12)
        >>> h.num_leaves, h.rooted, h.leaves[:3]
        (12, True, ('1.1', '1.2', '1.3'))
    """
    require("classes", classes, "from 2 to 100,000", 2 <= classes <= 100_000)
    rng = np.random.default_rng([seed, 1])
    edges: list[tuple[str, str]] = []
    waiting = [("root", "", classes)]  # a node, the prefix of its children's ids, the leaves below it
    while waiting:
        node, prefix, leaves = waiting.pop()
        parts = min(leaves, int(rng.integers(2, 6)))
        # Every part gets one leaf, the rest fall at random: unequal parts make a ragged tree.
        sizes = 1 + rng.multinomial(leaves - parts, rng.dirichlet(np.ones(parts)))
        for i, size in enumerate(sizes.tolist(), 1):
            child = f"{prefix}{i}"
            edges.append((node, child))
            if size > 1:
                waiting.append((child, f"{child}.", size))
    return Hierarchy.from_edges(edges)


def synthetic_features(
    hierarchy: HierarchyLike = None,
    root_node: bool | None = None,
    *,
    classes: int = 40,
    signal: float = 1.0,
    dim: int = 64,
    train: int = 50,
    test: int = 20,
    coarse: float = 0.0,
    nuisance: float = 0.0,
    seed: int = 0,
) -> Dataset[Features]:
    """Features by diffusion down a tree.

    A node's mean is its parent's plus a normal step of length about 3 `signal`; a sample is its class's mean plus standard
    normal noise in each of `dim` directions, all divided by the square root of `dim`. Such classes are told apart by their
    means alone; with a nuisance, as in features of photos, a head has to learn which directions say nothing.

    Args:
        hierarchy: The classes; by default `synthetic_hierarchy(classes, seed)`.
        root_node: Whether to have a root; by default as the hierarchy has it.
        classes: The number of leaves of the default hierarchy.
        signal: 0 is noise alone; from about 1 on the classes separate well.
        dim: The number of features.
        train: Training samples per class.
        test: Test samples per class.
        coarse: The share of training samples labelled with the parent of their class.
        nuisance: How much all classes vary, like photos by pose and light, in a quarter of the directions.
        seed: Seed of everything.

    Example:
        >>> data = synthetic_features(classes=10, dim=8)
        >>> data["train"].x.shape, data["test"].x.dtype
        ((500, 8), dtype('float32'))
    """
    counts = {"dim": dim, "train": train, "test": test}
    h = _checked(hierarchy, root_node, classes, signal, counts, coarse, seed)
    require("nuisance", nuisance, "0 or more", 0 <= nuisance < np.inf)
    rng = np.random.default_rng([seed, 2])
    means = diffuse(h, rng.standard_normal((h.num_nodes, dim)) * (3 * signal / np.sqrt(dim)))[h.leaf_nodes]
    directions = np.linalg.qr(np.random.default_rng([seed, 4]).standard_normal((dim, -(-dim // 4))))[0].T
    splits = {}
    for split, count in (("train", train), ("test", test)):
        labels = np.repeat(np.arange(h.num_leaves), count)
        x = means[labels] + rng.standard_normal((len(labels), dim))
        if nuisance:
            x += (nuisance * rng.standard_normal((len(labels), len(directions)))) @ directions
        nodes = _coarsened(h, labels, coarse if split == "train" else 0.0, rng)
        names = [f"{split}/{i:06d}" for i in range(len(labels))]
        splits[split] = Features(h, nodes, names, (x / np.sqrt(dim)).astype(np.float32))
    return Dataset("synthetic-features", h, splits)


def synthetic_images(
    hierarchy: HierarchyLike = None,
    root_node: bool | None = None,
    *,
    classes: int = 40,
    signal: float = 1.0,
    train: int = 50,
    test: int = 20,
    coarse: float = 0.0,
    seed: int = 0,
) -> Dataset[Samples]:
    """Images of 32 x 32 pixels: a class is the sum of the colour patterns of its path, a sample a shifted noisy copy.

    Args:
        hierarchy: The classes; by default `synthetic_hierarchy(classes, seed)`.
        root_node: Whether to have a root; by default as the hierarchy has it.
        classes: The number of leaves of the default hierarchy.
        signal: 0 is noise alone; from about 1 on the classes separate well.
        train: Training images per class.
        test: Test images per class.
        coarse: The share of training images labelled with the parent of their class.
        seed: Seed of everything.

    Example:
        >>> data = synthetic_images(classes=10, train=5, test=2)
        >>> tuple(data["train"].pixels.shape), data["test"].image(0).size
        ((50, 3, 32, 32), (32, 32))
    """
    h = _checked(hierarchy, root_node, classes, signal, {"train": train, "test": test}, coarse, seed)
    rng = np.random.default_rng([seed, 3])
    means = diffuse(h, patterns(h, rng) * (28 * signal))[h.leaf_nodes].astype(np.float32)
    splits = {}
    for split, count in (("train", train), ("test", test)):
        labels = np.repeat(np.arange(h.num_leaves), count)
        x = means[labels]
        for axis in (2, 3):  # the object is never quite centred
            shifts = rng.integers(-2, 3, len(labels))
            for shift in np.unique(shifts):
                x[shifts == shift] = np.roll(x[shifts == shift], shift, axis)
        x += rng.standard_normal(x.shape, dtype=np.float32) * 32
        x += (rng.standard_normal((len(x), 3, 1, 1)) * 12).astype(np.float32)  # the light
        pixels = torch.from_numpy(np.clip(x + 128, 0, 255).astype(np.uint8))
        nodes = _coarsened(h, labels, coarse if split == "train" else 0.0, rng)
        splits[split] = Samples(h, nodes, [f"{split}/{i:06d}" for i in range(len(labels))], pixels)
    return Dataset("synthetic", h, splits)


def diffuse(hierarchy: Hierarchy, steps: np.ndarray) -> np.ndarray:
    """For each node the sum of the steps (N, ...) along its path; on a DAG a node starts at the mean of its parents."""
    values = steps.astype(np.float64)
    for node in range(hierarchy.num_nodes):  # parents come before children
        if above := hierarchy._parents_of(node):
            values[node] += values[above].mean(axis=0)
    return values


def patterns(hierarchy: Hierarchy, rng: np.random.Generator) -> np.ndarray:
    """(N, 3, 32, 32): for each node a smooth random field of unit variance, finer with depth."""
    y, x = np.meshgrid(np.arange(SIDE), np.arange(SIDE), indexing="ij")
    fields = np.empty((hierarchy.num_nodes, 3, SIDE, SIDE))
    waves = 3
    for node, depth in enumerate(hierarchy.depths.tolist()):
        frequency = rng.uniform(-1, 1, (waves, 2)) * (0.5 + depth) * 2 * np.pi / SIDE
        phase = rng.uniform(0, 2 * np.pi, waves)
        down, across = frequency.T[..., None, None]
        wave = np.cos(down * y + across * x + phase[:, None, None])
        colour = rng.standard_normal((3, waves))
        fields[node] = np.tensordot(colour, wave, 1) * np.sqrt(2 / waves)
    return fields


def _coarsened(h: Hierarchy, labels: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Node indices; a random share of the samples moves up to the parent, if there is one."""
    nodes = h.leaf_nodes[labels].copy()
    above = np.arange(h.num_nodes)
    above[h.edges[:, 1]] = h.edges[:, 0]
    chosen = rng.random(len(nodes)) < share
    nodes[chosen] = above[nodes[chosen]]
    return nodes


def _checked(
    hierarchy: HierarchyLike,
    root_node: bool | None,
    classes: int,
    signal: float,
    counts: Mapping[str, int],
    coarse: float,
    seed: int,
) -> Hierarchy:
    for name, count in counts.items():
        require(name, count, "at least 1", count >= 1)
    require("signal", signal, "0 or more", 0 <= signal < np.inf)
    require("coarse", coarse, "from 0 to 1", 0 <= coarse <= 1)
    require("seed", seed, "0 or more", seed >= 0)
    return chosen_hierarchy(hierarchy, root_node, lambda: synthetic_hierarchy(classes, seed))
