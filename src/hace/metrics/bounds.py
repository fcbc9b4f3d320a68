"""Bounds of what a caller may ask for, so that a mistyped number is an error and not an exhausted machine."""

from __future__ import annotations

from hace.errors import ConfigError

MOST_BINS = 100_000
MOST_REPLICATES = 1_000_000
MOST_SEED = 2**63 - 1


def check_count(name: str, value: object, most: int, least: int = 1) -> None:
    """Refuse what is not a whole number from ``least`` to ``most``.

    Args:
        name: the argument, for the message.
        value: what was given.
        most: the largest value allowed.
        least: the smallest value allowed.

    Example:
        >>> check_count("bins", 0, MOST_BINS)
        Traceback (most recent call last):
        hace.errors.ConfigError: bins must be a whole number from 1 to 100,000. Got 0.
    """
    whole = hasattr(value, "__index__") and not isinstance(value, bool)
    if not whole or not least <= int(value) <= most:  # type: ignore[call-overload]
        shown = repr(value)
        raise ConfigError(
            f"{name} must be a whole number from {least} to {most:,}. Got {shown if len(shown) < 40 else shown[:40] + '...'}."
        )
