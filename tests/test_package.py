"""The package as a whole: who may import whom, what is public, and what `import hace` costs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import hace

SOURCE = Path(hace.__file__).parent

# A layer: its modules (a package stands for everything in it), and the layers it may import from.
HIERARCHY = ("assembly", "distances", "hierarchy", "intake", "structure", "summary", "transforms")
LAYERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "errors": (("errors",), ()),
    "guard": (("_torchvision_guard",), ()),
    "files": (("atomic",), ("errors",)),
    "kernels": (("kernels",), ("errors",)),
    "environment": (("environment",), ("kernels", "front door")),  # the front door only for the version
    "hierarchy": (HIERARCHY, ("errors",)),
    "formats": (("formats",), ("errors", "files", "hierarchy")),
    "plots": (("pictures", "plots"), ("errors", "files", "hierarchy")),
    "functional": (("functional",), ("errors", "kernels")),  # tensors only: it knows no hierarchy
    "layout": (("layout",), ("errors", "hierarchy")),
    "targets": (("matrices", "targets"), ("errors", "hierarchy")),
    "head": (("head",), ("errors", "kernels", "hierarchy", "functional")),
    "losses": (
        ("baselines", "contract", "leaf_distances", "losses", "registry", "table_loss"),
        ("errors", "kernels", "hierarchy", "functional", "targets", "head"),
    ),
    "inference": (
        ("column_names", "costs", "decisions", "inference", "score_files", "scores"),
        ("errors", "hierarchy", "functional", "layout", "head", "losses"),
    ),
    "linear": (("linear",), ("errors", "hierarchy", "head", "losses")),
    "estimator": (("class_labels", "sklearn"), ("errors", "hierarchy", "losses", "inference", "linear")),
    "data": (("data",), ("errors", "files", "hierarchy", "formats", "inference")),
    "metrics": (("metrics",), ("errors", "hierarchy", "functional", "layout", "head", "losses", "inference")),
    "evaluation": (
        ("comparison", "evaluation", "report", "report_plots", "sample_table"),
        ("errors", "hierarchy", "inference", "metrics"),
    ),
    "experiments": (
        ("experiments",),
        (
            "errors",
            "files",
            "environment",
            "hierarchy",
            "formats",
            "plots",
            "targets",
            "head",
            "losses",
            "inference",
            "data",
            "metrics",
            "evaluation",
            "linear",
        ),
    ),
    "commands": (
        ("commands",),
        (
            "errors",
            "files",
            "hierarchy",
            "formats",
            "plots",
            "inference",
            "data",
            "evaluation",
            "experiments",
        ),
    ),
    "cli": (("cli", "__main__"), ("errors", "front door", "commands")),
}
LAYER_OF = {module: layer for layer, (modules, _) in LAYERS.items() for module in modules}

PUBLIC = {
    "ConditionalSoftmaxLoss",
    "ConfigError",
    "CrossEntropyLoss",
    "DATASETS",
    "DataError",
    "Dataset",
    "ExpectedDistanceLoss",
    "FormatError",
    "HACEClassifier",
    "HACELoss",
    "HCELoss",
    "HXELoss",
    "HaceError",
    "Hierarchy",
    "HierarchyError",
    "LOSSES",
    "Predictor",
    "ProbeConfig",
    "RunConfig",
    "Samples",
    "SimLoss",
    "SoftLabelLoss",
    "TrainConfig",
    "__version__",
    "build_loss",
    "cifar100_hierarchy",
    "compare",
    "draw_hierarchy",
    "evaluate",
    "fgvc_hierarchy",
    "leaf_logits",
    "load_dataset",
    "metrics",
    "nabirds_hierarchy",
    "node_log_probs",
    "predict",
    "reachability_matrix",
    "read_hierarchy",
    "read_run",
    "show_config",
    "write_hierarchy",
}

NOT_AT_IMPORT = {
    "PIL",
    "matplotlib",
    "networkx",
    "pandas",
    "plotly",
    "pooch",
    "pyarrow",
    "ray",
    "safetensors",
    "scipy",
    "sklearn",
    "timm",
    "torchmetrics",
    "torchvision",
}


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def layer_of(dotted: str) -> str:
    """The layer of a dotted name such as hace.formats.text."""
    parts = dotted.split(".")
    return "front door" if len(parts) == 1 else LAYER_OF[parts[1]]


def imported(path: Path) -> list[str]:
    """All that a file imports from hace, as dotted names, wherever in the file it does so."""
    package = ("hace", *path.relative_to(SOURCE).parts[:-1])
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            if (
                module == "hace"
            ):  # `from hace import errors` names a module, `from hace import Hierarchy` the front door
                found += [f"hace.{a.name}" if a.name in LAYER_OF else "hace" for a in node.names]
            else:
                found.append(module)
    return [name for name in found if name.split(".")[0] == "hace"]


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_file_imports_only_from_layers_below(path: Path) -> None:
    first = path.relative_to(SOURCE).with_suffix("").parts[0]
    assert first in LAYER_OF, f"{first} is in no layer: say in LAYERS where it stands and what it may import"
    layer = LAYER_OF[first]
    allowed = {layer, *LAYERS[layer][1]}
    for name in imported(path):
        assert layer_of(name) in allowed, f"{path.name} (layer {layer}) imports {name}"


def test_layers_have_no_cycle() -> None:
    seen = set()
    for layer, (_, allowed) in LAYERS.items():
        assert set(allowed) - {"front door"} <= seen, f"{layer} may import from a layer that stands after it"
        seen.add(layer)


def test_the_walk_sees_every_form_of_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    (tmp_path / "formats").mkdir()
    path = tmp_path / "formats" / "csv.py"
    path.write_text(
        "import hace.errors\nfrom hace import hierarchy, HaceError\nfrom ..cli import main\nfrom .text import read\n"
        "import numpy\ndef late():\n    from hace.plots import draw\n"
    )
    assert sorted(imported(path)) == [
        "hace",
        "hace.cli",
        "hace.errors",
        "hace.formats.text",
        "hace.hierarchy",
        "hace.plots",
    ]


def test_inventory_of_public_names() -> None:
    assert set(hace.__all__) == PUBLIC
    assert len(hace.__all__) == len(set(hace.__all__))


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_names_exist_and_are_documented(name: str) -> None:
    value = getattr(hace, name)
    assert name in dir(hace)
    assert isinstance(value, str | Mapping) or (value.__doc__ or "").strip(), f"{name} has no docstring"


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="module 'hace' has no attribute 'HACELos'"):
        hace.HACELos  # noqa: B018


@pytest.mark.parametrize("symbol", "z q q* p p* R T H V d eps beta alpha N n".split())
def test_the_glossary_explains(symbol: str) -> None:
    lines = [line.split() for line in (hace.__doc__ or "").splitlines()]
    assert any(line[:1] == [symbol] and len(line) > 3 for line in lines)


def loaded_by(code: str) -> set[str]:
    """The top-level packages that a fresh Python has loaded after this code."""
    code += "\nimport sys, json; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_is_cheap_and_a_loss_loads_torch_and_little_else() -> None:
    assert not loaded_by("import hace") & {*NOT_AT_IMPORT, "torch", "numpy"}
    loaded = loaded_by("from hace import HACELoss, metrics, predict, read_hierarchy")
    assert "torch" in loaded
    assert not loaded & NOT_AT_IMPORT


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["evaluate", "--help"]])
def test_the_command_line_answers_without_torch(arguments: list[str]) -> None:
    code = f"import hace.cli\ntry: hace.cli.main({arguments})\nexcept SystemExit: pass"
    assert not loaded_by(code) & {*NOT_AT_IMPORT, "torch"}


def test_a_summary_needs_no_torch() -> None:
    assert "torch" not in loaded_by("import hace.cli; hace.cli.main(['hierarchy', 'cifar100'])")


@pytest.mark.parametrize("name", ["errors", "functional", "kernels", "losses", "metrics"])
def test_modules_are_attributes(name: str) -> None:
    code = f"import hace; assert {name!r} in dir(hace); assert hace.{name}.__name__ == 'hace.{name}'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_show_config_names_versions_and_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    hace.show_config()
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert shown["hace"] == hace.__version__
    assert shown["torch"].startswith("2.")
    assert shown["threads"] == "1"
    assert shown["kernel"]


def test_typed_marker_is_there() -> None:
    assert (SOURCE / "py.typed").is_file()
