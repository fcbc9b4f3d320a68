"""What the columns of a table are: labels, splits, groups, features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hace.data.loading import GROUP_WORDS, IMAGE_COLUMNS, IMAGE_SUFFIXES
from hace.data.split import SPLIT_NAMES
from hace.errors import ConfigError, DataError, listed, nearest
from hace.files.arrays import INDEX_COLUMN

if TYPE_CHECKING:
    from hace.fitting.inputs import Columns

LABELS = (
    "label",
    "labels",
    "y",
    "class",
    "target",
    "category",
    "species",
    "taxon",
    "cell_type",
    "path_of_labels",
)
# Ranks that columns are named after, from the top down.
RANKS: tuple[tuple[str, ...], ...] = (
    (
        "domain",
        "kingdom",
        "phylum",
        "class",
        "order",
        "family",
        "subfamily",
        "tribe",
        "genus",
        "species",
        "subspecies",
    ),
    ("superclass", "class", "subclass"),
    ("category", "subcategory", "subsubcategory"),
    ("manufacturer", "make", "family", "model", "variant"),
    ("coarse", "fine"),
    ("coarse_label", "fine_label"),
    ("domain", "intent"),
    ("scenario", "intent"),
)
TEXTS = (
    "text",
    "title",
    "description",
    "sentence",
    "utterance",
    "content",
    "abstract",
    "question",
    "comment",
    "review",
    "name",
)
_NUMBERS = ("id", "index", "sample", "sample_id", "uuid", "name")  # of samples, not of measurements


@dataclass(frozen=True)
class Roles:
    """The columns of a table by what they are; splits and groups may be arrays that the caller gave.

    `items` is the column of photos or texts, "photos" or "texts" their kind; without one there are features.
    """

    label: list[str]
    features: list[str]
    items: str | None
    kind: str
    split: Any
    groups: Any
    notes: tuple[str, ...]


def roles_of(frame: Any, columns: Columns, hierarchy: Any, *, labelled: bool, source: str) -> Roles:
    """What each column is, from what the caller says, then from names and contents.

    Args:
        frame: a pandas DataFrame.
        columns: what the caller says.
        hierarchy: the taxonomy given, or None.
        labelled: whether labels come apart from the table.
        source: what messages call the table.
    """
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"{source} must have a name of its own for every column. Got {twice!r} twice.")
    frame.columns = names
    known = {name.casefold(): name for name in names}
    notes: list[str] = []
    label = [] if labelled else _labels(known, columns, hierarchy, source)
    split, groups, found = splits_and_groups(frame, columns, source)
    notes += found
    used = {*label, *(name for name in (split, groups) if isinstance(name, str))}
    left = [name for name in names if name not in used]
    items, kind = _items(frame, left, columns, known, source)
    features = [] if items else _features(frame, columns, left, source, notes)
    return Roles(label, features, items, kind, split, groups, tuple(notes))


def splits_and_groups(frame: Any, columns: Columns, source: str) -> tuple[Any, Any, list[str]]:
    """The columns of splits and of groups, or arrays that the caller gave, and notes about what was found by name."""
    known = {str(name).casefold(): name for name in frame.columns}
    notes: list[str] = []
    if columns.split is not None:
        split = column_named(columns.split, known, "split", source)
    else:
        split = known.get("split")
        if split is not None and not _holds_splits(frame[split]):
            split = None
    return split, _groups(frame, known, columns, source, notes), notes


def _items(
    frame: Any, left: list[str], columns: Columns, known: dict[str, str], source: str
) -> tuple[str | None, str]:
    """The column of photos or texts and its kind; None and "table" where numbers are the features."""
    named = [
        option
        for option, value in (("image", columns.image), ("text", columns.text), ("columns", columns.features))
        if value is not None
    ]
    if len(named) > 1:
        raise ConfigError(
            f"{source} must be photos, texts or numbers. Got {' and '.join(named)}. Leave {named[-1]} out."
        )
    for option, kind in (("image", "photos"), ("text", "texts")):
        chosen = getattr(columns, option)
        if chosen is not None:
            return column_named(chosen, known, option, source), kind
    if columns.features is not None:
        return None, "table"
    photos = [name for name in left if name.casefold() in IMAGE_COLUMNS and _holds_images(frame[name])]
    if photos:
        return photos[0], "photos"
    texts = [name for name in left if _holds_texts(frame[name], name)]
    numeric = [name for name in left if _is_measured(frame, name)]
    if texts and numeric:
        raise ConfigError(
            f"{source} must say what to learn from: it has texts ({listed(texts)}) and numbers ({listed(numeric)}). Name one: "
            f"text={texts[0]!r} (--text), or columns={numeric[:3]!r} (--columns)."
        )
    if len(texts) > 1:
        named = [name for name in texts if name.casefold() in TEXTS]
        if len(named) != 1:
            raise ConfigError(
                f"{source} must have one column of texts. Got {listed(texts)}. Name it: text={texts[0]!r} (--text)."
            )
        texts = named
    return (texts[0], "texts") if texts else (None, "table")


def _holds_images(column: Any) -> bool:
    words = column.dropna().astype(str)
    return len(words) > 0 and bool(words.str.lower().str.endswith(tuple(IMAGE_SUFFIXES)).mean() > 0.5)


def _holds_texts(column: Any, name: str) -> bool:
    """Whether a column has texts: by its name, or because most entries have several words and differ."""
    if column.dtype.kind != "O" or _is_numeric(column):
        return False
    words = column.dropna().astype(str)
    if not len(words):
        return False
    several = (words.str.strip().str.count(r"\s+") >= 2).mean() > 0.5
    return name.casefold() in TEXTS[:-1] or bool(several and words.nunique() > len(words) / 2)


def column_named(value: Any, known: dict[str, str], option: str, source: str) -> Any:
    """A column by its name in any case; arrays as they are."""
    if not isinstance(value, str):
        return value
    if value.casefold() not in known:
        raise ConfigError(
            f"{option} must be a column of {source}. Got {value!r}; there are {listed(known.values(), 30)}."
            f"{nearest(value, list(known.values()))}"
        )
    return known[value.casefold()]


def _labels(known: dict[str, str], columns: Columns, hierarchy: Any, source: str) -> list[str]:
    """The columns of labels, from the top rank down."""
    if columns.label is not None:
        given = [columns.label] if isinstance(columns.label, str) else list(columns.label)
        return [column_named(name, known, "label", source) for name in given]
    single = [known[name] for name in LABELS if name in known]
    ranks = max(([known[name] for name in family if name in known] for family in RANKS), key=len)
    if len(ranks) > 1 and hierarchy is None:
        return ranks
    if len(ranks) > 1 and ranks[-1] in single:
        return [ranks[-1]]
    if len(single) == 1:
        return single
    what = f"several that could be: {listed(single)}" if single else f"{listed(known.values(), 30)}"
    raise ConfigError(
        f"{source} must have a column of labels, or one per rank. Got {what}. Say which: label='species', or "
        "label=['family', 'genus', 'species'] from the top down (--label)."
    )


def _holds_splits(column: Any) -> bool:
    words = {str(value).strip().lower() for value in column.dropna().unique()}
    return bool(words) and words <= set(SPLIT_NAMES)


def _groups(frame: Any, known: dict[str, str], columns: Columns, source: str, notes: list[str]) -> Any:
    """The column of groups: the one given, or one whose name says so and whose values repeat."""
    if columns.groups is False:
        return None
    if columns.groups is not None:
        return column_named(columns.groups, known, "groups", source)
    for word, name in known.items():
        stem = word.removesuffix("_id").removesuffix("id").removesuffix("s").strip("_ ")
        if (
            stem in GROUP_WORDS
            and 1 < frame[name].nunique() <= len(frame) / 2
            and not frame[name].isna().any()
        ):
            notes.append(
                f"Samples of one {name} are kept together, and guarantees are about a new one (groups={name!r}; "
                "groups=False treats samples one by one)."
            )
            return name
    return None


def _is_measured(frame: Any, name: str) -> bool:
    """Whether a column holds numbers that are no names of samples, nor the index of a DataFrame: their order tells labels."""
    counts = name.casefold() in _NUMBERS or INDEX_COLUMN.fullmatch(name) is not None
    return _is_numeric(frame[name]) and not counts


def _features(frame: Any, columns: Columns, left: list[str], source: str, notes: list[str]) -> list[str]:
    """The columns of numbers among those that are left."""
    if columns.features is not None:
        known = {str(name).casefold(): str(name) for name in frame.columns}
        return [column_named(name, known, "columns", source) for name in columns.features]
    numeric_columns = []
    skipped = []
    for name in left:
        (numeric_columns if _is_measured(frame, name) else skipped).append(name)
    if not numeric_columns:
        raise DataError(
            f"{source} must have columns of numbers, photos or texts to learn from. Got {listed(skipped, 30) or 'none'} "
            "besides the labels. Name one: image=, text= or columns= (--image, --text, --columns)."
        )
    if skipped:
        notes.append(f"Columns that are no measurements are not used: {listed(skipped)}.")
    return numeric_columns


def _is_numeric(column: Any) -> bool:
    if column.dtype.kind in "biuf":
        return True
    if column.dtype.kind != "O":
        return False
    words = column.dropna()
    return len(words) > 0 and bool(_as_numbers(words).notna().mean() > 0.5)


def _as_numbers(column: Any) -> Any:
    import pandas as pd

    return pd.to_numeric(column, errors="coerce")


def numbers(frame: Any, features: Sequence[str], source: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """(M, d) features, and what is odd about them; text among numbers is refused by row."""
    parts = []
    for name in features:
        column = frame[name]
        values = column if column.dtype.kind in "biuf" else _as_numbers(column)
        wrong = np.flatnonzero(values.isna().to_numpy() & ~column.isna().to_numpy())
        text = [
            i
            for i in wrong.tolist()
            if str(column.iloc[i]).strip().lower() not in ("nan", "na", "null", "none")
        ]
        if text:
            raise DataError(
                f"{source}: {name!r} must hold numbers. {len(text):,} of {len(column):,} are not; the first is "
                f"{column.iloc[text[0]]!r} in row {text[0]}. Correct it, or name the columns to use: columns=[...] "
                "(--columns)."
            )
        parts.append(values.to_numpy(dtype=np.float64, na_value=np.nan))
    x = np.stack(parts, axis=1).astype(np.float32)
    constant = [name for name, same in zip(features, np.ptp(x, axis=0) == 0, strict=True) if same]
    notes = (f"Columns with one value say nothing: {listed(constant)}.",) if constant else ()
    return x, notes
