"""The configurations of a study: what each number in a table is about, and the runs that lead to it.

A configuration is one number: dataset, model, method, dilution, pairing, seed, labels. With one candidate it is one run. With
several, every candidate is tried on part of the training samples, the best one on the held-out rest is trained again on all
of them, and the test samples are used once. A seed repeats the whole procedure, unless the configurations of all seeds share
the search of one (`search_seed`), which halves the runs of a study with three rates and three seeds.

How one candidate is chosen among several is in :mod:`hace.lab.study.comparison`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any, Literal, get_type_hints

from hace.errors import ConfigError, nearest
from hace.lab.runs.config import RunConfig, Validation
from hace.lab.runs.run import KINDS
from hace.settings import fits, from_dict, merged

FAIR_RATES = tuple(0.25 * 2**k for k in range(8))  # 0.25 to 32; on unit vectors the best are 8 to 20
HELD_OUT = 0.1  # share of the training samples, where the data have no validation split
Candidate = Mapping[str, Any]  # settings of a run, nested as in its configuration: {"lr": 8.0}


@dataclass(frozen=True)
class ConfigurationKey:
    """What a number in a table is about."""

    # "paper" (fixed rates, the best of them on the test set), "fair" (the same candidates for all, chosen on held-out
    # samples, then trained again on all) or "single" (as given)
    protocol: Literal["paper", "fair", "single"]
    dataset: str  # its name in the study: "cifar100", "aircraft", "nabirds", or another
    model: str  # the architecture, or the backbone behind the features
    method: str  # a key of `hace.lab.study.presets.METHODS`, or the spelling of another loss
    dilution: float | None  # d, where the method has one
    pairing: str | None  # of the paper's protocol: "standard" or "adjusted"; None otherwise
    seed: int  # of the run
    labels: str = ""  # what is known of the training labels: "80% parent"; "" for labels as they are

    def __str__(self) -> str:
        """In words, without the seed."""
        dilution = "" if self.dilution is None else f"d={self.dilution:g}"
        labels = self.labels and f"({self.labels})"
        parts = (self.dataset, self.model, self.method, dilution, self.pairing, labels)
        return " ".join(part for part in parts if part)


KEYS = tuple(field.name for field in fields(ConfigurationKey))


@dataclass(frozen=True)
class Configuration:
    """What a number is about, and the runs that lead to it."""

    key: ConfigurationKey  # what it is about
    config: RunConfig  # the final run, without what the candidates set
    candidates: tuple[Candidate, ...]  # several: the best on held-out samples is searched first
    validation: Validation | None = None  # what the search holds out; None: the data's own split, or 10%
    widen: tuple[int, int] = (0, 0)  # rates that the search may add below its smallest and above its largest
    search_seed: int | None = None  # the seed whose search chooses, for all seeds; None: its own
    choose_by: Literal["truth", "labels"] = "truth"  # what judges held-out samples: true or known labels

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rate of each candidate."""
        return tuple(candidate.get("lr", self.config.lr) for candidate in self.candidates)

    def search(self, begun: int = 0) -> list[RunConfig]:
        """A run for each candidate but the first `begun`, judged on held-out samples; none for a single candidate."""
        if len(self.candidates) == 1:
            return []
        config = self.config if self.search_seed is None else _reseeded(self.config, self.search_seed)
        held_out = {"validation": self.validation or HELD_OUT, "evaluate": "val", "keep": False}
        return [_with_settings(config, {**candidate, **held_out}) for candidate in self.candidates[begun:]]

    def final(self, candidate: Candidate) -> RunConfig:
        """The run that tables show: trained on all training samples, judged on the test samples."""
        return _with_settings(self.config, {**candidate, "validation": 0.0, "evaluate": "test"})

    def edge(self, candidate: Candidate) -> str:
        """Where a candidate is at the edge of its grid: "largest rate", say; "" inside. 0 is no edge, nor are two values."""
        for name, title in (("lr", "rate"), ("weight_decay", "weight decay")):
            tried = {c[name] for c in self.candidates if name in c}
            value = candidate.get(name)
            if len(tried) > 2 and value and value in (min(tried), max(tried)):
                return f"{'largest' if value == max(tried) else 'smallest'} {title}"
        return ""

    def wider(self, below: bool, above: bool) -> Configuration:
        """The configuration with another rate below and above its grid, as far as `widen` allows.

        The new rates continue the steps of the grid. Other settings may go round with the rates, as dealt dilutions do: the
        new rates take the next ones of the round.
        """
        rates = sorted(set(self.rates))
        if len(rates) < 2:
            return self
        others = [self._other_settings(rate) for rate in rates]
        period = _period(others)
        left_below, left_above = self.widen
        candidates = list(self.candidates)
        if below and left_below:
            rate = rates[0] ** 2 / rates[1]
            candidates += [{**settings, "lr": rate} for settings in others[period - 1]]
            left_below -= 1
        if above and left_above:
            rate = rates[-1] ** 2 / rates[-2]
            candidates += [{**settings, "lr": rate} for settings in others[-period]]
            left_above -= 1
        return replace(self, candidates=tuple(candidates), widen=(left_below, left_above))

    def _other_settings(self, rate: float) -> list[Candidate]:
        """What the candidates with a rate set besides it; their own rate is None."""
        return [{**candidate, "lr": None} for candidate in self.candidates if candidate["lr"] == rate]

    def to_dict(self) -> dict[str, Any]:
        """Plain values; :func:`configuration_from_dict` reads them back."""
        return {
            "key": asdict(self.key),
            "kind": self.config.kind,
            "config": self.config.to_dict(),
            "candidates": [dict(candidate) for candidate in self.candidates],
            "validation": self.validation,
            "widen": list(self.widen),
            "search_seed": self.search_seed,
            "choose_by": self.choose_by,
        }

    def deciding(self) -> dict[str, Any]:
        """The same without what does not decide results, such as paths of data."""
        return {**self.to_dict(), "config": self.config.deciding()}


def _period(settings: Sequence[Sequence[Candidate]]) -> int:
    """After how many rates the other settings repeat."""
    return next(k for k in range(1, len(settings) + 1) if settings[k:] == settings[:-k])


def _with_settings(config: RunConfig, values: Candidate) -> RunConfig:
    """A run with some settings replaced; a nested mapping replaces settings of a part, such as the loss."""
    if any(isinstance(value, Mapping) for value in values.values()):
        return from_dict(type(config), merged(config.to_dict(), values))
    return replace(config, **values)


def _reseeded(config: RunConfig, seed: int) -> RunConfig:
    """A run as it is at another seed, which also shuffles a shuffled hierarchy."""
    shuffle = config.data.shuffle if config.data.shuffle != config.seed else seed
    return replace(config, seed=seed, data=replace(config.data, shuffle=shuffle))


def configuration_from_dict(document: Mapping[str, Any]) -> Configuration:
    """A configuration from plain values."""
    try:
        configuration, wrong = _read(document)
    except ConfigError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"A configuration of the study does not fit this version: {error!r}.") from error
    if wrong:
        raise ConfigError(f"A configuration of the study does not fit this version: its {', '.join(wrong)}.")
    return configuration


def _read(document: Mapping[str, Any]) -> tuple[Configuration, list[str]]:
    """A configuration as written, and the names of what does not fit."""
    config = from_dict(KINDS[document["kind"]], document["config"])
    candidates = tuple(document["candidates"])
    below, above = document["widen"]
    values = {**document["key"], **document}
    wrong = [name for name, hint in _hints().items() if not fits(values[name], hint)]
    settings = {field.name for field in fields(config)}
    if not candidates or not all(fits(c, Mapping[str, Any]) and settings.issuperset(c) for c in candidates):
        wrong.append("candidates")
    elif not all(fits(candidate.get("lr", 1.0), float) for candidate in candidates):
        wrong.append("lr")
    if not (fits(below, int) and fits(above, int)):
        wrong.append("widen")
    configuration = Configuration(
        ConfigurationKey(**document["key"]),
        config,
        candidates,
        document["validation"],
        (below, above),
        document["search_seed"],
        document["choose_by"],
    )
    return configuration, wrong


@cache
def _hints() -> dict[str, Any]:
    """The types of the plain values of a configuration."""
    own = get_type_hints(Configuration)
    return {
        **get_type_hints(ConfigurationKey),
        **{n: own[n] for n in ("validation", "search_seed", "choose_by")},
    }


def rate_candidates(rates: Sequence[float], decays: Sequence[float] = ()) -> tuple[Candidate, ...]:
    """Candidates that differ in their learning rate and, where several are given, in their weight decay."""
    if not decays:
        return tuple({"lr": rate} for rate in rates)
    return tuple({"lr": rate, "weight_decay": decay} for rate in rates for decay in decays)


def dealt_candidates(candidates: Sequence[Candidate], dilutions: Sequence[float]) -> tuple[Candidate, ...]:
    """Deal dilutions round-robin to the rates, so that every method has equally many candidates."""
    rates = sorted({candidate["lr"] for candidate in candidates})
    dilution = {rate: dilutions[place % len(dilutions)] for place, rate in enumerate(rates)}
    return tuple({**c, "loss": {"options": {"dilution": dilution[c["lr"]]}}} for c in candidates)


def only(configurations: Sequence[Configuration], wanted: Mapping[str, str]) -> list[Configuration]:
    """The configurations that match: method="hace,cross_entropy" and dataset="cifar100", say."""
    for key, text in wanted.items():
        if key not in KEYS:
            raise ConfigError(f"only must name one of {', '.join(KEYS)}. Got {key!r}.{nearest(key, KEYS)}")
        known = list(dict.fromkeys(_shown(getattr(c.key, key)) for c in configurations))
        values = text.split(",")
        for value in values:
            if value not in known:
                raise ConfigError(
                    f"only: {key} must be among {', '.join(known)}. Got {value!r}.{nearest(value, known)}"
                )
        configurations = [c for c in configurations if _shown(getattr(c.key, key)) in values]
    return list(configurations)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
