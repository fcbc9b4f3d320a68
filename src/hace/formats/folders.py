"""Hierarchies that are folders: class folders of images, and the text files of NABirds and FGVC-Aircraft."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from hace.errors import FormatError
from hace.files.reading import reason
from hace.formats.draft import Draft, Places, Problems, build, quoted, read_source
from hace.formats.graphs import parse_edges, parse_names
from hace.hierarchy import Hierarchy

# The levels from the top down, and the files that list their names.
FGVC_LEVELS = {"manufacturer": "manufacturers.txt", "family": "families.txt", "variant": "variants.txt"}


def scan_folder(folder: Path, problems: Problems, *, ids: str = "name") -> Draft:
    """A tree of folders: each folder is a node, one without folders inside is a class.

    The given folder itself is not a node. Files do not matter; hidden folders are skipped, links are not
    followed. Labels follow the plain order of strings, as torchvision's ImageFolder numbers its classes
    ("class10" before "class2").
    """
    places = Places()
    waiting = [(folder, -1)]
    while waiting:
        current, below = waiting.pop()
        try:
            with os.scandir(current) as entries:
                shown = (e for e in entries if e.is_dir(follow_symlinks=False) and e.name[0] != ".")
                inside = sorted(e.name for e in shown)
        except OSError as error:
            raise FormatError(f"{current}: the folder cannot be read: {reason(error)}.") from error
        waiting += [(current / name, places.add(name, below)) for name in inside][::-1]
    if not places:
        raise FormatError(
            f"{folder} must hold folders named after classes. Got none. Make one for each class."
        )
    draft = places.draft(ids, problems)
    draft.leaves = sorted({*draft.nodes} - {parent for parent, _ in draft.edges})
    draft.flat = True  # folders of classes side by side are what most people have
    return draft


def holds_nabirds(folder: Path) -> bool:
    """Whether a folder has the dataset's two files."""
    return (folder / "hierarchy.txt").is_file() and (folder / "classes.txt").is_file()


def scan_nabirds(folder: Path, problems: Problems) -> Draft:
    """The dataset's hierarchy.txt ("child parent" per line) and classes.txt ("id name" per line)."""
    source = read_source(folder / "hierarchy.txt")
    draft = parse_edges(source, order="child parent")
    source.problems.raise_any()
    draft.names = parse_names(read_source(folder / "classes.txt"))
    return draft


def holds_fgvc(folder: Path) -> bool:
    """Whether a folder, or `data` in it, has the dataset's list of variants."""
    return any((folder / inside / "variants.txt").is_file() for inside in ("", "data"))


def scan_fgvc(folder: Path, problems: Problems) -> Draft:
    """variants.txt and images_{variant,family,manufacturer}_*.txt of the dataset, for one split or several.

    No file says which variant belongs to which family: it follows from the images, which have a
    label at each level. families.txt and manufacturers.txt are compared where they exist.
    """
    if not (folder / "variants.txt").is_file() and (folder / "data" / "variants.txt").is_file():
        folder = folder / "data"  # as the dataset is unpacked
    labels = {level: _image_labels(folder, level, problems) for level in FGVC_LEVELS}
    problems.raise_broken()
    lists = {level: _listed_names(folder / file, problems) for level, file in FGVC_LEVELS.items()}
    for level, listed in lists.items():
        used = set(labels[level].values())
        for name in sorted(used ^ listed.keys()) if listed else ():
            words = "has no image" if name in listed else f"is not in {FGVC_LEVELS[level]}"
            problems.unfit(None, f"the {level} {quoted(name)} {words}.")
    draft = Draft(leaves=list(lists["variant"]), level_names=list(FGVC_LEVELS), rooted=False)
    for low, high in (("variant", "family"), ("family", "manufacturer")):
        above = _mapping(low, labels[low], high, labels[high], problems)
        for name in sorted(set(labels[low].values()) - above.keys()):
            problems.unfit(None, f"no image of the {low} {quoted(name)} has a {high}.")
        for name, upper in above.items():
            draft.edges.append((f"{high}:{upper}", name if low == "variant" else f"{low}:{name}"))
            draft.names[f"{high}:{upper}"] = upper
    problems.raise_any()
    return draft


def nabirds_hierarchy(folder: str | os.PathLike[str], root: bool = True) -> Hierarchy:
    """The taxonomy of NABirds: 1,011 nodes, 555 of them classes, with the root "Birds".

    Labels follow the numbers of the classes. Levels have no names: below most orders come species, below
    Passeriformes families.

    Args:
        folder: Holds the dataset's hierarchy.txt and classes.txt.
        root: False removes the root, which leaves 22 orders at the top.

    Raises:
        FormatError: If a file is missing or broken.
        HierarchyError: If the files are not a hierarchy.
    """
    hierarchy = _built(scan_nabirds, folder)
    return hierarchy if root else hierarchy.without_root()


def fgvc_hierarchy(folder: str | os.PathLike[str], root: bool = True) -> Hierarchy:
    """The taxonomy of FGVC-Aircraft: 30 manufacturers, 70 families, 100 variants, and a root.

    Names repeat across levels ("Boeing 717" is a family and a variant), so the ids of manufacturers and
    families are "manufacturer:Boeing" and "family:Boeing 717"; a variant's id is its name. Labels follow
    variants.txt.

    Args:
        folder: Holds variants.txt and the images_*.txt files of all three levels, for one split or several;
            or has them in its folder `data`, as the dataset is unpacked.
        root: Whether there is a root above the manufacturers.

    Raises:
        FormatError: If files are missing or broken.
        HierarchyError: If labels contradict each other, with every contradiction.
    """
    hierarchy = _built(scan_fgvc, folder)
    return hierarchy.with_root() if root else hierarchy


def _built(scan: Callable[[Path, Problems], Draft], folder: str | os.PathLike[str]) -> Hierarchy:
    problems = Problems(os.fspath(folder))
    return build(scan(Path(folder), problems), problems)


def _listed_names(file: Path, problems: Problems) -> dict[str, int]:
    """Name to line, one name per line; the two upper lists may be missing."""
    if file.name != "variants.txt" and not file.is_file():
        return {}
    names: dict[str, int] = {}
    for number, line in read_source(file).lines():
        earlier = names.setdefault(line.strip(), number)
        if earlier != number:
            place = f"{file.name}, line {number}"
            problems.unfit(place, f"{quoted(line.strip())} is on line {earlier} already.")
    return names


def _image_labels(folder: Path, level: str, problems: Problems) -> dict[str, str]:
    """Image to label, from all splits that are there; lines are "image label"."""
    files = sorted(folder.glob(f"images_{level}_*.txt"))
    if not files:
        problems.broken(None, f"no file images_{level}_*.txt, such as images_{level}_trainval.txt.")
    labels: dict[str, str] = {}
    for file in files:
        for number, line in read_source(file).lines():
            place = f"{file.name}, line {number}"
            image, _, label = line.strip().partition(" ")
            if not (label := label.strip()):
                problems.broken(place, f"expected an image and its label, got {quoted(line)}.")
            elif (other := labels.setdefault(image, label)) != label:
                words = f"has the {level} {quoted(label)} here and {quoted(other)} before."
                problems.unfit(place, f"image {quoted(image)} {words}")
    return labels


def _mapping(
    low: str, low_labels: dict[str, str], high: str, high_labels: dict[str, str], problems: Problems
) -> dict[str, str]:
    """Lower name to upper name, through the images that have both."""
    upper: dict[str, str] = {}
    reported: set[tuple[str, str]] = set()
    for image, name in low_labels.items():
        above = high_labels.get(image)
        if above is None:
            continue
        other = upper.setdefault(name, above)
        if other != above and (name, above) not in reported:
            reported.add((name, above))
            words = f"has the {high} {quoted(above)} here and {quoted(other)} before."
            problems.unfit(f"image {image}", f"the {low} {quoted(name)} {words}")
    return upper
