"""Held-out samples with twins in training: the guarantee when splits keep near-copies together, and before.

    python benchmarks/twins.py features PHOTOS --weights tf_efficientnet_lite0.safetensors --out bursts.npz
    python benchmarks/twins.py bursts bursts.npz
    python benchmarks/twins.py groceries groceries.npz
    python benchmarks/twins.py frogs DATA/frog_calls

At most 5% of new samples may get a false answer, on average over calibrations. `bursts`: photos of CUB-200, as a phone takes
them: three shots of each, with another crop, angle, light and sharpness; a third of the photos is new and has one shot. PHOTOS
has a folder for each class in train/. `groceries`: real bursts, the photos of the Grocery Store Dataset (for groceries.npz see
new_photos.py); its test photos were taken elsewhere. `frogs`: syllables of frog calls whose recordings nobody names; those of a
third of the recordings are new.

Held out are 30% of the labelled samples: at random; with near-copies together, as `hace fit` does by itself; with runs in the
order of the data together (`--groups sequence`); with the true groups together, where they are known (`--groups`). Columns: the
samples that have a near-copy; the held-out samples with one in training; accuracy held out and new; false answers and answers
about new samples. Means over repetitions; "its error" is the standard error of the false answers.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from new_photos import ALPHA, HELD, Samples, frogs, groceries, scores_of
from PIL import Image, ImageEnhance, ImageFilter

from hace import Hierarchy, guaranteed_threshold
from hace.data.split import part_of_each, part_of_groups
from hace.decisions.ladders import outcomes_of
from hace.decisions.scores import Scores
from hace.fitting.inputs import Given
from hace.fitting.twins import near_copies, runs
from hace.lab.features.backbones import load_backbone

CLASSES, PHOTOS, SHOTS = 60, 21, 3


def features(args: argparse.Namespace) -> None:
    """Features of shots of photos."""
    torch.set_num_threads(1)
    backbone = load_backbone("tf_efficientnet_lite0", checkpoint=args.weights)
    rng = np.random.default_rng(0)
    folders = sorted(path for path in (args.source / "train").iterdir() if path.is_dir())
    x, classes, photos = [], [], []
    for folder in folders[:: max(1, len(folders) // CLASSES)][:CLASSES]:
        for path in sorted(folder.glob("*.jpg"))[:PHOTOS]:
            with Image.open(path) as image:
                shots = [backbone.transform(shot(image.convert("RGB"), rng)) for _ in range(SHOTS)]
            x.append(backbone(torch.stack(shots)).numpy())
            classes += [folder.name] * SHOTS
            photos += [str(path.relative_to(args.source))] * SHOTS
        print(folder.name, flush=True)
    np.savez(args.out, x=np.concatenate(x).astype(np.float16), y=np.array(classes), photo=np.array(photos))


def shot(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A photo as another shot of the same moment."""
    turned = image.rotate(rng.uniform(-3, 3), Image.Resampling.BICUBIC)
    width, height = turned.size
    share = rng.uniform(0.8, 0.92)
    left, top = rng.uniform(0.03, 0.97 - share, 2)
    box = (int(left * width), int(top * height), int((left + share) * width), int((top + share) * height))
    lit = ImageEnhance.Brightness(turned.crop(box)).enhance(rng.uniform(0.85, 1.15))
    return lit.filter(ImageFilter.GaussianBlur(rng.uniform(0, 0.8)))


def bursts(path: Path) -> Samples:
    """The shots of two thirds of the photos are labelled, and one of each other photo is new."""
    data = np.load(path)
    leaves = sorted(set(data["y"].tolist()))
    # The last word of a bird's name is its group: Black_footed_Albatross.
    tree = Hierarchy.from_paths(
        [(leaf.rpartition("_")[2], leaf) for leaf in leaves], leaves=leaves, ids="level"
    )
    x = data["x"].astype(np.float32)
    photo = np.unique(data["photo"], return_inverse=True)[1]

    def deal(i: int) -> tuple[np.ndarray, np.ndarray]:
        new = np.random.default_rng(i).permutation(photo.max() + 1)[: (photo.max() + 1) // 3]
        first = np.unique(photo, return_index=True)[1]
        return np.flatnonzero(~np.isin(photo, new)), first[new]

    y = np.array([leaves.index(name) for name in data["y"].tolist()])
    return Samples(x - x.mean(axis=0), y, tree, photo, deal)


STUDIES = {"bursts": bursts, "groceries": groceries, "frogs": frogs}


def ways_together(
    s: Samples, labelled: np.ndarray, kind: str
) -> tuple[dict[str, np.ndarray | None], np.ndarray]:
    """The groups that each way keeps together, and the near-copies."""
    nodes = s.tree.leaf_nodes[s.y[labelled]]
    names = [str(i) for i in labelled.tolist()]
    copies = near_copies(Given(kind, s.x[labelled], nodes, s.tree, names))
    ways: dict[str, np.ndarray | None] = {
        "random": None,
        "near-copies together": copies.astype(str),
        "runs together": runs(nodes),
    }
    if s.groups is not None:
        ways["true groups together"] = s.groups[labelled].astype(str)
    return ways, copies


def measured(s: Samples, train: np.ndarray, held: np.ndarray, new: np.ndarray) -> tuple[float, ...]:
    """Accuracy held out and new, false answers and answers about new samples."""
    scores = scores_of(s, train)
    here, there = scores(held), scores(new)
    sure = guaranteed_threshold(here, s.y[held], s.tree, 1 - ALPHA)
    assert isinstance(sure.threshold, float)
    outcomes = outcomes_of(Scores(there, s.tree), s.tree.leaf_nodes[s.y[new]], labels="nodes")
    false = float(outcomes.losses(sure.threshold).mean())
    said = float((outcomes.answered >= sure.threshold).mean())
    return (
        float((here.argmax(1) == s.y[held]).mean()),
        float((there.argmax(1) == s.y[new]).mean()),
        false,
        said,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=("features", *STUDIES))
    parser.add_argument("source", type=Path)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--out", type=Path, default=Path("bursts.npz"))
    args = parser.parse_args()
    if args.study == "features":
        return features(args)
    s = STUDIES[args.study](args.source)
    rows: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for i in range(args.repetitions):
        labelled, new = s.deal(i)
        labelled = np.sort(labelled)  # in the order of the data
        ways, copies = ways_together(s, labelled, "features" if args.study == "frogs" else "photos")
        have = (np.bincount(copies)[copies] > 1).mean()
        for name, together in ways.items():
            y = s.y[labelled]
            if together is None:
                train, held = part_of_each(y, HELD, [i])
            else:
                train, held = part_of_groups(y, together, HELD, [i])
            twins = np.isin(copies[held], copies[train]).mean()
            figures = measured(s, labelled[train], labelled[held], new)
            rows[name].append((have, twins, *figures))
        print(f"{i + 1} of {args.repetitions}", flush=True)
    heads = (
        "kept together",
        "have a near-copy",
        "held out with one in training",
        "accuracy held out",
        "new",
        "false",
        "its error",
        "answered",
    )
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for name, made in rows.items():
        have, twins, held_right, new_right, false, said = np.mean(made, axis=0)
        error = np.std([row[4] for row in made], ddof=1) / np.sqrt(len(made))
        shares = (have, twins, held_right, new_right, false, error, said)
        print(f"| {' | '.join([name, *(f'{share:.1%}' for share in shares)])} |")


if __name__ == "__main__":
    main()
