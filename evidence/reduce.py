"""Fewer dimensions or fewer training samples: python evidence/reduce.py IN.npz OUT.npz [--dims 256] [--per-class 100]

--dims: a principal component analysis of the training features; test features go through the same map. A probe on 256 of 1,280
dimensions trains five times as fast, which is what makes studies of thousands of probes affordable. --per-class keeps the first
training samples of each class; the test samples stay.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from hace.files.arrays import Arrays


def reduced(train: np.ndarray, test: np.ndarray, dims: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and test features, (M, dims) float32, by the training features' first principal components."""
    mean = train.mean(axis=0, dtype=np.float64)
    centred = train - mean
    values, vectors = np.linalg.eigh(centred.T @ centred)
    axes = vectors[:, np.argsort(values)[::-1][:dims]]
    axes *= np.sign(
        axes[np.abs(axes).argmax(axis=0), np.arange(dims)]
    )  # a sign that does not depend on the solver
    return (centred @ axes).astype(np.float32), ((test - mean) @ axes).astype(np.float32)


def first_of_each(labels: np.ndarray, count: int) -> np.ndarray:
    """Indices of the first `count` samples of each class, in the order of the file."""
    return np.sort(np.concatenate([np.flatnonzero(labels == label)[:count] for label in np.unique(labels)]))


def main() -> None:
    """Read, reduce, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--dims", type=int, help="dimensions to keep; by default all")
    parser.add_argument(
        "--per-class", type=int, help="training samples to keep of each class; by default all"
    )
    args = parser.parse_args()
    arrays = Arrays(args.source)
    results = {name: np.asarray(arrays[name]) for name in ("x_train", "y_train", "x_test", "y_test")}
    if args.per_class is not None:
        first = first_of_each(results["y_train"], args.per_class)
        results |= {name: results[name][first] for name in ("x_train", "y_train")}
    if args.dims is not None:
        train, test = (results[name].astype(np.float64) for name in ("x_train", "x_test"))
        results["x_train"], results["x_test"] = reduced(train, test, args.dims)
    np.savez(args.target, **results)  # pyright: ignore[reportArgumentType]
    print(
        f"{args.target}: {len(results['x_train'])} training samples in {results['x_train'].shape[1]} dimensions"
    )


if __name__ == "__main__":
    main()
