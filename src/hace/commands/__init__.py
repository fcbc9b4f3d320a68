"""The subcommands of `hace`, a file each: `add_arguments(parser)` and `run(args)`; `hace.cli` lists them."""
