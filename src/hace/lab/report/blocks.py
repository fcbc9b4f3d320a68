"""Blocks of a page beside paragraphs, lists, tables and pictures: what folds away, and what a switch chooses between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Folded:
    """Blocks that open with a click.

    Attributes:
        title: What they are.
        blocks: The content.
    """

    title: str
    blocks: tuple[Any, ...]


@dataclass(frozen=True)
class Switch:
    """Blocks of which one is shown; the first, until a reader chooses another. Markdown has them all.

    Attributes:
        label: What is chosen.
        options: Title and block of each.
    """

    label: str
    options: tuple[tuple[str, Any], ...]


def leaves_of(blocks: tuple[Any, ...] | list[Any]) -> Iterator[Any]:
    """All paragraphs, tables and pictures, in order, those within other blocks too."""
    for block in blocks:
        if isinstance(block, Folded):
            yield from leaves_of(block.blocks)
        elif isinstance(block, Switch):
            yield from leaves_of([inner for _, inner in block.options])
        else:
            yield block
