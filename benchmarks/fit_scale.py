"""What `hace fit` takes as data grow: time and memory for rows x classes of features on disk, and how both grow.

    python benchmarks/fit_scale.py                                       # sizes that fit a coffee break
    python benchmarks/fit_scale.py --rows 1000000 --classes 10000        # hours

Features are random blocks: classes and their groups are directions in 512 dimensions with noise around them, in float16 in a
.safetensors file. Every fit is the command, in a process of its own with one thread. Seconds are those of the processor, so
other work on the machine counts little; memory is the peak beyond what the process has mapped from files, which the system may
drop. "Per unit" is time over rows x classes x features, in picoseconds. The slope is that of log seconds over log rows, from
the size before.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from hace import Hierarchy
from hace.formats import render_hierarchy

WIDTH, BLOCK, EACH = 512, 8192, 10
RUN = "import sys; from hace.cli import main; sys.exit(main(sys.argv[1:]))"


def tree_of(classes: int) -> Hierarchy:
    """Classes in groups of ten, in groups of ten."""
    paths = [(f"order {i // 100:03}", f"group {i // EACH:04}", f"class {i:05}") for i in range(classes)]
    return Hierarchy.from_paths(paths)


def write_features(path: Path, rows: int, classes: int) -> None:
    """A .safetensors file of rows with labels, a block at a time."""
    rng = np.random.default_rng(0)
    scale = (
        np.arange(1, WIDTH + 1, dtype=np.float32) ** -0.4
    )  # some directions vary more, as in features of images
    group = np.arange(classes) // EACH
    centres = 0.22 * rng.standard_normal((group[-1] + 1, WIDTH), np.float32)[group]
    centres += 0.13 * rng.standard_normal((classes, WIDTH), np.float32)
    label = rng.permutation(np.arange(rows) % classes)
    arrays = (("X", "F16", [rows, WIDTH], 2 * rows * WIDTH), ("y", "I64", [rows], 8 * rows))
    header, end = {}, 0
    for name, dtype, shape, size in arrays:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for first in range(0, rows, BLOCK):
            own = centres[label[first : first + BLOCK]]
            part = (own + rng.standard_normal(own.shape, np.float32)) * scale
            file.write(part.astype(np.float16).tobytes())
        file.write(label.astype(np.int64).tobytes())


def watched(command: list[str], folder: Path) -> tuple[float, float, float, str]:
    """Processor seconds, seconds of the clock, peak GB of the process's own memory, and what a command printed."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    began = time.monotonic()
    with (folder / "printed").open("w") as printed:
        process = subprocess.Popen(command, stdout=printed, env=environment, cwd=folder)
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.1):
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
                peak = max(peak, int(status.split("RssAnon:")[1].split()[0]) * 1024)
            except (OSError, IndexError):
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    _, status, usage = os.wait4(process.pid, 0)
    done.set()
    watcher.join()
    text = (folder / "printed").read_text()
    if status:
        sys.exit(f"{' '.join(command[3:])} failed\n{text}")
    return usage.ru_utime + usage.ru_stime, time.monotonic() - began, peak / 1e9, text


def one_size(rows: int, classes: int, folder: Path) -> dict[str, float | str]:
    """What one fit takes."""
    features, tree, out = folder / "features.safetensors", folder / "tree.json", folder / "model.hace"
    write_features(features, rows, classes)
    tree.write_text(render_hierarchy(tree_of(classes), "json"))
    words = ["fit", features, "--hierarchy", tree, "--out", out]
    seconds, _, memory, text = watched([sys.executable, "-c", RUN, *map(str, words)], folder)
    import hace

    findings = hace.load(out).findings
    print(text, file=sys.stderr)
    return {
        "seconds": seconds,
        "memory": memory,
        "solver": "mini-batches" if any("mini-batches" in note for note in findings.notes) else "L-BFGS",
        "accuracy": 100 * findings.accuracy[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--classes", type=int, nargs="+", default=[100, 1_000])
    parser.add_argument("--folder", type=Path, help="where to write features; there must be room")
    args = parser.parse_args()
    print("| rows | classes | solver | processor: s | per unit: ps | memory: GB | top-1: % | slope |")
    print("| --- " * 8 + "|")
    for classes in args.classes:
        before: tuple[int, float] | None = None
        for rows in args.rows:
            with tempfile.TemporaryDirectory(dir=args.folder) as name:
                result = one_size(rows, classes, Path(name))
            seconds = float(result["seconds"])
            slope = (
                "" if before is None else f"{math.log(seconds / before[1]) / math.log(rows / before[0]):.2f}"
            )
            unit = 1e12 * seconds / (rows * classes * WIDTH)
            print(
                f"| {rows:,} | {classes:,} | {result['solver']} | {seconds:.0f} | {unit:.0f} | {result['memory']:.2f} | "
                f"{result['accuracy']:.1f} | {slope} |",
                flush=True,
            )
            before = rows, seconds


if __name__ == "__main__":
    main()
