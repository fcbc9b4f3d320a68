"""Cell types in AnnData: train on annotated cells, and annotate others at the rank that the model is sure of.

    ontology = hace.read_hierarchy("cl-basic.obo")
    model = hace.anndata.fit(reference, labels="cell_type", hierarchy=ontology, groups="donor")
    hace.anndata.annotate(query, model, accuracy=0.95, groups="leiden")
    query.obs["hace_name"], query.uns["hace"]

The model is a :class:`hace.HACEClassifier`: `model.save`, `hace serve` and scikit-learn take it as any other. It knows its
features by name, so `annotate` finds the genes of the training among those of the query.
"""

from __future__ import annotations

import textwrap
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hace import __version__
from hace.checks import check_choice, check_count, require
from hace.decisions import Decisions, predict
from hace.draw import drawable
from hace.errors import ConfigError, DataError, FormatError, listed, nearest
from hace.files.reading import optional
from hace.files.weights import first_line
from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import is_above
from hace.hierarchy.names import label_nodes
from hace.linear.estimator import HACEClassifier
from hace.metrics.answers import class_scores

if TYPE_CHECKING:
    from anndata import AnnData

    from hace.decisions import GuaranteedThreshold

_COUNTS = 50  # a feature this large, among whole numbers, is a raw count
_MOST = 1 << 20  # cells of a batch
_NAMED = 10  # classes that a picture names
_NEUTRAL = "#c9c9c9"
_LINE = 84  # characters of a line below it


def fit(
    adata: AnnData,
    labels: str,
    hierarchy: Hierarchy | None = None,
    *,
    layer: str | None = None,
    obsm: str | None = None,
    groups: str | None = None,
    held_out: float = 0.2,
    seed: int = 0,
    **options: Any,
) -> HACEClassifier:
    """Train a classifier on annotated cells, and calibrate it on a part of them that training does not see.

    Args:
        adata: Cells, in memory or backed by a file; their features may be sparse.
        labels: Column of `obs` with cell types: ids or names of nodes of the hierarchy, at any depth. Cells without a label
            are not used.
        hierarchy: All types, such as the Cell Ontology. The classes are the types labelled here; types above them are
            answers too, and those below them are not, since no cell shows what they look like. None: the labels alone.
        layer: Layer with the features; by default `adata.X`.
        obsm: Key of `obsm` with the features, such as "X_pca".
        groups: Column of `obs` with donors, or whatever new cells will differ in: whole groups are held out, and guarantees
            are about new groups.
        held_out: Share of cells (or of groups) kept for calibration; 0: no calibration, and no guarantees.
        seed: Random seed of what is held out.
        **options: Options of :class:`hace.HACEClassifier`, such as `weight_decay`.

    Returns:
        The classifier. `unseen_classes_` has the types that only held-out cells have.

    Raises:
        DataError: A label is not in the hierarchy, or there are too few cells.
        ConfigError: No such column, layer or embedding.
    """
    require("held_out", held_out, "at least 0 and below 1", 0 <= held_out < 1)
    given = _entry(adata.obs, labels, "obs").astype(object)
    known = np.flatnonzero(given.notna().to_numpy())
    if len(known) < 2:
        raise DataError(f"obs[{labels!r}] must have a label for at least two cells. Got {len(known)}.")
    y = given.iloc[known].astype(str).to_numpy(dtype=object)
    if hierarchy is not None:
        nodes = label_nodes(y.astype(str), hierarchy, "id", f"obs[{labels!r}]")
        y = np.array(hierarchy.nodes, dtype=object)[nodes]
        hierarchy = _within(hierarchy, nodes)
    donors = None if groups is None else _entry(adata.obs, groups, "obs").astype(str).to_numpy()[known]
    trained_on, held = _parts(len(known), donors, held_out, seed)
    names = np.array(feature_names(adata, obsm), dtype=object)
    model = HACEClassifier(hierarchy, **options)
    model.fit(features_of(adata, known[trained_on], layer, obsm), y[trained_on])
    if len(held):
        try:
            calibrated = None if donors is None else donors[held]
            model.calibrate(features_of(adata, known[held], layer, obsm), y[held], calibrated)
        except DataError as error:  # all of few cells are right, say
            warnings.warn(f"The model makes no guarantees: give annotate a threshold. {error}", stacklevel=2)
    model.feature_names_in_ = names
    return model


def read_cells(path: str | Path) -> AnnData:
    """The AnnData in an .h5ad file."""
    library = optional("anndata", "Reading .h5ad", "cells")
    try:
        return library.read_h5ad(path)
    except (OSError, KeyError, ValueError) as error:
        raise FormatError(f"{path} must be an .h5ad file: {first_line(error)}") from error


def annotate(
    adata: AnnData,
    model: HACEClassifier,
    *,
    accuracy: float | None = 0.95,
    threshold: float | None = None,
    groups: str | None = None,
    layer: str | None = None,
    obsm: str | None = None,
    missing: str = "error",
    key: str = "hace",
    batch_size: int = 8192,
) -> None:
    """Write an answer for every cell into `adata.obs`, and what was done into `adata.uns`.

    Columns, each after `key`: the answer's id (`hace`), `_name`, `_rank` (depth in the hierarchy; 0: no answer),
    `_probability`, `_guarantee` (the accuracy, where one was asked for) and `_class`, the most probable class.
    With `groups` also `_group`, `_group_name` and `_group_probability`: one answer for each cluster, by the mean
    probabilities of its cells. The guarantee is about cells, not about clusters.

    Args:
        adata: Cells, in memory or backed by a file.
        model: What :func:`fit` returned.
        accuracy: Guarantee: at most 1 - accuracy of all cells get a false answer; answers are as deep as that allows.
        threshold: Instead of a guarantee: answer with the deepest node of at least this probability.
        groups: Column of `obs` with clusters.
        layer: Layer with the features, as in :func:`fit`.
        obsm: Key of `obsm` with the features, as in :func:`fit`.
        missing: What to do about genes of the training that `adata` lacks: "error", or "zero" for a value of 0.
        key: Start of the names of columns, and the key of `uns`.
        batch_size: Cells at once.

    Raises:
        DataError: The features differ from those in training.
        ConfigError: A guarantee from a model that is not calibrated; no such column, layer or embedding.
    """
    check_count("batch_size", batch_size, _MOST)
    check_choice("missing", missing, ("error", "zero"))
    if threshold is not None:
        accuracy = None
    elif accuracy is None:
        raise ConfigError("accuracy or threshold must be given. Got neither.")
    clusters = None if groups is None else _entry(adata.obs, groups, "obs").astype(str).to_numpy()
    guarantee = None if accuracy is None else model.guarantee(accuracy)
    places = _places(adata, model, obsm, missing)
    h = model.hierarchy_
    parts = []
    best = []
    names, member = np.unique(clusters, return_inverse=True) if clusters is not None else ([], None)
    total = np.zeros((len(names), h.num_nodes))
    for start in range(0, adata.n_obs, batch_size):
        rows = np.arange(start, min(start + batch_size, adata.n_obs))
        x = _aligned(features_of(adata, rows, layer, obsm), places)
        with warnings.catch_warnings():  # the names were compared above
            warnings.filterwarnings("ignore", message="X does not have valid feature names")
            log_q = model.predict_node_log_proba(x)
        parts.append(_decided(log_q, h, guarantee, threshold))
        best.append(h.leaf_nodes[log_q[:, h.leaf_nodes].argmax(axis=1)])
        if member is not None:
            np.add.at(total, member[rows], np.exp(log_q))
    answers = Decisions.joined(parts)
    _write(adata, key, answers)
    adata.obs[f"{key}_rank"] = answers.levels.numpy()
    adata.obs[f"{key}_guarantee"] = np.nan if accuracy is None else accuracy
    adata.obs[f"{key}_class"] = np.array(h.nodes, dtype=object)[np.concatenate(best)]
    record = _record(model, h, places, layer, obsm, guarantee)
    if guarantee is None:
        record["threshold"] = threshold
    else:
        record["accuracy"] = accuracy
    if member is not None:
        mean = np.log(np.maximum(total / np.bincount(member)[:, None], 1e-300))
        decided = _decided(mean, h, guarantee, threshold)
        _write(adata, f"{key}_group", decided, member)
        ids = ["" if node is None else node for node in decided.ids]
        record |= {"groups": str(groups), "group_names": list(map(str, names)), "group_answers": ids}
    adata.uns[key] = record


def _record(
    model: HACEClassifier,
    h: Hierarchy,
    places: np.ndarray | None,
    layer: str | None,
    obsm: str | None,
    guarantee: GuaranteedThreshold | None,
) -> dict[str, Any]:
    """What an annotation was made with, in values that an .h5ad file can hold."""
    record = {
        "version": __version__,
        "hierarchy": h.fingerprint,
        "classes": list(h.leaves),
        "class_names": [h.name(leaf) for leaf in h.leaves],
        "unseen_classes": [str(name) for name in model.unseen_classes_],
        "features": f"obsm {obsm}" if obsm else f"layer {layer}" if layer else "X",
        "missing_features": 0 if places is None else int((places < 0).sum()),
        "temperature": float(model.temperature_),
    }
    if guarantee is not None:
        record |= {"guarantee": guarantee.guarantee, "assumptions": list(guarantee.assumptions)}
    return record


def macro_f1(truth: Sequence[Any], answers: Sequence[Any], hierarchy: Hierarchy) -> float:
    """Macro-F1 over the true types, where an answer below the truth counts as right.

    For each type in `truth`: 2 tp / (2 tp + fp + fn), and the mean over types. Cells without a label do not count; cells
    without an answer count as missed.

    Args:
        truth: Ids or names of nodes.
        answers: Ids or names of nodes; None or NaN for no answer.
        hierarchy: The hierarchy of both; the whole ontology where truths are not classes of the model.

    Example:
        >>> h = Hierarchy.from_paths([("T", "CD4"), ("T", "CD8"), ("B",)])
        >>> round(macro_f1(["T", "T", "B", "CD4"], ["CD4", "B", "B", "T"], h), 3)
        0.389
    """
    true = np.array([_text(v) for v in truth], dtype=object)
    answered_names = np.array([_text(v) for v in answers], dtype=object)
    if len(true) != len(answered_names):
        raise DataError(f"answers must be as many as truths. Got {len(answered_names)} and {len(true)}.")
    labelled = true != ""
    t = label_nodes(true[labelled].astype(str), hierarchy, "id", "truth")
    a = np.full(len(t), -1)
    answered = answered_names[labelled] != ""
    a[answered] = label_nodes(answered_names[labelled][answered].astype(str), hierarchy, "id", "answers")
    return class_scores(hierarchy, a, t)["macro-F1"]


def draw_ranks(adata: AnnData, path: str | Path, *, key: str = "hace", basis: str = "X_umap") -> None:
    """Draw annotated cells twice: by their most probable class, and by the rank of their answers.

    Args:
        adata: Annotated cells.
        path: A .png or .svg file.
        key: Prefix of the columns of :func:`annotate`.
        basis: Key of `obsm` with the places of the cells.
    """
    figure_module = optional("matplotlib.figure", "A picture", "report")
    import matplotlib

    places = np.asarray(_entry(adata.obsm, basis, "obsm"))[:, :2]
    ranks = _entry(adata.obs, f"{key}_rank", "obs").to_numpy()
    answers = _entry(adata.obs, f"{key}_name", "obs").astype(object).to_numpy()
    record = _entry(adata.uns, key, "uns")
    names = dict(zip(record["classes"], record["class_names"], strict=True))
    classes = _entry(adata.obs, f"{key}_class", "obs").astype(object).map(names).to_numpy()
    figure = figure_module.Figure(figsize=(11, 6.6), layout="constrained")
    flat, ranked = figure.subplots(1, 2, sharex=True, sharey=True)
    flat.set_title("The most probable class, however unsure")
    several = matplotlib.colormaps["tab10"]
    often = Counter(classes).most_common()
    for i, (name, count) in enumerate(often[:_NAMED]):
        flat.scatter(
            *places[classes == name].T, s=9, color=several(i), label=_shortened(f"{name} ({count:,})")
        )
    rare = np.isin(classes.astype(str), [name for name, _ in often[_NAMED:]])
    if rare.any():
        flat.scatter(*places[rare].T, s=9, color=_NEUTRAL, label=f"other classes ({rare.sum():,})")
    ranked.set_title("The answer, as specific as the model is sure")
    levels = sorted(set(ranks.tolist()))
    shades = matplotlib.colormaps["viridis_r"].resampled(max(len(levels), 2))
    for i, rank in enumerate(levels):
        here = ranks == rank
        most_common = ", ".join(name for name, _ in Counter(answers[here]).most_common(3)) if rank else ""
        title = f"rank {rank} ({here.sum():,}): {most_common}" if rank else f"no answer ({here.sum():,})"
        ranked.scatter(*places[here].T, s=9, color=shades(i) if rank else _NEUTRAL, label=_shortened(title))
    for axes in (flat, ranked):
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color("#d5dbe1")
        legend = axes.legend(
            loc="upper left", bbox_to_anchor=(0, -0.02), frameon=False, fontsize=8.5, markerscale=2
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
    figure.savefig(path, dpi=120)


def _shortened(text: str) -> str:
    """Text that fits below a panel."""
    return textwrap.shorten(drawable(text), _LINE, placeholder=" ...")


def _within(h: Hierarchy, nodes: np.ndarray) -> Hierarchy:
    """The part of a hierarchy above the labels: classes are labels without a label below them; others are coarse labels."""
    seen = np.unique(nodes)
    above = [bool(is_above(h, np.full(len(seen), v), seen).sum() > 1) for v in seen]
    classes = [h.nodes[v] for v, inner in zip(seen, above, strict=True) if not inner]
    return h.subset(classes).collapse_unary(keep=[h.nodes[v] for v in seen])


def _parts(
    cells: int, groups: np.ndarray | None, held_out: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Which of the labelled cells to train on and which to calibrate on: positions among them."""
    rng = np.random.default_rng(seed)
    if groups is None:
        order = rng.permutation(cells)
        count = round(held_out * cells)
        return np.sort(order[count:]), np.sort(order[:count])
    names, member = np.unique(groups, return_inverse=True)
    count = 0 if held_out == 0 else max(1, round(held_out * len(names)))
    if count >= len(names):
        raise DataError(
            f"groups must name at least two groups, to train on some and calibrate on others. Got {len(names)}."
        )
    held = np.isin(member, rng.permutation(len(names))[:count])
    return np.flatnonzero(~held), np.flatnonzero(held)


def _entry(there: Any, key: str, where: str) -> Any:
    """An entry of `obs`, `obsm` or `layers`, or an error that names what there is."""
    if key not in there:
        known = [str(name) for name in there]
        raise ConfigError(f"{where} must have {key!r}. Got {listed(known) or 'none'}.{nearest(key, known)}")
    return there[key]


def feature_names(adata: AnnData, obsm: str | None) -> list[str]:
    """A name for each feature: genes, or the key of an embedding and a number."""
    if obsm is None:
        return [str(gene) for gene in adata.var_names]
    return [f"{obsm}:{i}" for i in range(_entry(adata.obsm, obsm, "obsm").shape[1])]


def features_of(adata: AnnData, rows: np.ndarray, layer: str | None, obsm: str | None) -> Any:
    """The features of some cells in memory, dense or sparse by rows."""
    if layer is not None and obsm is not None:
        raise ConfigError("layer and obsm must not be given together. Drop one.")
    source: Any = adata.X if layer is None else _entry(adata.layers, layer, "layers")
    source = source if obsm is None else _entry(adata.obsm, obsm, "obsm")
    if source is None:
        raise ConfigError("adata.X must hold features. It is empty. Give a layer or obsm.")
    x: Any = source[rows]
    if hasattr(x, "to_memory"):  # a part of a sparse matrix in a file
        x = x.to_memory()
    x = x.tocsr() if hasattr(x, "tocsr") else np.asarray(x)
    values: Any = x.data if hasattr(x, "indptr") else x
    if obsm is None and values.size and values.max() > _COUNTS and not np.any(values % 1):
        warnings.warn(
            "The features look like raw counts. Normalise and log them first: sc.pp.normalize_total, then sc.pp.log1p.",
            stacklevel=3,
        )
    return x


def _places(adata: AnnData, model: HACEClassifier, obsm: str | None, missing: str) -> np.ndarray | None:
    """Where each feature of the training is among those of the cells, -1 for missing ones; None if they are the same."""
    wanted = list(getattr(model, "feature_names_in_", ()))
    here = feature_names(adata, obsm)
    if not wanted:
        raise DataError("model must know its features by name. Train it with hace.anndata.fit.")
    if wanted == here:
        return None
    place = {name: i for i, name in enumerate(here)}
    places = np.array([place.get(name, -1) for name in wanted])
    lost = [wanted[i] for i in np.flatnonzero(places < 0)]
    if lost and (missing == "error" or len(lost) == len(wanted)):
        rule = f"The cells must have the {len(wanted):,} features of the training. {len(lost):,} are missing"
        hint = f" Pass obsm={lost[0].partition(':')[0]!r}." if ":" in lost[0] and obsm is None else ""
        zero = ' Pass missing="zero" to take 0 for them.' if len(lost) < len(wanted) else ""
        raise DataError(f"{rule}: {listed(lost)}.{hint}{zero}")
    return places


def _aligned(x: Any, places: np.ndarray | None) -> Any:
    """The features in the order of the training."""
    if places is None:
        return x
    lost = places < 0
    columns = x[:, np.where(lost, 0, places)]
    return columns.multiply(~lost[None]).tocsr() if hasattr(columns, "multiply") else columns * ~lost


def _decided(log_q: np.ndarray, h: Hierarchy, guarantee: Any, threshold: float | None) -> Decisions:
    if guarantee is not None:
        return guarantee.predict(log_q, h, kind="node_log_probs")
    return predict(log_q, h, rule="threshold", threshold=threshold, kind="node_log_probs")


def _write(adata: AnnData, key: str, answers: Decisions, member: np.ndarray | slice = slice(None)) -> None:
    """Ids, names and probabilities of answers, those of clusters for every member."""
    pd = optional("pandas", "Columns of cells", "cells")
    for name, values in ((key, answers.ids), (f"{key}_name", answers.names)):
        adata.obs[name] = pd.Categorical(np.array(values, dtype=object)[member])
    adata.obs[f"{key}_probability"] = answers.probabilities.numpy()[member]


def _text(value: Any) -> str:
    """A label as text; "" for none."""
    return "" if value is None or value != value else str(value)
