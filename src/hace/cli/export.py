"""`hace export`: a finished run as one file for deployment."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = """\
Write the model of a finished run as one file: ONNX, a torch.export program, or safetensors; or as a folder for a model hub. The
file holds the preprocessing, ids of classes and nodes, the hierarchy, the temperature, and the thresholds of `hace calibrate`.
"""

EXAMPLES = """\
examples:
  hace export runs/4cd033b43672ca23 --to onnx --out birds.onnx
  hace predict birds.onnx photos --threshold 0.9               needs onnxruntime, and neither timm nor the run
  hace export runs/4cd033b43672ca23 --to torch                 runs/4cd033b43672ca23/model.pt2 is the default place
  hace export runs/4cd033b43672ca23 --to huggingface --out birds

A file has three outputs: scores (logits), leaf_probabilities (B, classes) and node_probabilities (B, nodes), in the order of
the ids in its document. Path sums are collapsed into a head over the classes. What a file computes is compared with the model
before it is kept. Run `hace calibrate RUN` first if its thresholds are to be part of the file.

  onnx         for any runtime                pip install "hace[export]"
  torch        for torch.export.load; open only files that you trust
  safetensors  weights and document; using it on images takes timm
  huggingface  a folder with config.json, model.safetensors and a model card (README.md) with results and limits
"""

FORMS = ("onnx", "torch", "safetensors", "huggingface")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("run_folder", metavar="RUN", help="a finished run of `hace probe` or `hace train`")
    add("--to", choices=FORMS, required=True, help="the format")
    add("--out", metavar="PATH", help="the output (default: model.onnx, model.pt2, ... in the run's folder)")
    add(
        "--checkpoint",
        metavar="FILE",
        help="for a probe: weights of the model behind its features (default: the ones `hace features` used)",
    )


def run(args: argparse.Namespace) -> None:
    """Export."""
    from hace.lab.serve.export import SUFFIX_OF, check_suffix, prepare, write_export
    from hace.lab.serve.hub_folder import write_hub_folder

    if args.out is not None and args.to in SUFFIX_OF:
        check_suffix(args.out, args.to)  # before the run and its model are read
    export = prepare(args.run_folder, checkpoint=args.checkpoint)
    if args.to == "huggingface":
        out = Path(args.out or Path(args.run_folder) / "huggingface")
        write_hub_folder(export, out)
        print(f"wrote {out}: config.json, model.safetensors and README.md, the model card")
        return
    out = Path(args.out or Path(args.run_folder) / f"model{SUFFIX_OF[args.to]}")
    difference = write_export(export, out, args.to)
    size = f"{out.stat().st_size / 1e6:.1f} MB"
    print(f"wrote {out}, {size}; probabilities differ by at most {difference:.1g} from the run's")
    if export.document["calibration"] is None:
        print("without thresholds that keep a promise: hace calibrate first, if the run held out samples")
