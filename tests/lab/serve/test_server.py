"""The API of `hace serve`: the answers of `hace predict`, within limits, whatever arrives."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
from fastapi.testclient import TestClient
from PIL import Image

from hace import Predictor, cli
from hace.lab.serve.batching import Batcher, Limits
from hace.lab.serve.guard import Guard, host_name
from hace.lab.serve.page import Sample, hierarchy_document, model_document, read_samples, run_samples
from hace.lab.serve.server import is_local, make_app
from tests.lab.features.test_text import run_of

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def client(predictor: Predictor, demo: tuple[Path, list[Sample]]) -> Any:
    with TestClient(make_app(predictor, samples=demo[1])) as client:
        yield client


def png(size: tuple[int, int] = (40, 33), seed: int = 0, form: str = "PNG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, form)
    return file.getvalue()


PHOTO: dict[str, Any] = {"content": png(), "headers": {"Content-Type": "image/png"}}
ODD_QUERIES = (
    "",
    "?top_k=-1",
    "?threshold=nan",
    "?level=%00",
    f"?subset={'a' * 900}",
    "?accuracy=1e-400",
    "?scores=maybe",
)


def lines(capsys: pytest.CaptureFixture[str], *args: str) -> list[dict[str, Any]]:
    assert cli.main(["predict", *args, "--to", "jsonl"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("", []),
        ("?top_k=2&threshold=0.6", ["--top-k", "2", "--threshold", "0.6"]),
        ("?accuracy=0.95", ["--accuracy", "0.95"]),
        ("?accuracy=0.9&of=answers", ["--accuracy", "0.9", "--of", "answers"]),
        ("?level=family", ["--level", "family"]),
        ("?subset=bird&subset=silver pike", ["--subset", "bird,silver pike"]),
    ],
)
def test_answers_are_those_of_the_command(
    client: Any, demo: Any, tmp_path: Path, capsys: Any, query: str, options: list[str]
) -> None:
    names = [f"{i}.png" for i in range(3)]
    for i, name in enumerate(names):
        (tmp_path / name).write_bytes(png(seed=i))
    expected = lines(capsys, str(demo[0]), *(str(tmp_path / n) for n in names), *options)
    files = [("files", (n, (tmp_path / n).read_bytes())) for n in names]
    many = client.post(f"/predict{query}", files=files).json()["predictions"]
    encoded = [base64.b64encode((tmp_path / n).read_bytes()).decode() for n in names]
    as_json = client.post(f"/predict{query}", json={"images": encoded}).json()["predictions"]
    one = client.post(
        f"/predict{query}", content=(tmp_path / names[0]).read_bytes(), headers={"Content-Type": "image/png"}
    ).json()["predictions"]
    assert [p["sample"] for p in many] == names
    for result in (many, as_json, one):
        for prediction, line in zip(result, expected, strict=False):
            assert prediction["answer"].keys() == line["answer"].keys()
            assert prediction["answer"]["id"] == line["answer"]["id"]
            assert prediction["answer"]["probability"] == pytest.approx(
                line["answer"]["probability"], abs=1e-5
            )
            assert [leaf["id"] for leaf in prediction["leaves"]] == [leaf["id"] for leaf in line["leaves"]]


def test_rows_of_features_and_scores(client: Any, predictor: Predictor) -> None:
    x = np.random.default_rng(0).normal(size=(4, predictor.width)).astype(np.float32)
    result = client.post("/predict?scores=true", json={"features": x.tolist()}).json()["predictions"]
    expected = predictor.predict(x)
    assert [p["answer"]["id"] for p in result] == expected.answers.ids
    np.testing.assert_allclose([p["scores"] for p in result], predictor.feature_outputs(x).numpy(), rtol=1e-5)
    bad = client.post("/predict", json={"features": [x[0].tolist(), [1.0], [1e300] * predictor.width]}).json()
    assert [("error" in p) for p in bad["predictions"]] == [False, True, True]
    assert f"rows of {predictor.width} finite numbers" in bad["predictions"][1]["error"]


def test_texts(folder: Path) -> None:
    pytest.importorskip("sklearn")
    predictor = Predictor.from_run(run_of(folder))
    with TestClient(make_app(predictor)) as client:
        assert client.get("/model").json()["kinds"] == ["texts", "features"]
        given = ["aged cheddar", "", "mild blue cream"]
        result = client.post("/predict?scores=true", json={"texts": given}).json()["predictions"]
        assert "1 to 20,000 letters" in result[1]["error"]
        expected = predictor.predict([given[0], given[2]]).answers.ids
        assert [result[0]["answer"]["id"], result[2]["answer"]["id"]] == expected
        assert client.post("/predict", **PHOTO).status_code == 422


def test_what_it_says_of_itself(client: Any, predictor: Predictor, demo: Any) -> None:
    model, tree = client.get("/model").json(), client.get("/hierarchy").json()
    h = predictor.hierarchy
    assert model["kinds"] == ["images", "features"]
    assert [p["threshold"] for p in model["guarantees"]] == [
        t.threshold for t in predictor.calibration.thresholds
    ]
    assert [node["id"] for node in tree["nodes"]] == list(h.nodes)
    assert [tree["nodes"][v]["id"] for v in tree["leaves"]] == list(h.leaves)
    assert client.get("/health").json() == {"status": "ok", "waiting": 0}
    samples = client.get("/samples").json()["samples"]
    assert len({s["truth"] for s in samples}) == len(samples) == 12
    assert Image.open(io.BytesIO(client.get("/samples/0").content)).size == (128, 128)
    assert client.get("/samples/12").status_code == 404
    assert [s.about["kind"] for s in run_samples(demo[0])] == ["features"] * 12
    for page in ("/", "/docs", "/try.js", "/try.css"):
        reply = client.get(page)
        assert reply.status_code == 200
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"(src|href)=[\"']?(https?:)?//", reply.text), "no external requests"


def test_guarantees_about_groups_are_not_the_pages(demo: Any) -> None:
    other = Predictor.from_run(demo[0])
    other.calibration = replace(other.calibration, pool="mean")
    about = model_document(other)
    assert (about["guarantees"], about["region"], about["weights"]) == ([], None, None)
    assert about["temperature"] == (other.temperature or 1.0)


def test_guarantees_with_a_prior_come_with_its_weights(demo: Any) -> None:
    other = Predictor.from_run(demo[0])
    other.calibration = replace(other.calibration, prior={"bird": 2.0})
    about = model_document(other)
    h = other.hierarchy
    assert len(about["guarantees"]) == len(other.calibration.thresholds)
    assert about["prior"] == {"bird": 2.0}
    assert about["weights"] == [2.0 if "bird" in h.path(node) else 1.0 for node in h.nodes]


def test_samples_from_a_folder_hide_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png())
    (sample,) = read_samples(tmp_path)
    assert (sample.name, sample.about["kind"]) == ("a.png", "images")


def test_samples_of_a_folder_are_of_all_its_classes(tmp_path: Path) -> None:
    for name in ("gull", "tern", "auk"):
        (tmp_path / name).mkdir()
        for i in range(20):
            (tmp_path / name / f"{name}-{i}.png").write_bytes(png())
    shown = [sample.name.split("-")[0] for sample in read_samples(tmp_path)]
    assert {name: shown.count(name) for name in shown} == {"auk": 4, "gull": 4, "tern": 4}


@pytest.mark.parametrize(
    ("status", "words", "query", "request_options"),
    [
        (422, "Input should be", "?top_k=0", {"json": {"features": [[1]]}}),
        (422, "one of features, images, texts", "", {"json": {}}),
        (422, "Extra inputs", "?colour=red", {"json": {"features": [[1]]}}),
        (422, "accuracy must be one that was calibrated", "?accuracy=0.123", PHOTO),
        (422, "level", "?level=kingdom", PHOTO),
        (422, "give one", "?level=1&threshold=0.5", PHOTO),
        (422, "base64", "", {"json": {"images": ["%%%"]}}),
        (422, "Invalid JSON", "", {"content": b"[" * 100_000, "headers": JSON}),
        (415, "multipart/form-data", "", {"content": b"x", "headers": {"Content-Type": "text/plain"}}),
        (413, "1 to 64 samples", "", {"json": {"images": [""] * 65}}),
        (413, "values. Got 100,000", "", {"json": {"features": [[0] * 100_000]}}),
        (413, "values. Got 100,000", "", {"json": {"features": [[]] * 100_000}}),
        (413, "at most 32 MB", "", {"content": b"x" * 33_000_000, "headers": {"Content-Type": "image/png"}}),
        (400, "", "", {"content": b"x", "headers": {"Content-Type": "multipart/form-data"}}),
        (405, "", "", {"method": "PUT"}),
    ],
)  # fmt: skip
def test_what_is_refused(client: Any, status: int, words: str, query: str, request_options: Any) -> None:
    reply = client.request(**{"method": "POST", "url": f"/predict{query}", **request_options})
    assert reply.status_code == status
    assert words in reply.text
    assert "Traceback" not in reply.text


def test_token_hosts_and_other_sites(predictor: Predictor) -> None:
    app = make_app(predictor, token="sesame", hosts=["127.0.0.1"])
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.get("/").status_code == client.get("/health").status_code == 200
        for headers in ({}, {"Authorization": "Bearer sesam"}, {"Authorization": "sesame"}):
            assert client.get("/model", headers=headers).status_code == 401
            assert client.post("/predict", headers=headers).status_code == 401
        assert client.get("/model", headers={"Authorization": "Bearer sesame"}).status_code == 200
        assert client.get("/", headers={"Host": "evil.example"}).status_code == 403
        assert client.get("/health", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
        assert (
            "access-control-allow-origin"
            not in client.get("/health", headers={"Origin": "https://a.b"}).headers
        )
    assert is_local("127.0.0.1")
    assert is_local("localhost")
    assert is_local("::1")
    assert not is_local("0.0.0.0")
    assert not is_local("example.org")


def test_concurrent_requests_share_batches_and_a_full_queue_says_so(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch, serve: Callable[[Any], str]
) -> None:
    import httpx

    sizes: list[int] = []
    gate = threading.Event()
    real = Predictor.feature_outputs

    def slow(self: Predictor, x: np.ndarray, first: int = 0) -> Any:
        sizes.append(len(x))
        gate.wait(20)
        return real(self, x, first)

    monkeypatch.setattr(Predictor, "feature_outputs", slow)
    address = serve(make_app(predictor, limits=Limits(waiting=8, batches=1)))
    rows = np.random.default_rng(0).normal(size=(30, predictor.width)).astype(np.float32)

    def ask(i: int) -> tuple[int, Any]:
        reply = httpx.post(f"{address}predict", json={"features": [rows[i].tolist()]}, timeout=60)
        return reply.status_code, reply.json()

    with ThreadPoolExecutor(30) as pool:
        first = pool.submit(ask, 0)
        while not sizes:
            time.sleep(0.01)
        rest = [pool.submit(ask, i) for i in range(1, 30)]
        while httpx.get(f"{address}health").json()["waiting"] < 8:
            time.sleep(0.01)
        while sum(f.done() for f in rest) < 21:  # eight wait, the others are told to come back
            time.sleep(0.01)
        gate.set()
        results = [first.result(), *(f.result() for f in rest)]
    assert sorted(code for code, _ in results) == [200] * 9 + [503] * 21
    assert sizes == [1, 8]
    expected = predictor.predict(rows).answers.ids
    for (code, reply), answer in zip(results, expected, strict=True):
        if code == 200:
            assert reply["predictions"][0]["answer"]["id"] == answer


def test_slow_clients_and_slow_models(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch, serve: Callable[[Any], str]
) -> None:
    import httpx

    address = serve(make_app(predictor, limits=Limits(seconds=1)))
    host, port = address.removeprefix("http://").strip("/").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as slow:
        slow.sendall(
            b"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: image/png\r\nContent-Length: 99\r\n\r\nx"
        )
        assert b" 408 " in slow.recv(4000)
    monkeypatch.setattr(Predictor, "feature_outputs", lambda *args: time.sleep(3))
    reply = httpx.post(f"{address}predict", json={"features": [[0.0] * predictor.width]}, timeout=30)
    assert (reply.status_code, reply.json()["detail"]) == (503, "The answer took too long.")


def rows_of(predictor: Predictor, count: int = 1) -> dict[str, Any]:
    x = np.random.default_rng(0).normal(size=(count, predictor.width)).astype(np.float32)
    return {"json": {"features": x.tolist()}}


def test_a_worker_survives_whatever_goes_wrong(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = Batcher.answers, []

    def too_few(self: Batcher, jobs: Any) -> list[Any]:
        calls.append(len(jobs))
        return [] if len(calls) == 1 else real(self, jobs)

    monkeypatch.setattr(Batcher, "answers", too_few)
    with TestClient(make_app(predictor, limits=Limits(batches=1)), raise_server_exceptions=False) as client:
        assert client.post("/predict", **rows_of(predictor)).status_code == 500
        assert client.get("/health").json()["status"] == "ok"
        assert client.post("/predict", **rows_of(predictor)).status_code == 200


def test_health_means_that_a_request_would_be_answered(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    batchers: list[Batcher] = []
    real = Batcher.start
    monkeypatch.setattr(Batcher, "start", lambda self: (batchers.append(self), real(self))[1])
    with TestClient(make_app(predictor)) as client:
        assert client.get("/health").status_code == 200
        for worker in batchers[0].workers:
            worker.get_loop().call_soon_threadsafe(worker.cancel)
        deadline = time.monotonic() + 30
        while client.get("/health").status_code == 200 and time.monotonic() < deadline:
            time.sleep(0.01)
        reply = client.get("/health")
        assert (reply.status_code, reply.json()["detail"]) == (503, "unavailable: no worker is running")


def test_half_sent_requests_shut_nobody_out(predictor: Predictor, serve: Callable[..., str]) -> None:
    import httpx

    limits = Limits(header_seconds=1)
    address = serve(make_app(predictor, limits=limits), limits)
    host, port = address.removeprefix("http://").strip("/").split(":")
    half_sent = [socket.create_connection((host, int(port)), timeout=60) for _ in range(300)]
    for connection in half_sent:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Ty")
    assert httpx.get(f"{address}health", timeout=60).json()["status"] == "ok"
    assert httpx.post(f"{address}predict", timeout=60, **rows_of(predictor)).status_code == 200
    for connection in half_sent:
        try:
            assert connection.recv(1000) == b""
        except ConnectionResetError:
            pass
        connection.close()


def test_bytes_in_flight_have_a_budget(predictor: Predictor) -> None:
    limits = Limits(megabytes_in_flight=0.1)
    with TestClient(make_app(predictor, limits=limits)) as client:
        for _ in range(3):  # what a request held is free again after it
            reply = client.post("/predict", content=b"x" * 200_000, headers={"Content-Type": "image/png"})
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
            assert client.post("/predict", **PHOTO).status_code == 200


def test_one_refused_upload_makes_room_for_the_others() -> None:
    """Nine at once where eight fit: each needs the room at the same moment, and must not be refused for the others."""
    size = 10
    limits = Limits(megabytes_in_flight=8 * size / 1e6)
    statuses: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await asyncio.sleep(0.1)  # what it holds while the model runs
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guard = Guard(app, limits, None)

    async def request() -> None:
        parts = [{"type": "http.request", "body": b"x", "more_body": i < size - 1} for i in range(size)]

        async def receive() -> Any:
            await asyncio.sleep(0)
            if parts:
                return parts.pop(0)
            await asyncio.sleep(60)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            statuses.append(message.get("status", 0))

        await guard({"type": "http", "path": "/predict", "headers": []}, receive, send)

    async def all_at_once() -> None:
        await asyncio.gather(*(request() for _ in range(9)))

    asyncio.run(all_at_once())
    assert sorted(status for status in statuses if status) == [200] * 8 + [503]
    assert guard.bytes_in_flight == 0


def test_an_aborted_upload_is_nobodys_error(
    predictor: Predictor, serve: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    import httpx

    address = serve(make_app(predictor))
    host, port = address.removeprefix("http://").strip("/").split(":")
    for _ in range(5):
        with socket.create_connection((host, int(port)), timeout=30) as aborted:
            head = (
                "POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: image/png\r\nContent-Length: 99\r\n\r\nx"
            )
            aborted.sendall(head.encode())
    assert httpx.post(f"{address}predict", timeout=60, **rows_of(predictor)).status_code == 200
    assert "Unexpected error" not in caplog.text


def test_one_overflowing_row_leaves_the_others_alone(predictor: Predictor) -> None:
    good = rows_of(predictor)["json"]["features"][0]
    huge = "[" + ",".join(["3e38"] * predictor.width) + "]"
    infinite = "[" + ",".join(["1e999"] * predictor.width) + "]"
    body = f'{{"features": [{json.dumps(good)}, {huge}, {infinite}, {json.dumps(good)}]}}'
    with TestClient(make_app(predictor)) as client:
        reply = client.post("/predict?scores=true", content=body, headers=JSON)
    assert reply.status_code == 200
    predictions = reply.json()["predictions"]
    assert ["error" in p for p in predictions] == [False, True, True, False]
    assert predictions[0]["scores"] == predictions[3]["scores"]


def test_pixels_are_counted_before_any_is_decoded(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hace.lab.serve.requests.read_image", lambda *a, **k: pytest.fail("decoded"))
    with TestClient(make_app(predictor, limits=Limits(megapixels=0.01))) as client:
        files = [("files", (f"{i}.png", png((60, 60)))) for i in range(3)]
        reply = client.post("/predict", files=files)
    assert reply.status_code == 413
    assert "million pixels together" in reply.json()["detail"]


def test_decoding_ends_with_the_request_it_was_for(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hace.lab.serve import requests

    read: list[str] = []
    real = requests.read_image

    def slow(name: str, **options: Any) -> Any:
        read.append(name)
        time.sleep(0.2)
        return real(name, **options)

    monkeypatch.setattr(requests, "read_image", slow)
    with TestClient(make_app(predictor, limits=Limits(seconds=1))) as client:
        files = [("files", (f"{i}.png", png())) for i in range(40)]
        assert client.post("/predict", files=files).status_code == 503
        time.sleep(1)
        assert len(read) < 20


def test_decoding_ends_when_the_client_goes_away(
    predictor: Predictor, serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx

    from hace.lab.serve import requests

    read: list[str] = []
    first, gate = threading.Event(), threading.Event()
    real = requests.read_image

    def held(name: str, **options: Any) -> Any:
        read.append(name)
        first.set()
        gate.wait(30)
        return real(name, **options)

    monkeypatch.setattr(requests, "read_image", held)
    address = serve(make_app(predictor))
    host, port = address.removeprefix("http://").strip("/").split(":")
    asked = httpx.Request(
        "POST", f"{address}predict", files=[("files", (f"{i}.png", png())) for i in range(40)]
    )
    head = "".join(f"{name}: {value}\r\n" for name, value in asked.headers.items())
    with socket.create_connection((host, int(port)), timeout=30) as given_up:
        given_up.sendall(f"POST /predict HTTP/1.1\r\n{head}\r\n".encode() + asked.read())
        assert first.wait(30)
    time.sleep(0.5)  # the server notices
    gate.set()
    assert httpx.post(f"{address}predict", timeout=60, **PHOTO).status_code == 200
    time.sleep(0.5)
    assert len(read) < 10


def test_a_small_request_does_not_wait_for_large_ones(
    predictor: Predictor, serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx

    from hace.lab.serve import requests

    read: list[str] = []
    real = requests.read_image

    def slow(name: str, **options: Any) -> Any:
        read.append(name)
        time.sleep(0.05)
        return real(name, **options)

    monkeypatch.setattr(requests, "read_image", slow)
    address = serve(make_app(predictor))
    large = [("files", (f"large {i}.png", png())) for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        replies = [pool.submit(httpx.post, f"{address}predict", files=large, timeout=120) for _ in range(8)]
        while len(read) < 16:
            time.sleep(0.01)
        assert httpx.post(f"{address}predict", timeout=120, **PHOTO).status_code == 200
        assert read.index("photo") < 200  # of 320
        assert {reply.result().status_code for reply in replies} == {200}


def test_samples_that_wait_have_a_budget(predictor: Predictor) -> None:
    with TestClient(make_app(predictor, limits=Limits(samples_waiting=3))) as client:
        for _ in range(2):  # what a request held is free again after it
            reply = client.post("/predict", **rows_of(predictor, 4))
            assert (reply.status_code, reply.json()["detail"]) == (503, "Too many samples wait. Try again.")
            assert client.post("/predict", **rows_of(predictor, 3)).status_code == 200


@pytest.mark.parametrize(
    ("header", "name"),
    [("LOCALHOST", "localhost"), ("localhost:8000", "localhost"), ("[::1]", "[::1]"), ("[::1]:80", "[::1]"), ("a:b:c", "")],
)  # fmt: skip
def test_names_of_hosts(header: str, name: str, predictor: Predictor) -> None:
    assert host_name(header) == name
    app = make_app(predictor, hosts=["localhost", "[::1]"])
    with TestClient(app) as client:
        assert client.get("/health", headers={"Host": header}).status_code == (200 if name else 403)


def test_one_bad_request_of_a_batch_fails_alone(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from hace.lab.serve.batching import Batcher, Job
    from hace.lab.serve.predictor import Question

    real = Predictor.feature_outputs

    def fails(self: Predictor, x: np.ndarray, first: int = 0) -> Any:
        if (x == 7).any():
            raise RuntimeError("a bug")
        return real(self, x, first)

    monkeypatch.setattr(Predictor, "feature_outputs", fails)

    async def answers() -> list[Any]:
        rows = [torch.full((predictor.width,), value) for value in (0.0, 7.0, 1.0)]
        jobs = [Job("features", ["a"], [row], Question(), False) for row in rows]
        return Batcher(predictor, Limits()).answers(jobs)

    good, bad, other = asyncio.run(answers())
    assert isinstance(bad, RuntimeError)
    assert good[0]["sample"] == other[0]["sample"] == "a"


def started(run: Path, port: int) -> subprocess.Popen[str]:
    """`hace serve`, as people start it."""
    command = [sys.executable, "-m", "hace", "serve", str(run), "--no-open", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    with process.stdout as printed:
        assert [printed.readline(), printed.readline()][0].startswith("http://127.0.0.1")
    return process


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_stopped_and_restarted_under_load_no_answer_is_lost_in_silence(
    demo: Any, predictor: Predictor, how: str
) -> None:
    """A request that was accepted gets its whole answer or an error; asked to stop, the server answers all that wait."""
    import httpx

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    rows = np.random.default_rng(0).normal(size=(40, predictor.width)).astype(np.float32)
    expected, address = predictor.predict(rows).answers.ids, f"http://127.0.0.1:{port}"
    body = {"images": [base64.b64encode(png((300, 300), i)).decode() for i in range(16)]}

    def ask(i: int) -> bool | None:
        """Whether the answer is right; None: the client is told that there is none."""
        try:
            asked = {"json": {"features": [rows[i].tolist()]}} if i % 2 else {"json": body}
            reply = httpx.post(f"{address}/predict", timeout=120, **asked)
        except httpx.TransportError:
            return None
        assert reply.status_code in (200, 503)
        result = reply.json()["predictions"] if reply.status_code == 200 else []
        ids = [prediction["answer"]["id"] for prediction in result]
        return None if not ids else ids == [expected[i]] if i % 2 else len(ids) == 16

    process = started(demo[0], port)
    try:
        with ThreadPoolExecutor(40) as pool:
            answers = [pool.submit(ask, i) for i in range(40)]
            wait(answers, return_when=FIRST_COMPLETED)
            done = sum(answer.done() for answer in answers)
            waiting = httpx.get(f"{address}/health", timeout=60).json()["waiting"]
            process.send_signal(signal.Signals[how])
            process.wait(60)
            process = started(demo[0], port)
            result = [answer.result() for answer in answers]
            assert all(pool.map(ask, range(4)))  # it is back
    finally:
        process.kill()
        process.wait(20)
    assert False not in result
    if how == "SIGTERM":
        assert result.count(True) >= done + waiting


def hostile(rng: random.Random, width: int) -> dict[str, Any]:
    """A bad request: broken images, bombs, wrong types, odd paths and headers."""
    picture = bytearray(png(seed=rng.randrange(5), form=rng.choice(["PNG", "JPEG", "GIF", "BMP", "WEBP"])))
    for _ in range(rng.randrange(1, 8)):
        picture[rng.randrange(len(picture))] = rng.randrange(256)
    bomb = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes([0, 1, 0x86, 0xA0] * 2) + b"\x08\x02\0\0\0" + bytes(40)
    value = rng.choice(
        [None, "x", -1, 1e308, [], {}, [[]], [["x"]], [[1e39] * width], [[0.0] * width] * 70, True]
    )
    bodies: list[dict[str, Any]] = [
        {"content": bytes(picture), "headers": {"Content-Type": "image/png"}},
        {"content": bytes(picture[: rng.randrange(len(picture))]), "headers": {"Content-Type": "image/*"}},
        {"content": bomb, "headers": {"Content-Type": "image/png"}},
        {"files": [("files", (rng.choice(["../../etc/passwd", "a" * 5000, "\u202e.png", ""]), bytes(picture)))]},
        {"json": {rng.choice(["features", "images", "texts", ""]): value}},
        {"content": json.dumps({"features": value})[: rng.randrange(30)].encode(), "headers": JSON},
        {"content": bytes(rng.randrange(256) for _ in range(300)), "headers": JSON},
        {"content": bytes(picture), "headers": {"Content-Type": "multipart/form-data; boundary=" + "x" * rng.randrange(90)}},
    ]  # fmt: skip
    paths = ["/predict"] * 12 + [
        "/samples/99999999999999999999",
        "/samples/..%2f..%2fpyproject.toml",
        "/%00",
        "/try.py",
    ]
    query = rng.choice(
        [
            "",
            "?top_k=-1",
            "?threshold=nan",
            "?level=%00",
            "?subset=" + "a" * 900,
            "?accuracy=1e-400",
            "?scores=maybe",
        ]
    )
    return {
        "method": rng.choice(["POST"] * 9 + ["GET", "PUT", "BREW"]),
        "url": rng.choice(paths) + query,
    } | rng.choice(bodies)


@pytest.mark.parametrize("count", [120, pytest.param(2000, marks=pytest.mark.long)])
def test_bad_requests_get_a_short_reason(client: Any, predictor: Predictor, count: int) -> None:
    rng = random.Random(count)
    for _ in range(count):
        reply = client.request(**hostile(rng, predictor.width))
        assert reply.status_code < 500, reply.text
        assert "Traceback" not in reply.text
        assert "/tmp" not in reply.text
    good = client.post("/predict", **PHOTO)
    assert good.json()["predictions"][0]["answer"]["id"]


@pytest.mark.slow
def test_schemathesis_finds_nothing(predictor: Predictor, demo: Any, serve: Callable[[Any], str]) -> None:
    """Requests made from the OpenAPI document: every reply is one that the document describes."""
    program = shutil.which("schemathesis", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("needs schemathesis: pip install schemathesis")
    address = serve(make_app(predictor, samples=demo[1]))
    command = [program, "run", f"{address}openapi.json", "--max-examples", "15", "--seed", "0", "--no-color"]
    command += [
        "--exclude-checks",
        "positive_data_acceptance",
    ]  # which levels and classes there are is the model's
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-6000:]


def test_the_command_refuses_what_it_cannot_serve(tmp_path: Path, capsys: Any, demo: Any) -> None:
    assert cli.main(["serve"]) == 2
    assert "must have a RUN, or --demo" in capsys.readouterr().err
    assert cli.main(["serve", "x", "--port", "70000"]) == 2
    assert "--port must be from 0 to 65535" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert cli.main(["serve", str(demo[0]), "--no-open", "--port", port]) == 2
    assert "must be free to listen on" in capsys.readouterr().err
    assert cli.main(["export", str(demo[0]), "--page", str(tmp_path / "p"), "--runtime", str(tmp_path)]) == 2
    assert "--runtime must be a folder with ort.wasm.bundle.min.mjs" in capsys.readouterr().err


def test_a_hierarchy_with_two_parents_and_names() -> None:
    from hace import Hierarchy

    h = Hierarchy.from_edges([("a", "x"), ("b", "x"), ("a", "y")], names={"x": "Ex"})
    document = hierarchy_document(h)
    by_id = {node["id"]: node for node in document["nodes"]}
    parents = [document["nodes"][p]["id"] for p in by_id["x"]["parents"]]
    assert (sorted(parents), by_id["x"]["names"]) == (["a", "b"], {"ids": "x"})
