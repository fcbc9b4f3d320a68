"""`hace export`: the model of a run as one file, or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from hace.cli.engine import With, Without
from hace.cli.options import Checkpoint
from hace.errors import ConfigError


def export(
    run: str,
    /,
    *,
    to: Annotated[Literal["onnx", "safetensors", "huggingface"] | None, Without("--page")] = None,
    out: Annotated[Path | None, With("--to")] = None,
    page: Path | None = None,
    samples: Annotated[Path | None, With("--page")] = None,
    runtime: Annotated[Path | None, With("--page")] = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Write the model of a finished run as one file, ONNX or safetensors, or as a folder for a model hub. It holds the
    preprocessing, ids of classes and nodes, the hierarchy, the temperature, the thresholds of `hace calibrate`, and a checksum.

    Examples
      hace export runs/4cd033b43672ca23 --to onnx --out birds.onnx
      hace predict birds.onnx photos --threshold 0.9               needs onnxruntime, and neither timm nor the run
      hace export runs/4cd033b43672ca23 --to safetensors           writes runs/4cd033b43672ca23/model.safetensors
      hace export runs/4cd033b43672ca23 --to huggingface --out birds
      hace export runs/4cd033b43672ca23 --page birds-page          the page of hace serve, without a server

    A file has three outputs: scores (logits), leaf_probabilities (B, classes) and node_probabilities (B, nodes), in the order
    of the ids in its document. Path sums are collapsed into a head over the classes. What a file computes is compared with the
    model before it is written. Run `hace calibrate RUN` first if its thresholds are to be part of the file.

      onnx         for any runtime                needs the extra `export`
      safetensors  weights and document; using it on images takes timm
      huggingface  a folder with config.json, model.safetensors and a model card (README.md) with results and limits

    Args:
        run: A finished run; or, with --to onnx or --page, a .safetensors file.
        to: The format.
        out: The output (default: model.onnx, model.safetensors or huggingface in the run).
        page: Write the page of `hace serve` into this folder, as static files; the model runs in the browser.
        samples: Photos or features to offer as buttons, in place of the run's own.
        runtime: The npm package onnxruntime-web, unpacked (default: it is fetched).
    """
    if page is not None:
        from hace.lab.serve.page import export_page

        written = export_page(run, page, samples=samples, runtime=runtime, checkpoint=checkpoint)
        size = sum(file.stat().st_size for file in written.parent.iterdir()) / 1e6
        print(f"wrote {written}, {size:.0f} MB in all. Open it, zip the folder, or put it on any web server.")
        return
    if to is None:
        raise ConfigError("hace export must have --to or --page. Got neither.")
    from hace.lab.serve.export import export_run

    target, exported, difference = export_run(run, out, to, checkpoint=checkpoint)
    what = ": config.json, model.safetensors and README.md, the model card"
    if target.is_file():
        what = f", {target.stat().st_size / 1e6:.1f} MB"
    print(f"wrote {target}{what}; probabilities differ by at most {difference:.1g} from the run's")
    if exported.document["calibration"] is None:
        print("without thresholds that keep a guarantee: hace calibrate first, if the run held out samples")
