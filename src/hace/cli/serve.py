"""`hace serve`: a model in the browser, and as an API."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import tempfile
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from hace.checks import require
from hace.cli.engine import With, Without
from hace.cli.options import Checkpoint, MovedData
from hace.errors import ConfigError, HaceError
from hace.files.reading import optional

if TYPE_CHECKING:
    from hace.lab.serve.page import Sample


def serve(
    run: str | None = None,
    /,
    *,
    demo: Annotated[bool, Without("RUN")] = False,
    port: int = 8000,
    host: str = "127.0.0.1",
    token: str | None = None,
    samples: Path | None = None,
    data_root: Annotated[MovedData, With("RUN"), Without("--samples")] = None,
    checkpoint: Annotated[Checkpoint, With("RUN")] = None,
    device: str = "cpu",
    no_open: bool = False,
) -> None:
    """Try a model in the browser: drop a photo, or paste a row of features, and see the answer, the path to it and its
    competitors. The server is also an API for other programs, documented at /docs.

    Examples
      hace serve --demo                                  train a small model on drawn creatures, and try it
      hace serve runs/latest
      hace serve model.onnx --samples photos             a file of hace export, with photos as buttons
      hace serve runs/latest --port 8080 --no-open
      hace serve runs/latest --host 0.0.0.0 --token SECRET
      curl -F files=@photo.jpg "http://127.0.0.1:8000/predict?accuracy=0.95"

    Run `hace calibrate RUN` first, so that the slider "how sure must it be?" moves between guarantees; otherwise it sets a
    plain threshold. The server listens on this machine only. With another --host, requests need the token; put a TLS proxy in
    front before you open it to the internet. Ctrl-C stops it, after requests under way are answered.

    Args:
        run: Finished run, or a file of `hace fit` or `hace export`.
        demo: Train a small model on drawn creatures first (half a minute).
        port: Port to listen on; 0: any free port.
        host: Address to listen on; the default is this machine only.
        token: Token that requests must carry (default: none on this machine, otherwise a new one).
        samples: Photos or features to offer as buttons, in place of the run's own.
        device: cpu, cuda, cuda:1 or mps.
        no_open: Do not open a browser.
    """
    from hace.lab.runs.process import keep_freed_memory

    keep_freed_memory()
    for name in ("uvicorn", "fastapi", "python_multipart"):
        optional(name, "A server", "serve")
    if run is None and not demo:
        raise ConfigError("hace serve must have a RUN, or --demo. Got neither.")
    require("--port", port, "from 0 to 65535", 0 <= port < 65536)
    os.environ.setdefault("HACE_MAX_MEMORY", "512M")  # an upload of more than 44 megapixels is refused
    with tempfile.TemporaryDirectory() as temporary:
        from hace.fitting.new_samples import opened
        from hace.lab.serve.demo import train_demo
        from hace.lab.serve.page import samples_among
        from hace.lab.serve.predictor import Predictor
        from hace.lab.serve.server import is_local, listening, make_app, make_server

        local = is_local(host)
        token = token or (None if local else secrets.token_urlsafe(16))
        if run is None:
            print("training a small model on drawings of 65 creatures", file=sys.stderr, flush=True)
            model, buttons = train_demo(Path(temporary))
        else:
            model = Path(run)
            buttons = [] if samples is not None else own_samples(run, data_root)
        predictor = Predictor.from_run(model, checkpoint=checkpoint, device=device)
        if samples is not None:
            buttons = samples_among(opened(predictor, [str(samples)]))
        with listening(host, port) as sock:
            port = sock.getsockname()[1]
            hosts = ("127.0.0.1", "localhost", "[::1]", host) if local else None
            title = "Which creature is it?" if demo else f"Try {predictor.title}"
            app = make_app(predictor, title=title, token=token, samples=buttons, hosts=hosts)
            shown = (f"[{host}]" if ":" in host else host) if local else socket.gethostname()
            address = f"http://{shown}:{port}/" + (f"#token={token}" if token else "")
            if not local:
                where = f"{host} is reachable from other machines, without encryption"
                print(f"hace: warning: {where}. Only requests with the token are answered.", file=sys.stderr)
            print(f"{address}\nThe API: http://{shown}:{port}/docs. To stop: Ctrl-C.", flush=True)
            if not no_open:
                threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()
            make_server(app).run(sockets=[sock])


def own_samples(run: str, data_root: Path | None) -> list[Sample]:
    """What the page offers to try at once; without the run's data, nothing."""
    from hace.lab.serve.page import run_samples
    from hace.lab.serve.predictor import is_exported

    if is_exported(run):
        return []
    try:
        return run_samples(run, data_root)
    except HaceError as error:
        if os.path.exists(run):  # otherwise the model is missing, which is said next
            print(f"hace: no samples as buttons: {error}", file=sys.stderr)
        return []
