"""Write the model of a finished run as one file, ONNX or safetensors, or as a folder for a model hub. It holds the
preprocessing, ids of classes and nodes, the hierarchy, the temperature, the thresholds of `hace calibrate`, and a checksum.

Examples:
  hace export runs/4cd033b43672ca23 --to onnx --out birds.onnx
  hace predict birds.onnx photos --threshold 0.9               needs onnxruntime, and neither timm nor the run
  hace export runs/4cd033b43672ca23 --to safetensors           writes runs/4cd033b43672ca23/model.safetensors
  hace export runs/4cd033b43672ca23 --to huggingface --out birds
  hace export runs/4cd033b43672ca23 --page birds-page          the page of hace serve, without a server

A file has three outputs: scores (logits), leaf_probabilities (B, classes) and node_probabilities (B, nodes), in the order of
the ids in its document. Path sums are collapsed into a head over the classes. What a file computes is compared with the model
before it is kept. Run `hace calibrate RUN` first if its thresholds are to be part of the file.

  onnx         for any runtime                needs the extra `export`
  safetensors  weights and document; using it on images takes timm
  huggingface  a folder with config.json, model.safetensors and a model card (README.md) with results and limits
"""

from __future__ import annotations

import argparse

from hace.cli.options import Parser, add_checkpoint
from hace.errors import ConfigError


def add_arguments(parser: Parser) -> None:
    """Declare the command's arguments."""
    add = parser.option
    add("run_folder", "RUN", "a finished run; or, with --to onnx or --page, a .safetensors file")
    add("--to", ("onnx", "safetensors", "huggingface"), "the format")
    add("--page", "FOLDER", "write the page of `hace serve` as static files; the model runs in the browser")
    add("--samples", "PATH", "with --page: photos or features to offer as buttons")
    about = "with --page: the npm package onnxruntime-web, unpacked (default: it is fetched)"
    add("--runtime", "FOLDER", about)
    add("--out", "PATH", "the output (default: model.onnx, model.safetensors or huggingface in the run)")
    add_checkpoint(parser)


def run(args: argparse.Namespace) -> None:
    """Export."""
    of_pages = args.runtime is not None or args.samples is not None
    if (args.to is None) == (args.page is None) or (of_pages and args.page is None):
        raise ConfigError("One of --to and --page must be given; --samples and --runtime go with --page.")
    if args.page is not None:
        from hace.lab.serve.page import export_page

        options = {"samples": args.samples, "runtime": args.runtime, "checkpoint": args.checkpoint}
        page = export_page(args.run_folder, args.page, **options)
        size = sum(file.stat().st_size for file in page.parent.iterdir()) / 1e6
        print(f"wrote {page}, {size:.0f} MB in all. Open it, zip the folder, or put it on any web server.")
        return
    from hace.lab.serve.export import export_run

    out, export, difference = export_run(args.run_folder, args.out, args.to, checkpoint=args.checkpoint)
    what = ": config.json, model.safetensors and README.md, the model card"
    if out.is_file():
        what = f", {out.stat().st_size / 1e6:.1f} MB"
    print(f"wrote {out}{what}; probabilities differ by at most {difference:.1g} from the run's")
    if export.document["calibration"] is None:
        print("without thresholds that keep a guarantee: hace calibrate first, if the run held out samples")
