"""The package as a whole: who may import whom, what is public, and what `import hace` costs."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import hace

SOURCE = Path(hace.__file__).parent


def listed_layers() -> tuple[str, ...]:
    """The layers, each a module or a folder of src/hace, from the one list there is: the table in the documentation."""
    page = Path(__file__).parents[1] / "docs" / "architecture.md"
    table = page.read_text(encoding="utf-8").partition("| layer |")[2].partition("\n\n")[0]
    return tuple(re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE))


LAYERS = listed_layers()
PUBLIC = {
    "ConfigError",
    "Consensus",
    "DATASETS",
    "DataError",
    "Dataset",
    "FeatureStore",
    "FormatError",
    "Answers",
    "HACEClassifier",
    "Model",
    "fit",
    "load",
    "HaceError",
    "Hierarchy",
    "HierarchyError",
    "LOSSES",
    "Predictor",
    "Profile",
    "ProbeConfig",
    "Question",
    "DataConfig",
    "LossConfig",
    "RunConfig",
    "Samples",
    "Study",
    "TrainConfig",
    "__version__",
    "build_loss",
    "check",
    "calibrate_run",
    "calibrate_scores",
    "export_run",
    "extract",
    "load_backbone",
    "load_trained",
    "rescored",
    "anndata",
    "data",
    "decisions",
    "draw",
    "environment",
    "errors",
    "formats",
    "hierarchy",
    "linear",
    "losses",
    "cifar100_hierarchy",
    "compare",
    "draw_hierarchy",
    "evaluate",
    "fgvc_hierarchy",
    "fit_temperature",
    "guaranteed_threshold",
    "leaf_logits",
    "load_dataset",
    "metrics",
    "nearest_similarity",
    "nabirds_hierarchy",
    "node_log_probs",
    "predict",
    "plot_log",
    "probe",
    "reachability_matrix",
    "read_hierarchy",
    "read_mapping",
    "read_run",
    "show_config",
    "train",
    "write_evaluation",
    "write_hierarchy",
    "write_report",
    *hace.losses.registry.CLASSES,
    "consensus",
}

NOT_AT_IMPORT = {
    "PIL",
    "filelock",
    "matplotlib",
    "networkx",
    "pandas",
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
    own = {SOURCE / "__init__.py", SOURCE / "__main__.py", SOURCE / "lab" / "__init__.py"}
    return sorted(set(SOURCE.rglob("*.py")) - own)


def layer_of(dotted: str) -> str | None:
    """The layer of a dotted name below hace, such as formats.tables; None for the front door itself."""
    return next((name for name in LAYERS if dotted == name or dotted.startswith(f"{name}.")), None)


def front_door() -> dict[str, str]:
    """The module behind each name that `from hace import ...` gives."""
    stub = ast.parse((Path(hace.__file__).parent / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module != "hace"]
    names = {alias.name: str(node.module) for node in imports for alias in node.names}
    return names | dict.fromkeys(hace.losses.registry.CLASSES, "hace.losses.registry")


FRONT_DOOR = front_door()


def imported(path: Path) -> set[str]:
    """All that a file imports from hace, as dotted names below it, wherever in the file and however it does so."""
    package = ("hace", *path.relative_to(SOURCE).parts[:-1])
    tree = ast.parse(path.read_text(encoding="utf-8"))
    result: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            result |= {whole_name(module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            result |= {str(a.value) for a in node.args if isinstance(a, ast.Constant)}
    if "hace" in result:  # import hace, and then hace.name
        uses = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        own = [node.attr for node in uses if isinstance(node.value, ast.Name) and node.value.id == "hace"]
        result |= {whole_name("hace", name) for name in own}
    return {name[5:] for name in result if name.startswith("hace.")}


def whole_name(module: str, name: str) -> str:
    """What `from module import name` loads: a module, or the module that a name of the front door stands for."""
    if layer_of(f"{module}.{name}"[5:]):
        return f"{module}.{name}"
    return FRONT_DOOR.get(name, module) if module == "hace" else module


def test_every_file_is_in_a_layer_and_imports_only_from_its_own_or_earlier_ones() -> None:
    wrong = set()
    for path in modules():
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        layer = layer_of(name)
        assert layer is not None, f"{name} is in no layer: add it to LAYERS"
        for other in imported(path):
            target = layer_of(other)
            if target and LAYERS.index(target) > LAYERS.index(layer):
                wrong.add((name, other))
    assert wrong == set()


def test_the_list_of_layers_names_what_there_is_and_each_once() -> None:
    assert len(LAYERS) == len(set(LAYERS)) > 20
    for name in LAYERS:
        place = SOURCE / Path(*name.split("."))
        assert place.is_dir() or place.with_suffix(".py").is_file(), name


def test_a_command_imports_no_other_command() -> None:
    """What two commands need is in the engine or in an options module; a command may have helper files, NAME_*.py."""
    wrong = set()
    for path in (SOURCE / "cli").glob("*.py"):
        own = path.stem.split("_")[0]
        for other in imported(path):
            part = other.split(".")[1] if other.startswith("cli.") else "options"
            if not part.startswith(("engine", "entry", "options")) and part.split("_")[0] != own:
                wrong.add((path.stem, part))
    assert wrong == set()


def test_the_walk_sees_every_form_of_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    (tmp_path / "formats").mkdir()
    path = tmp_path / "formats" / "csv.py"
    path.write_text(
        "import hace.errors\nfrom hace import hierarchy, HaceError\nfrom ..cli import main\nfrom .text import read\n"
        "import numpy\ndef late():\n    from hace.lab.report import page\n"
        "    from hace import evaluate\n    importlib.import_module('hace.draw.picture')\n"
    )
    assert {layer_of(name) for name in imported(path)} == {
        "cli",
        "draw",
        "errors",
        "formats",
        "hierarchy",
        "lab.report",
        "metrics",
    }
    path.write_text("import hace\nhace.write_report\nhace.HACELoss\n")
    assert {layer_of(name) for name in imported(path)} == {"lab.report", "losses"}


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


@pytest.mark.slow
def test_import_is_cheap_and_a_loss_loads_torch_and_little_else() -> None:
    assert not loaded_by("import hace") & {*NOT_AT_IMPORT, "torch", "numpy"}
    loaded = loaded_by("from hace import HACELoss, metrics, predict, read_hierarchy")
    assert "torch" in loaded
    assert not loaded & NOT_AT_IMPORT


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["evaluate", "--help"]])
def test_the_command_line_answers_without_torch(arguments: list[str]) -> None:
    code = f"import hace.cli\ntry: hace.cli.main({arguments})\nexcept SystemExit: pass"
    assert not loaded_by(code) & {*NOT_AT_IMPORT, "torch"}


def test_a_hierarchy_needs_no_torch() -> None:
    assert "torch" not in loaded_by("import hace.hierarchy; hace.Hierarchy.flat(['a', 'b']).summary()")


def test_a_summary_needs_no_torch() -> None:
    assert "torch" not in loaded_by("import hace.cli; hace.cli.main(['hierarchy', 'cifar100'])")


@pytest.mark.slow
def test_modules_are_attributes() -> None:
    names = (
        "errors",
        "hierarchy",
        "losses",
        "decisions",
        "metrics",
    )  # in the order of layers: none loads a later one
    code = "".join(f"assert hace.{name}.__name__ == 'hace.{name}'; " for name in names)
    code = f"import hace; {code} assert set({names!r}) <= set(dir(hace))"
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


def test_the_lowest_versions_are_the_guaranteed_floors() -> None:
    root = Path(__file__).parents[1]
    guaranteed = dict(re.findall(r'"([\w-]+)(?:\[\w+\])?>=([\d.]+)"', (root / "pyproject.toml").read_text()))
    lowest = dict(
        re.findall(r"^([\w-]+)==([\d.]+)$", (root / "constraints-lowest.txt").read_text(), re.MULTILINE)
    )
    assert "torch" in lowest
    for name, version in lowest.items():
        floor = guaranteed[name].split(".")
        assert version.split(".")[: len(floor)] == floor, name
        assert set(version.split(".")[len(floor) :]) <= {"0"}, (
            f"{name}: {version} is above the floor {guaranteed[name]}"
        )
