"""Label Studio: tasks with pre-annotations out, exports in (JSON and JSON-MIN), with coarse choices and several annotators.

    load_dataset("label-studio", "export.json", hierarchy="tree.csv", images="photos", test=0.2)

The opinions of several annotators become one label as in :mod:`hace.data.consensus`. The last answer of an annotator to a task
counts. Several choices in one answer mean "one of these": the label is the node above all of them.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, urlsplit

import numpy as np

from hace.checks import check_choice
from hace.data.consensus import Consensus, consensus
from hace.data.dataset import Dataset
from hace.data.loading import (
    IMAGE_SUFFIXES,
    HierarchyLike,
    check_classes,
    check_exist,
    chosen_hierarchy,
    inside_folder,
)
from hace.data.own_lists import Texts
from hace.data.split import Samples, ordered_splits, split_name, with_test
from hace.errors import DataError, DataWarning, FormatError, HierarchyError, listed, nearest
from hace.files.documents import read_json
from hace.formats.label_studio import CONTROL, OBJECT, choice_path
from hace.hierarchy import Hierarchy
from hace.hierarchy.names import known_names

_RECORD = ("id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time", "agreement")
_KINDS = ("taxonomy", "choices")  # of results
_LOCAL = "/data/local-files/"  # where the files of a local storage are
_UPLOAD = re.compile(r"/data/upload/\d+/(?:[0-9a-f]{8}-)?(?P<file>[^/]+)")
Choices = tuple[tuple[str, ...], ...]  # the paths that an annotator chose


class Answer(NamedTuple):
    """What an annotator said about a sample."""

    annotator: str
    choices: Choices


@dataclass
class Task:
    """A sample of an export."""

    data: Mapping[str, Any]
    answers: list[Answer] = field(default_factory=list)


def is_export(document: Any) -> bool:
    """Whether a JSON document is an export of Label Studio: a list of tasks, or of flat records."""
    rows = document if isinstance(document, list) else []
    return bool(rows) and all(
        isinstance(row, dict)
        and ("annotation_id" in row or (isinstance(row.get("data"), dict) and _answers_of(row) is not None))
        for row in rows
    )


def load_label_studio(
    root: Path,
    hierarchy: HierarchyLike = None,
    root_node: bool | None = None,
    *,
    images: str | None = None,
    prefix: str = "",
    key: str | None = None,
    control: str | None = None,
    agree: float = 2 / 3,
    soft: bool = False,
    allow_empty: bool = False,
    test: float = 0.0,
) -> Dataset[Any]:
    """Photos or texts with the answers of annotators; without a hierarchy it is the one that the choices spell out.

    `images` is the folder of the photos, by default that of the export; `prefix` is taken from the front of their addresses,
    as is /data/local-files/?d=. `key` names the photo or text in a task's data, where there are several, and `control` the tag
    of the choices. `agree` is the share of opinions that a label must exceed. With `soft`, training sees the shares of all
    opinions. A task without an answer is left out with a warning. Tasks whose data have a "split" keep it.
    """
    tasks = read_tasks(root, control)
    key = key or _sample_key([task.data for task in tasks], root)
    photos = key == "image" or _are_photos([task.data.get(key) for task in tasks])
    folder = root.parent if images is None else Path(images)
    merged = _by_sample(tasks, key, folder, prefix, root, photos)
    h = chosen_hierarchy(hierarchy, root_node, lambda: _spelled(merged.values(), root))
    answers = _labels(merged, h, agree, root)
    labelled = np.flatnonzero(answers.nodes >= 0)
    if not len(labelled):
        raise DataError(f"{root}: must have an answer for some sample. Got none for {len(merged):,} samples.")
    if len(labelled) < len(merged):
        lost = len(merged) - len(labelled)
        warnings.warn(
            f"{root}: {lost:,} of {len(merged):,} samples have no answer that annotators agree on, and are left out.",
            DataWarning,
            stacklevel=3,
        )
    names = [str(answers.samples[i]) for i in labelled.tolist()]
    shares = answers.node_shares[labelled] if soft else None
    about: dict[str, Any] = {"hierarchy": h, "nodes": answers.nodes[labelled], "names": names, "soft": shares}
    if photos:
        there = check_exist(folder, names)
        every: Any = Samples(paths=[folder / name for name in there], **about)
    else:
        every = Texts(texts=names, **{**about, "names": [f"row {i + 1}" for i in labelled.tolist()]})
    split_of = [split_name(str(merged[name].data.get("split", "train"))) for name in names]
    splits = {
        name: every.select([i for i, split in enumerate(split_of) if split == name])
        for name in ordered_splits(split_of)
    }
    if not allow_empty and hierarchy is not None:
        check_classes(str(root), h, splits.values())
    source = None if photos else {"column": key}
    return Dataset(root.stem, h, with_test(splits, test, str(root)), source=source)


# ---------------------------------------------------------------------- reading


def read_tasks(path: Path, control: str | None = None) -> list[Task]:
    """The tasks of an export, with the answers of one tag; of JSON-MIN each record is a task."""
    document = read_json(path)
    if not is_export(document):
        raise FormatError(
            f"{path} must be an export of Label Studio, JSON or JSON-MIN: a list of tasks with data and annotations. Got "
            f"{_described(document)}."
        )
    nested = all("annotation_id" not in row for row in document)
    control = control or _only_control(document, nested, path)
    tasks = []
    for place, row in enumerate(document):
        try:
            if nested:
                answers = list(_nested_answers(row, control))
                tasks.append(Task(row["data"], answers))
            else:
                choices = _choices(row.get(control))
                answers = [Answer(_annotator(row.get("annotator")), choices)] if choices else []
                tasks.append(Task({name: row[name] for name in row if name != control}, answers))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"{path}: task {place} must have data, and annotations with results of paths of names. {_reason(error)}"
            ) from error
    return tasks


def _described(document: Any) -> str:
    return f"a list of {len(document)}" if isinstance(document, list) else type(document).__name__


def _reason(error: Exception) -> str:
    return f"Got: {error}." if isinstance(error, ValueError) else "Got another structure."


def _answers_of(row: Mapping[str, Any]) -> list[Any] | None:
    """The annotations of a task; None where it has no list of them. Old versions call them completions."""
    annotations = row.get("annotations", row.get("completions"))
    return annotations if isinstance(annotations, list) else None


def _only_control(document: Sequence[Mapping[str, Any]], nested: bool, path: Path) -> str:
    """The name of the tag whose answers count: the only one with paths, or else with choices."""
    kinds: dict[str, Counter[str]] = {kind: Counter() for kind in _KINDS}
    for row in document:
        if nested:
            for annotation in _answers_of(row) or ():
                for result in _results(annotation):
                    if result.get("type") in kinds:
                        kinds[result["type"]][str(result.get("from_name"))] += 1
        else:
            for name, value in row.items():
                if name not in _RECORD and _is_taxonomy(value):
                    kinds["taxonomy"][name] += 1
    names = kinds["taxonomy"] or kinds["choices"]
    if len(names) == 1:
        return next(iter(names))
    if not names:
        raise FormatError(
            f"{path} must have answers of a Taxonomy tag. Got none. Name another tag: -o control=NAME (control=)."
        )
    raise FormatError(
        f"{path} must have answers of one tag. Got answers of {listed(names)}. Name one: -o control=NAME (control=)."
    )


def _results(annotation: Any) -> list[Mapping[str, Any]]:
    """The results of an annotation that was not cancelled."""
    if not isinstance(annotation, dict) or annotation.get("was_cancelled") or annotation.get("skipped"):
        return []
    results = annotation.get("result")
    return [result for result in results if isinstance(result, dict)] if isinstance(results, list) else []


def _is_taxonomy(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) and "taxonomy" in item for item in value)


def _nested_answers(row: Mapping[str, Any], control: str) -> Iterator[Answer]:
    for annotation in _answers_of(row) or ():
        chosen = [r["value"] for r in _results(annotation) if str(r.get("from_name")) == control]
        choices = tuple(path for value in chosen for path in _choices(value))
        if choices:
            yield Answer(_annotator(annotation.get("completed_by")), choices)


def _choices(value: Any) -> Choices:
    """The paths in a value of either form: {"taxonomy": [[...]]}, {"choices": [...]}, a list of these, or a name."""
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        return ((value,),)
    if isinstance(value, dict):
        kind = next((kind for kind in _KINDS if kind in value), None)
        if kind is None or not isinstance(value[kind], list):
            raise ValueError("neither taxonomy nor choices")
        return tuple(_path(item) for item in value[kind])
    if isinstance(value, list):
        return tuple(path for item in value for path in _choices(item))
    raise ValueError(f"{type(value).__name__} in place of choices")


def _path(item: Any) -> tuple[str, ...]:
    names = (item,) if isinstance(item, str) else item
    if not isinstance(names, list | tuple) or not names or not all(isinstance(n, str) and n for n in names):
        raise ValueError("a choice that is no path of names")
    return tuple(names)


def _annotator(value: Any) -> str:
    """Who answered: a number, an address, or an object with either; "" for nobody."""
    if isinstance(value, dict):
        value = value.get("id", value.get("email"))
    return "" if value is None else str(value)


# ---------------------------------------------------------------------- samples


def _sample_key(data: Sequence[Mapping[str, Any]], path: Path) -> str:
    """The entry of the tasks' data that holds the photo or text."""
    names = Counter(name for row in data for name, value in row.items() if isinstance(value, str))
    common = [name for name, count in names.items() if count == len(data) and name not in (*_RECORD, "split")]
    likely = [name for name in ("image", "text") if name in common] or common
    if len(likely) == 1:
        return likely[0]
    got = f"Got {listed(common)}." if common else "Got none that every task has."
    raise FormatError(
        f"{path}: a task's data must name one photo or text. {got} Say which: -o key=NAME (key=)."
    )


def _are_photos(values: Sequence[Any]) -> bool:
    """Whether values are addresses of photos rather than texts."""
    return all(
        isinstance(v, str) and ("." + v.rpartition(".")[2].lower()) in IMAGE_SUFFIXES and "\n" not in v
        for v in values
    )


def _by_sample(
    tasks: Sequence[Task], key: str, folder: Path, prefix: str, source: Path, photos: bool
) -> dict[str, Task]:
    """The tasks by their photo or text; those of the same one are one, with all answers."""
    merged: dict[str, Task] = {}
    for place, task in enumerate(tasks):
        value = task.data.get(key)
        if not isinstance(value, str) or not value.strip():
            raise FormatError(
                f"{source}: task {place} must have {key!r}, a photo or text. Got {value!r}."
                f"{nearest(key, list(task.data))}"
            )
        name = inside_folder(_file_of(value, prefix, source), folder, str(source)) if photos else value
        merged.setdefault(name, Task(task.data)).answers.extend(task.answers)
    return merged


def _file_of(address: str, prefix: str, source: Path) -> str:
    """The file behind an address of Label Studio, relative to the folder of the photos."""
    if prefix and address.startswith(prefix):
        rest = address[len(prefix) :]
        return _unquoted(rest) if "?" in prefix else rest
    parts = urlsplit(address)
    if parts.path == _LOCAL and "d" in (query := parse_qs(parts.query)):
        return query["d"][0]
    if not parts.scheme and not parts.netloc:
        upload = _UPLOAD.fullmatch(parts.path)
        return upload["file"] if upload else address
    raise FormatError(
        f"{source}: a photo must be a file below a folder. Got {address!r}. Say what its address begins with, such as "
        f"-o prefix={parts.scheme}://{parts.netloc}/ (prefix=), and give the folder: -o images=FOLDER (images=)."
    )


def _unquoted(text: str) -> str:
    return parse_qs(f"d={text}").get("d", [text])[0]


# ---------------------------------------------------------------------- labels


def _spelled(tasks: Any, source: Path) -> Hierarchy:
    """The hierarchy of all paths that were chosen."""
    paths = sorted({path for task in tasks for answer in task.answers for path in answer.choices})
    if not paths:
        raise DataError(f"{source}: must have an answer for some sample. Got none.")
    try:
        return Hierarchy.from_paths(paths)
    except HierarchyError:
        return Hierarchy.from_paths(paths, ids="path")


def _labels(tasks: Mapping[str, Task], h: Hierarchy, agree: float, source: Path) -> Consensus:
    """One label for each sample: that of its only annotator, else what enough of them support."""
    places: dict[tuple[str, ...], str] = {}
    votes: dict[str, list[str]] = {}
    for name, task in tasks.items():
        last = {answer.annotator or f"answer {i}": answer for i, answer in enumerate(task.answers)}
        own = []
        for answer in last.values():
            for path in answer.choices:
                if path not in places:
                    places[path] = _node_of_path(h, path, source)
            own.append(_above_all(h, [places[path] for path in answer.choices]))
        votes[name] = [node for node in own if node is not None]
    return consensus(votes, h, agree=agree, alone=True)


def _node_of_path(h: Hierarchy, path: tuple[str, ...], source: Path) -> str:
    """The node at the end of a path of ids or names, from a top down; else the one of the last name."""
    here = [*h.tops, *(h.children(h.tops[0]) if h.rooted else ())]
    here = [v for v in here if path[0] in (v, h.name(v))]
    for part in path[1:]:
        here = [child for v in here for child in h.children(v) if part in (child, h.name(child))]
    ends = set(here)
    if len(ends) == 1:
        return ends.pop()
    known = known_names(h)
    if path[-1] not in known:
        raise DataError(
            f"{source}: choices must be nodes of the hierarchy. Got {' > '.join(path)!r}.{nearest(path[-1], known)}"
        )
    return h.nodes[known[path[-1]]]


def _above_all(h: Hierarchy, nodes: Sequence[str]) -> str | None:
    """The deepest node at or above all of several, those above others left out; None where there is none."""
    if len(nodes) == 1:
        return nodes[0]
    lines = {node: h.path(node) for node in nodes}
    lowest = [v for v in lines if not any(v in lines[w] for w in lines if w != v)]
    shared = set(lines[lowest[0]]).intersection(*(lines[v] for v in lowest))
    if h.rooted and len(lowest) > 1:
        shared.discard(h.tops[0])  # it says nothing
    return max(shared, key=h.depth, default=None)


# ---------------------------------------------------------------------- pre-annotations


def annotation_task(
    document: Mapping[str, Any], h: Hierarchy, kind: str, version: str, prefix: str = ""
) -> dict[str, Any]:
    """An answer of `Predictions.documents` as a task with its pre-annotation; none where the model does not answer.

    ``kind``: "image" or "text", the key of the sample. ``prefix``: what Label Studio puts before the path of a file.
    """
    check_choice("kind", kind, ("image", "text"))
    sample = document["sample"]
    if kind == "image" and prefix:
        sample = prefix + (quote(sample) if "?" in prefix else sample)
    task: dict[str, Any] = {"data": {kind: sample}, "predictions": []}
    if "error" in document:
        task["data"]["error"] = document["error"]
    answer = document.get("answer", {})
    path = [] if answer.get("id") is None else choice_path(h, answer["id"])
    if not path:
        return task
    result = {
        "id": "hace",
        "from_name": CONTROL,
        "to_name": OBJECT,
        "type": "taxonomy",
        "value": {"taxonomy": [path]},
    }
    task["predictions"].append({"model_version": version, "score": answer["probability"], "result": [result]})
    return task
