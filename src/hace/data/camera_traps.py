"""Camera traps: labels, sites and bursts from the tables people have, crops from MegaDetector, answers in the same columns.

    load_dataset("camera-traps", "images.csv", hierarchy="tree.csv", detections="md.json", test=0.2)

Tables are told apart by their columns: a folder of Camtrap DP (media.csv, observations.csv, deployments.csv), images.csv of
Wildlife Insights, or the CSV that Timelapse exports. Sites, or bursts, become groups, so that no split cuts one.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hace.checks import check_choice, require
from hace.data.dataset import Dataset
from hace.data.loading import HierarchyLike, check_exist, chosen_hierarchy
from hace.data.split import Samples, with_test
from hace.errors import ConfigError, DataError, FormatError, listed
from hace.files.documents import read_json, read_rows
from hace.files.reading import read_taken
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import known_names

Box = tuple[float, float, float, float]  # x, y, width, height as shares of the image's sides
WHOLE: Box = (0.0, 0.0, 1.0, 1.0)
ANIMAL = "animal"  # the category of MegaDetector that is cropped
BLANK = ("", "blank", "empty", "none", "nothing", "false trigger")
RANKS = ("species", "genus", "family", "order", "class")  # columns of Wildlife Insights, the finest first
GROUPS = ("site", "burst", "none")
_TIMES = (
    "%Y-%m-%d %H:%M:%S",
    "%Y:%m:%d %H:%M:%S",
    "%d-%b-%Y %H:%M:%S",
    "%m/%d/%Y %H:%M:%S",
    "%Y-%m-%d %H:%M",
)


class Shot(NamedTuple):
    """An image of a table."""

    path: str
    labels: tuple[str, ...]  # the finest first; none: not labelled
    blank: bool = False
    site: str = ""
    time: str = ""
    sequence: str = ""  # the table's own name of its burst
    box: Box | None = None


def read_shots(path: Path, label: str | None = None) -> list[Shot]:
    """The images of a table; `label` is the column of Timelapse that holds the species."""
    if path.is_dir() or path.name == "datapackage.json":
        return _camtrap(path if path.is_dir() else path.parent)
    header, lines = read_rows(path)
    table = _Table(header, [row for _, row in lines])
    if table.has("relativepath") and table.has("file"):
        return _timelapse(table, path, label or "species")
    if table.has("deployment_id") and (table.has("filename") or table.has("location")):
        return _wildlife_insights(table)
    raise FormatError(
        f"{path} must be a table of Wildlife Insights (deployment_id, filename), of Timelapse (RelativePath, File), or a "
        f"folder of Camtrap DP. Got the columns {listed(header, 30)}."
    )


@dataclass(frozen=True)
class _Table:
    """A table whose columns may be written in any case."""

    header: Sequence[str]
    rows: Sequence[Mapping[str, str]]

    @cached_property
    def _names(self) -> dict[str, str]:
        return {name.casefold(): name for name in self.header}

    def has(self, column: str) -> bool:
        """Whether there is such a column."""
        return column.casefold() in self._names

    def column(self, *wanted: str) -> list[str]:
        """The cells of the first of these columns that is there; empty ones where none is."""
        name = next((self._names[word.casefold()] for word in wanted if self.has(word)), None)
        if name is None:
            return [""] * len(self.rows)
        return [row.get(name, "").strip() for row in self.rows]

    def circumstances(self) -> list[tuple[str, str, str]]:
        """Site, time and burst of each row."""
        sites = self.column("deployment_id", "site", "station")
        times = self.column("timestamp", "datetime", "date")
        bursts = self.column("sequence_id", "sequence", "episode")
        return list(zip(sites, times, bursts, strict=True))


def _timelapse(table: _Table, path: Path, label: str) -> list[Shot]:
    """The images of Timelapse: a row for each, with its folder, file and species."""
    if not table.has(label):
        raise FormatError(
            f"{path} must have a column {label!r}. Got {listed(table.header, 30)}. Name it: -o label=COLUMN."
        )
    files = zip(table.column("relativepath"), table.column("file"), strict=True)
    shots = []
    for (folder, file), name, (site, time, burst) in zip(
        files, table.column(label), table.circumstances(), strict=True
    ):
        inside = folder.replace("\\", "/")
        is_blank = name.casefold() in BLANK
        labels = () if is_blank else (name,)
        shots.append(Shot(f"{inside}/{file}".lstrip("/"), labels, is_blank, site or inside, time, burst))
    return shots


def _wildlife_insights(table: _Table) -> list[Shot]:
    """The images of Wildlife Insights: a row for each, with a column for each rank."""
    images = table.column("filename", "location")
    blank = table.column("is_blank")
    common = table.column("common_name")
    ranks = zip(*(table.column(rank) for rank in RANKS), strict=True)
    shots = []
    for image, flag, known_as, (fine, genus, *above), circumstances in zip(
        images, blank, common, ranks, table.circumstances(), strict=True
    ):
        species = f"{genus} {fine}" if genus and fine else ""
        words = (species, fine, known_as, genus, *above)
        is_blank = flag.casefold() in ("1", "true", "yes") or (known_as or "-").casefold() in BLANK
        labels = () if is_blank else tuple(word for word in words if word)
        shots.append(Shot(image, labels, is_blank, *circumstances))
    return shots


def _camtrap(folder: Path) -> list[Shot]:
    """The images of a Camtrap DP that an observation of its own names; observations of events are not of one image."""
    media = {row["mediaID"]: row for _, row in read_rows(folder / "media.csv")[1]}
    shots = []
    events = 0
    for line, row in read_rows(folder / "observations.csv")[1]:
        if not row.get("mediaID"):
            events += 1
            continue
        if row["mediaID"] not in media:
            raise FormatError(
                f"{folder / 'observations.csv'}, line {line}: there is no medium {row['mediaID']!r}."
            )
        medium = media[row["mediaID"]]
        kind = row.get("observationType", "")
        name = row.get("scientificName", "")
        box = tuple(row.get(f"bbox{side}", "") for side in ("X", "Y", "Width", "Height"))
        shots.append(
            Shot(
                path=medium["filePath"],
                labels=(name,) if kind == ANIMAL and name else (),
                blank=kind == "blank",
                site=medium.get("deploymentID", ""),
                time=medium.get("timestamp", ""),
                sequence=row.get("eventID", ""),
                box=_box(map(float, box)) if all(box) else None,
            )
        )
    if events:
        warnings.warn(
            f"{folder}: {events:,} observations of events name no image, and are left out.", stacklevel=4
        )
    return shots


def read_detections(path: Path, confidence: float = 0.2, padding: float = 0.0) -> dict[str, list[Box]]:
    """Boxes of animals by image, the largest first, from the JSON of MegaDetector; none for an image without."""
    document = read_json(path)
    kinds = document.get("detection_categories") if isinstance(document, dict) else None
    images = document.get("images") if isinstance(document, dict) else None
    if not isinstance(kinds, dict) or not isinstance(images, list):
        raise FormatError(f"{path} must be detections of MegaDetector: 'images' and 'detection_categories'.")
    require("confidence", confidence, "from 0 to 1", 0 <= confidence <= 1)
    require("padding", padding, "0 or more", padding >= 0)
    by_image: dict[str, list[Box]] = {}
    for i, image in enumerate(images):
        try:
            boxes = [
                _box(map(float, d["bbox"]), padding)
                for d in image.get("detections") or ()
                if kinds.get(str(d["category"])) == ANIMAL and float(d["conf"]) >= confidence
            ]
            name = str(image["file"]).replace("\\", "/")
            by_image[name] = sorted(boxes, key=lambda box: -box[2] * box[3])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"{path}: image {i} must have a file and detections with category, conf and bbox."
            ) from error
    return by_image


def _box(given: Iterable[float], padding: float = 0.0) -> Box:
    """A box within the image, larger by a share of its sides."""
    x, y, w, h = given
    if not all(np.isfinite((x, y, w, h))) or w <= 0 or h <= 0:
        raise ValueError("a box needs a width and a height")
    left = max(0.0, x - padding * w)
    top = max(0.0, y - padding * h)
    right = min(1.0, x + w + padding * w)
    bottom = min(1.0, y + h + padding * h)
    return left, top, right - left, bottom - top


def burst_names(sites: Sequence[str], times: Sequence[str], seconds: float) -> list[str]:
    """For each photo the name of its burst: photos of one site, each at most so many seconds after the one before.

    Example:
        >>> burst_names(["a", "a", "b"], ["2026-05-01 10:00:00", "2026-05-01 10:00:30", "2026-05-01 10:00:31"], 60)
        ['a 2026-05-01 10:00:00', 'a 2026-05-01 10:00:00', 'b 2026-05-01 10:00:31']
    """
    taken = [parsed_time(time) for time in times]
    names = [""] * len(sites)
    last = None
    for i in sorted(range(len(sites)), key=lambda i: (sites[i], taken[i])):
        if last is None or sites[i] != sites[last] or (taken[i] - taken[last]).total_seconds() > seconds:
            names[i] = f"{sites[i]} {taken[i]}"
        else:
            names[i] = names[last]
        last = i
    return names


def parsed_time(text: str) -> datetime:
    """A time as tables and cameras write it; its zone is dropped, since clocks of cameras have none."""
    with suppress(ValueError):
        return datetime.fromisoformat(text.strip().replace("Z", "+00:00")).replace(tzinfo=None)
    for form in _TIMES:
        with suppress(ValueError):
            return datetime.strptime(text.strip(), form).replace(tzinfo=None)
    raise DataError(f"A time must be like 2026-05-01 10:00:00. Got {text!r}.")


def load_camera_traps(
    root: Path,
    hierarchy: HierarchyLike = None,
    root_node: bool | None = None,
    *,
    images: str | None = None,
    label: str | None = None,
    detections: str | None = None,
    confidence: float = 0.2,
    boxes: str = "largest",
    padding: float = 0.1,
    empty: str | None = None,
    groups: str = "site",
    burst: float = 60.0,
    test: float = 0.0,
) -> Dataset[Samples]:
    """Images of camera traps by a table; `images` is their folder, by default that of the table.

    A label is the finest name of its row that the hierarchy knows; rows without one are left out with a warning. `detections`
    are MegaDetector's: boxes of animals above `confidence` are cropped, the "largest" of an image or "all", with `padding`.
    `empty` names a class for empty images, beside the tree; without it they are left out. `groups` keeps the photos of a site,
    or of a burst (within `burst` seconds), in one split.
    """
    check_choice("boxes", boxes, ("largest", "all"))
    check_choice("groups", groups, GROUPS)
    h = chosen_hierarchy(hierarchy, root_node)
    if empty is not None:
        h = beside(h, empty)
    if images is not None:
        folder = Path(images)
    else:
        folder = root if root.is_dir() else root.parent
    shots = read_shots(root, label)
    crops = None if detections is None else read_detections(Path(detections), confidence, padding)
    used = _usable(shots, h, empty, crops, 1 if boxes == "largest" else None, root)
    check_exist(folder, [shot.path for shot, _, _ in used])
    shown, nodes, cut = zip(*used, strict=True)
    samples = Samples(
        hierarchy=h,
        nodes=np.array(nodes),
        names=numbered(shot.path for shot in shown),
        paths=[folder / shot.path for shot in shown],
        boxes=np.array(cut),
        relative=True,
        groups=_groups(shown, folder, groups, burst),
    )
    return Dataset(root.resolve().stem, h, with_test({"train": samples}, test, str(root)))


def _usable(
    shots: Sequence[Shot],
    h: Hierarchy,
    empty: str | None,
    crops: Mapping[str, list[Box]] | None,
    most: int | None,
    source: Path,
) -> list[tuple[Shot, int, Box]]:
    """Images with the node of their label and a box, up to `most` boxes of each; a warning counts the others."""
    known = known_names(h)
    used: list[tuple[Shot, int, Box]] = []
    left_out: Counter[str] = Counter()
    for shot in shots:
        name = empty if shot.blank else next((word for word in shot.labels if word in known), None)
        if name is None:
            labelled = f"labelled {shot.labels[0]!r}" if shot.labels else "without a label"
            left_out["blank" if shot.blank else labelled] += 1
            continue
        own = [shot.box or WHOLE] if crops is None or shot.blank else crops.get(shot.path, [])
        if not own:
            left_out["without a box of an animal"] += 1
        used += [(shot, known[name], box) for box in own[:most]]
    if left_out:
        counts = ", ".join(f"{count:,} {what}" for what, count in left_out.most_common(8))
        warnings.warn(
            f"{source}: {sum(left_out.values()):,} of {len(shots):,} images are left out: {counts}.",
            stacklevel=4,
        )
    if not used:
        raise DataError(
            f"{source}: must have images with labels of the hierarchy. Got none of {len(shots):,}."
        )
    return used


def numbered(paths: Iterable[str]) -> list[str]:
    """Names of crops: the path of the image, with #2 and so on for further crops of it."""
    counts: Counter[str] = Counter()
    names = []
    for path in paths:
        counts[path] += 1
        names.append(path if counts[path] == 1 else f"{path}#{counts[path]}")
    return names


def _groups(shots: Sequence[Shot], folder: Path, kind: str, seconds: float) -> np.ndarray | None:
    if kind == "none" or (kind == "site" and not all(shot.site for shot in shots)):
        return None
    if kind == "site":
        return np.array([shot.site for shot in shots])
    if all(shot.sequence for shot in shots):
        return np.array([shot.sequence for shot in shots])
    times = [shot.time or read_taken(folder / shot.path) for shot in shots]
    return np.array(burst_names([shot.site for shot in shots], times, seconds))


def beside(h: Hierarchy, name: str) -> Hierarchy:
    """The hierarchy with one more class at its side, below no other node; itself where it has that class."""
    if name in known_names(h):
        return h
    h = h.without_root()
    if not h.is_tree:
        raise ConfigError(f"empty={name!r} needs a tree or forest. Got {h!r}.")
    edges = [(h.nodes[parent], h.nodes[child]) for parent, child in h.edges.tolist()]
    names = dict(zip(h.nodes, h.names, strict=True))
    leaves = [*h.leaves, name]
    return Hierarchy.from_edges(edges, nodes=leaves, leaves=leaves, names=names, level_names=h.level_names)


def answer_row(document: Mapping[str, Any], form: str, by: str, now: str) -> dict[str, Any]:
    """An answer of `Predictions.documents` in the columns of a format: camtrap, wildlife-insights or timelapse.

    Rank, confidence and guarantee have columns of their own where the format has them, and are in its remarks otherwise.
    """
    answer = document.get("answer", {})
    path = document["sample"].partition("#")[0]
    name = answer.get("name") or ""
    rank = answer.get("level_name") or answer.get("level") or ""
    sure = answer.get("probability")
    guarantee = answer.get("guarantee") or ""
    blank = bool(document.get("empty"))
    remark = document.get("error") or guarantee
    if form == "camtrap":
        if blank:
            kind = "blank"
        else:
            kind = "unknown" if answer.get("id") is None else ANIMAL
        return {
            "observationID": f"{document['sample']}:{by}",
            "mediaID": path,
            "observationLevel": "media",
            "observationType": kind,
            "scientificName": name if kind == ANIMAL else "",
            "classificationMethod": "machine",
            "classifiedBy": by,
            "classificationTimestamp": now,
            "classificationProbability": sure,
            "observationTags": f"rank:{rank}" if rank and kind == ANIMAL else "",
            "observationComments": remark,
        }
    if form == "wildlife-insights":
        columns = {"filename": path, "is_blank": int(blank), "identified_by": by, "common_name": name}
        return columns | {"rank": rank, "cv_confidence": sure, "uncertainty": remark}
    folder, _, file = path.rpartition("/")
    columns = {
        "Species": "empty" if blank else name,
        "Rank": rank,
        "Confidence": sure,
        "Guarantee": guarantee,
    }
    return {"RelativePath": folder, "File": file, **columns, "Error": document.get("error") or ""}
