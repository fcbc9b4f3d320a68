"""The answers of a model: one type for leaves, inner nodes and abstentions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hace.hierarchy import Hierarchy
from hace.hierarchy.derived import layout

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Decisions:
    """Answers of a batch: one per sample, or k in order of preference.

    Attributes:
        hierarchy: the hierarchy the nodes belong to.
        nodes: (B,) or (B, k) node indices; -1 is the virtual root of a forest: no answer.
        probabilities: the same shape, the mass of each answer.
        costs: the same shape, the expected cost (rule ``"cost"``) or 1 - expected metric (rule ``"expected"``).

    Example:
        >>> h = Hierarchy.from_paths([("dog", "husky"), ("dog", "beagle"), ("cat",)], leaves=["husky", "beagle", "cat"])
        >>> d = Decisions(h, torch.tensor([h.index("dog"), h.index("cat"), -1]), torch.tensor([0.9, 0.8, 1.0]))
        >>> d.ids
        ['dog', 'cat', None]
        >>> d.paths[0], d.levels.tolist(), d.labels.tolist()
        (('dog',), [1, 1, 0], [-1, 2, -1])
    """

    hierarchy: Hierarchy
    nodes: Tensor
    probabilities: Tensor
    costs: Tensor | None = None

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        each = f" x {self.nodes.shape[1]}" if self.nodes.dim() == 2 else ""
        return f"<Decisions: {len(self):,} samples{each} over {self.hierarchy!r}>"

    @property
    def ids(self) -> list:
        """Ids, None for no answer; a list of lists for k answers."""
        return self._look_up(self.hierarchy.nodes)

    @property
    def names(self) -> list:
        """Display names, None for no answer."""
        return self._look_up(self.hierarchy.names)

    @property
    def levels(self) -> Tensor:
        """Depth of each answer; 0 at the root and for no answer."""
        return layout(self.hierarchy, self.nodes.device).depths[self.nodes]

    @property
    def labels(self) -> Tensor:
        """Label of each answer, -1 for an inner node or no answer."""
        labels = torch.tensor([*self.hierarchy.labels.tolist(), -1], device=self.nodes.device)
        return labels[self.nodes]

    @property
    def paths(self) -> list:
        """Ids from the top down to each answer, () for no answer."""
        known: dict[int, tuple[str, ...]] = {-1: ()}
        for v in self.nodes.unique().tolist():
            if v >= 0:
                known[v] = self.hierarchy.path(self.hierarchy.nodes[v])[::-1]
        return _mapped(self.nodes.tolist(), known)

    def _look_up(self, values: Sequence[str]) -> list:
        return _mapped(self.nodes.tolist(), dict(enumerate(values)) | {-1: None})

    @classmethod
    def joined(cls, parts: Sequence[Decisions]) -> Decisions:
        """The decisions of several batches as one."""
        first = parts[0]
        costs = None if first.costs is None else torch.cat([d.costs for d in parts if d.costs is not None])
        nodes = torch.cat([d.nodes for d in parts])
        return cls(first.hierarchy, nodes, torch.cat([d.probabilities for d in parts]), costs)

    def columns(self) -> dict[str, list]:
        """A table with one row per answer: sample, rank (for k answers), id, name, level, probability, path."""
        h = self.hierarchy
        k = self.nodes.shape[1] if self.nodes.dim() == 2 else 1
        flat = Decisions(h, self.nodes.reshape(-1), self.probabilities.reshape(-1))
        table: dict[str, list] = {"sample": torch.arange(len(self)).repeat_interleave(k).tolist()}
        if self.nodes.dim() == 2:
            table["rank"] = torch.arange(1, k + 1).repeat(len(self)).tolist()
        table |= {"id": flat.ids, "name": flat.names, "level": flat.levels.tolist()}
        if h.level_names:
            names = (None, *h.level_names)
            table["level_name"] = [names[level] for level in table["level"]]
        table["probability"] = flat.probabilities.tolist()
        if self.costs is not None:
            table["cost"] = self.costs.reshape(-1).tolist()
        table["path"] = [" > ".join(path) for path in flat.paths]
        return table

    def to_frame(self) -> pd.DataFrame:
        """:meth:`columns` as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(self.columns())


def _mapped(values: list, table: dict) -> list:
    return [_mapped(v, table) if isinstance(v, list) else table[v] for v in values]
