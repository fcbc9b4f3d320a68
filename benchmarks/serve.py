"""`hace serve` under load, beside a bare FastAPI app that runs the same ONNX model, on this machine.

    python benchmarks/serve.py --seconds 5                     requests per second and p99 with 1, 8 and 64 clients
    python benchmarks/serve.py --requests 20000                memory over many requests
    python benchmarks/serve.py --kill                          killed and restarted under load: no request ends in silence

Each server is a process of its own. Clients are coroutines of one process, each with a connection that it keeps.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import multiprocessing
import os
import socket
import tempfile
import time
from pathlib import Path

import numpy as np
from fastapi import FastAPI, UploadFile


def bare(model: str, port: int) -> None:
    """One image per request, decoded and run in a thread: what the documentation of FastAPI suggests."""
    import onnxruntime
    import uvicorn
    from PIL import Image

    from hace.lab.serve.export import image_view, open_program

    view = image_view(open_program(model).document["preprocessing"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    app = FastAPI()

    @app.post("/predict")
    def predict(files: UploadFile) -> dict:
        x = view(Image.open(files.file).convert("RGB"))[None].numpy()
        probabilities = session.run(["leaf_probabilities"], {"images": x})[0][0]
        best = np.argsort(-probabilities)[:5]
        return {"leaves": [{"class": int(i), "probability": float(probabilities[i])} for i in best]}

    uvicorn.run(app, port=port, log_level="error")


def ours(model: str, port: int) -> None:
    import uvicorn

    from hace import Predictor
    from hace.lab.serve.server import make_app

    uvicorn.run(make_app(Predictor.from_run(model)), port=port, log_level="error")


@contextlib.contextmanager
def running(target, model: str):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(target=target, args=(model, port), daemon=True)
    process.start()
    for _ in range(600):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        time.sleep(0.1)
    try:
        yield f"http://127.0.0.1:{port}/predict", process
    finally:
        process.terminate()
        process.join(20)


async def load(address: str, photo: bytes, clients: int, seconds: float = 0, requests: int = 0) -> dict:
    """Replies by status, errors, seconds of each reply; for a time, or for a number of requests.

    The requests are written by hand: a client library takes as much processor time as the servers that are compared.
    """
    took: list[float] = []
    codes: dict[str, int] = {}
    end, left = time.perf_counter() + (seconds or 1e9), [requests or 10**9]
    port = int(address.split(":")[2].split("/")[0])
    body = (
        b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
        + photo
        + b"\r\n--x--\r\n"
    )
    head = (
        "POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )

    async def client() -> None:
        to: asyncio.StreamWriter | None = None
        while time.perf_counter() < end and left[0] > 0:
            left[0] -= 1
            start = time.perf_counter()
            try:
                if to is None:
                    reply, to = await asyncio.open_connection("127.0.0.1", port)
                to.write(head.encode() + body)
                lines = (await asyncio.wait_for(reply.readuntil(b"\r\n\r\n"), 60)).decode().lower()
                await reply.readexactly(int(lines.split("content-length:")[1].split()[0]))
                code = lines.split()[1]
                to = None if "connection: close" in lines else to
            except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
                code, to = type(error).__name__, None
                await asyncio.sleep(0.05)
            codes[code] = codes.get(code, 0) + 1
            took.append(time.perf_counter() - start)
        if to is not None:
            to.close()

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    seconds = time.perf_counter() - start
    return {"codes": codes, "rate": len(took) / seconds, "took": took}


def processor(process) -> float:
    """Seconds of processor time so far: the measure that other work on the machine does not change."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process) -> float:
    """Resident megabytes."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--size", type=int, default=128, help="pixels of the photos and of the model's input")
    args = parser.parse_args()
    from PIL import Image

    from hace.lab.runs.config import DataConfig, TrainConfig
    from hace.lab.serve.export import export_run
    from hace.lab.train.train import train

    with tempfile.TemporaryDirectory() as folder:
        data = DataConfig("synthetic", options={"classes": 40, "train": 2, "test": 1})
        config = TrainConfig(data=data, model="resnet10t", epochs=1, image_size=args.size, batch_size=16)
        train(config, Path(folder) / "run")
        model = str(export_run(Path(folder) / "run", Path(folder) / "model.onnx")[0])
        file = io.BytesIO()
        Image.fromarray(
            np.random.default_rng(0).integers(0, 255, (args.size, args.size, 3), dtype=np.uint8)
        ).save(file, "PNG")
        photo = file.getvalue()
        if args.requests:
            with running(ours, model) as (address, process):
                asyncio.run(load(address, photo, 8, requests=200))
                before = memory(process)
                print("| requests | memory, MB | answered |\n| --- | --- | --- |")
                print(f"| 200 | {before:.0f} | 200 |")
                for part in range(4):
                    result = asyncio.run(load(address, photo, 8, requests=args.requests // 4))
                    done, answered = (part + 1) * args.requests // 4, result["codes"].get("200", 0)
                    print(f"| {done:,} | {memory(process):.0f} | {answered:,} |", flush=True)
        elif args.kill:
            with running(ours, model) as (address, process):
                asyncio.run(load(address, photo, 8, requests=20))
                port = int(address.split(":")[2].split("/")[0])

                async def killed() -> dict:
                    task = asyncio.create_task(load(address, photo, 8, seconds=args.seconds))
                    await asyncio.sleep(args.seconds / 3)
                    process.kill()
                    again = multiprocessing.get_context("spawn").Process(
                        target=ours, args=(model, port), daemon=True
                    )
                    again.start()
                    result = await task
                    again.terminate()
                    return result

                print(asyncio.run(killed())["codes"])
        else:
            with running(bare, model) as one, running(ours, model) as other:
                compare({"bare": one, "hace": other}, photo, args.clients, args.seconds, args.rounds)


def compare(servers: dict, photo: bytes, counts: list[int], seconds: float, rounds: int) -> None:
    """Print, for each number of clients, both servers' rates and p99, in turns of so many seconds."""
    print("| clients | bare: replies per s | `hace serve`: replies per s | ratio of rates | bare: p99, ms "
          "| `hace serve`: p99, ms | ratio of processor time per reply |\n" + "| --- " * 7 + "|")  # fmt: skip
    for clients in counts:
        result: dict[str, list[dict]] = {name: [] for name in servers}
        for _ in range(rounds):
            for name, (address, process) in servers.items():
                asyncio.run(load(address, photo, clients, requests=2 * clients))  # warm
                before = processor(process)
                result[name].append(asyncio.run(load(address, photo, clients, seconds=seconds)))
                result[name][-1]["spent"] = processor(process) - before
                assert set(result[name][-1]["codes"]) == {"200"}, result[name][-1]["codes"]
        rates, late, cost = {}, {}, {}
        for name, parts in result.items():
            took = [t for part in parts for t in part["took"]]
            rates[name] = float(np.mean([part["rate"] for part in parts]))
            late[name] = 1000 * float(np.quantile(took, 0.99))
            cost[name] = sum(part["spent"] for part in parts) / len(took)
        ratio, spent = rates["hace"] / rates["bare"], cost["hace"] / cost["bare"]
        print(f"| {clients} | {rates['bare']:.1f} | {rates['hace']:.1f} | {ratio:.2f} | {late['bare']:.0f} "
              f"| {late['hace']:.0f} | {spent:.2f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
