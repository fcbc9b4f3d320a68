"""The modules that each flow goes through: python tools/flow_modules.py [--markdown] [--names FLOW]

Every flow is a command, run once in a process of its own on tiny data. "Visited" are the modules of which a function runs,
apart from what runs while modules are imported for the first time: what a reader who follows the flow has to open. "Imported"
are all that it loads beyond `import hace`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import hace

SOURCE = str(Path(hace.__file__).parent) + os.sep
CO_OPTIMIZED = 1  # the flag of functions; the code of modules and class bodies does not have it

TREE = "parent,child\nanimal,dog\nanimal,cat\ndog,husky\ndog,beagle\ncat,tabby\ncat,siamese\n"
CLASSES = ("husky", "beagle", "tabby", "siamese")
STUDY = "study animals --only method=cross_entropy,hace --seeds 1 --rates 4,16 --widen 0 --epochs-scale 0.1 --out study"
PROBE = "probe --features features.npz --hierarchy tree.csv --loss hace --lr 4 --epochs 2"

# The command of each flow, and those that make its inputs.
FLOWS = {
    "evaluate": ("evaluate --hierarchy tree.csv --scores scores.npy --labels labels.npy", ()),
    "predict": ("predict {run} features.npz --out answers.csv", (f"{PROBE} --out made",)),
    "probe": (f"{PROBE} --out runs", ()),
    "study": (STUDY, ()),
    "report": ("report study --quiet", (STUDY,)),
}


def write_inputs(folder: Path) -> None:
    """A hierarchy, features, scores and labels."""
    import numpy as np

    rng = np.random.default_rng(0)
    labels = np.arange(80) % len(CLASSES)
    names = np.array(CLASSES)[labels]
    split = np.where(np.arange(80) < 60, "train", "test")
    (folder / "tree.csv").write_text(TREE)
    x = rng.standard_normal((80, 8)).astype(np.float32) + labels[:, None]
    np.savez(folder / "features.npz", X=x, y=names, split=split)
    np.save(folder / "scores.npy", rng.standard_normal((80, len(CLASSES))).astype(np.float32))
    np.save(folder / "labels.npy", labels)


def run(command: str) -> None:
    """Run a command of hace in the current folder."""
    from hace.cli import main

    if "{run}" in command:
        command = command.format(run=next(Path("made").glob("*/result.json")).parent)
    code = main(command.split())
    if code:
        raise SystemExit(f"hace {command} ended with {code}")


def is_importing(frame: FrameType | None) -> bool:
    """Whether a frame runs because some module of the package is being imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(SOURCE):
            return True
        frame = frame.f_back
    return False


def measure(command: str) -> dict[str, list[str]]:
    """The modules that a command visits and imports, in this process."""
    visited: set[str] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCE) or not code.co_flags & CO_OPTIMIZED:
            return
        name = code.co_filename.removeprefix(SOURCE)
        if name not in visited and not is_importing(frame):
            visited.add(name)

    before = set(sys.modules)
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            run(command)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    imported = sorted(name for name in set(sys.modules) - before if name.startswith("hace."))
    return {"visited": sorted(visited), "imported": imported}


def in_own_process(flow: str) -> dict[str, list[str]]:
    """What a flow visits and imports, in a process that has imported nothing but hace."""
    command, inputs = FLOWS[flow]
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder))
        for words in (*inputs, command):
            call = [sys.executable, __file__, "--measure", words]
            done = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{flow}: {done.stderr}")
    return json.loads(done.stdout)


def main() -> None:
    """Print the counts, the table of the documentation, or the modules of one flow."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/architecture.md")
    parser.add_argument("--names", choices=FLOWS, help="print the modules of one flow")
    parser.add_argument("--measure", metavar="COMMAND", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return
    if args.names:
        for kind, names in in_own_process(args.names).items():
            print(f"{kind}: {' '.join(names)}\n")
        return
    rows = {flow: in_own_process(flow) for flow in FLOWS}
    if args.markdown:
        print("| flow | modules visited | modules imported |\n| --- | --- | --- |")
    for flow, result in rows.items():
        visited, imported = len(result["visited"]), len(result["imported"])
        print(
            f"| `hace {flow}` | {visited} | {imported} |"
            if args.markdown
            else f"{flow:<10} {visited:>4} {imported:>4}"
        )


if __name__ == "__main__":
    main()
