"""`hace export`: the model of a run as one file, or as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from hace.cli.engine import With, Without
from hace.cli.options import Checkpoint


def export(
    run: str,
    /,
    *,
    out: Annotated[Path | None, Without("--page")] = None,
    to: Annotated[Literal["hace", "onnx", "safetensors", "huggingface"] | None, Without("--page")] = None,
    page: Path | None = None,
    samples: Annotated[Path | None, With("--page")] = None,
    runtime: Annotated[Path | None, With("--page")] = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Write the model of a finished run as one file, or as a folder for a model hub, with its preprocessing, hierarchy, ids,
    temperature, the thresholds of `hace calibrate`, and a checksum.

    Examples
      hace export runs/latest --out birds.hace                     a file like those of hace fit
      hace export runs/latest --out birds.onnx
      hace predict birds.onnx photos --threshold 0.9               needs onnxruntime, not timm or the run
      hace export photos.hace --out photos.onnx
      hace export runs/latest --to huggingface --out birds
      hace export runs/latest --page birds-page                    the page of hace serve, without a server

    A file has three outputs: scores (logits), leaf_probabilities (B, classes) and node_probabilities (B, nodes), in the order
    of the ids in its document. A shared-ancestor head (path sums) is collapsed into a head over the classes. Before
    it is written, the file's output is compared with the model's. To include thresholds, run `hace calibrate RUN` first.

      hace         weights and document; needs timm for images
      safetensors  the same under another name
      onnx         for any runtime                needs the extra `export`
      huggingface  a folder with config.json, model.safetensors and a model card (README.md) with results and limits

    Args:
        run: Finished run; or, for ONNX or --page, a .hace or .safetensors file.
        out: File or folder to write (default: model.hace, or the format of --to, in the run).
        to: Format (default: by the suffix of --out).
        page: Folder for the page of `hace serve` as static files; the model runs in the browser.
        samples: Photos or features to offer as buttons, in place of the run's own.
        runtime: Folder of the npm package onnxruntime-web, unpacked (default: fetched).
    """
    if page is not None:
        from hace.lab.serve.page import export_page

        written = export_page(run, page, samples=samples, runtime=runtime, checkpoint=checkpoint)
        size = sum(file.stat().st_size for file in written.parent.iterdir()) / 1e6
        print(f"wrote {written}, {size:.0f} MB in all. Open it, zip the folder, or put it on any web server.")
        return
    if to is None and out is None:
        to = "hace"
    from hace.lab.serve.export import export_run

    target, exported, difference = export_run(run, out, to, checkpoint=checkpoint)
    what = ": config.json, model.safetensors and README.md, the model card"
    if target.is_file():
        what = f", {target.stat().st_size / 1e6:.1f} MB"
    print(f"wrote {target}{what}; probabilities differ by at most {difference:.1g} from the run's")
    if exported.document["calibration"] is None:
        print("without thresholds that keep a guarantee: hace calibrate first, if the run held out samples")
