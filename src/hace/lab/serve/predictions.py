"""The answers of a model with the names of the samples: as tensors, columns or plain documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hace.decisions import Decisions, GuaranteedThreshold
from hace.hierarchy import Hierarchy
from hace.lab.serve.inputs import Broken

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Predictions:
    """Answers, one row per sample that could be read.

    Attributes:
        names: The samples: paths of images, names of features.
        leaves: (M, k) the most probable leaves, best first; their probabilities are among the leaves alone.
        answers: (M,) the answer: the best leaf, or the node that a threshold or a level asks for.
        broken: The images that could not be read, with their place among all samples given.
        start: The place of the first sample.
        promise: What the answers promise, where an accuracy was asked for.
    """

    names: Sequence[str]
    leaves: Decisions
    answers: Decisions
    broken: Sequence[Broken] = ()
    start: int = 0
    promise: GuaranteedThreshold | None = None

    def __post_init__(self) -> None:
        if self.leaves.nodes.dim() == 1:  # the best leaf alone comes without the second dimension
            nodes, probabilities = self.leaves.nodes[:, None], self.leaves.probabilities[:, None]
            object.__setattr__(self, "leaves", Decisions(self.leaves.hierarchy, nodes, probabilities))

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        broken = f", {len(self.broken):,} broken" if self.broken else ""
        return f"<Predictions: {len(self):,} samples{broken} over {self.hierarchy!r}>"

    @property
    def hierarchy(self) -> Hierarchy:
        """The classes."""
        return self.answers.hierarchy

    @classmethod
    def joined(cls, parts: Sequence[Predictions]) -> Predictions:
        """The predictions of several batches as one."""
        return cls(
            [name for part in parts for name in part.names],
            Decisions.joined([part.leaves for part in parts]),
            Decisions.joined([part.answers for part in parts]),
            [broken for part in parts for broken in part.broken],
            parts[0].start,
            parts[0].promise,
        )

    def documents(self) -> Iterator[dict[str, Any]]:
        """One document per sample, in the order given; a broken image has its reason as "error"."""
        reasons = {b.place: b for b in self.broken}
        answers, paths = self.answers.columns(), self.answers.paths
        ids, names, probabilities = self.leaves.ids, self.leaves.names, self.leaves.probabilities.tolist()
        row = 0
        for place in range(self.start, self.start + len(self) + len(reasons)):
            if place in reasons:
                yield {"sample": reasons[place].name, "error": reasons[place].reason}
                continue
            best = zip(ids[row], names[row], probabilities[row], strict=True)
            yield {
                "sample": self.names[row],
                "answer": {
                    **{key: answers[key][row] for key in answers if key not in ("sample", "path")},
                    "path": list(paths[row]),
                    **({} if self.promise is None else {"promise": self.promise.promise}),
                },
                "leaves": [{"id": node, "name": name, "probability": p} for node, name, p in best],
            }
            row += 1

    def row_columns(self) -> list[str]:
        """The columns of :meth:`rows`."""
        answer = [
            "answer",
            "answer_name",
            "answer_level",
            "answer_level_name",
            "answer_probability",
            "answer_path",
        ]
        if self.hierarchy.level_names is None:
            answer.remove("answer_level_name")
        if self.promise is not None:
            answer.append("answer_promise")
        leaves = [
            f"leaf_{i}{what}"
            for i in range(1, self.leaves.nodes.shape[1] + 1)
            for what in ("", "_name", "_probability")
        ]
        return ["sample", *answer, *leaves, "error"]

    def rows(self) -> Iterator[dict[str, Any]]:
        """:meth:`documents` as flat rows of a table, all with the same columns."""
        columns = self.row_columns()
        for document in self.documents():
            row = dict.fromkeys(columns) | {"sample": document["sample"], "error": document.get("error")}
            for key, value in document.get("answer", {}).items():
                row["answer" if key == "id" else f"answer_{key}"] = (
                    " > ".join(value) if key == "path" else value
                )
            for i, leaf in enumerate(document.get("leaves", ()), 1):
                for key, value in leaf.items():
                    row[f"leaf_{i}" if key == "id" else f"leaf_{i}_{key}"] = value
            yield row

    def to_frame(self) -> pd.DataFrame:
        """:meth:`rows` as a pandas DataFrame."""
        import pandas as pd

        return pd.DataFrame(list(self.rows()))
