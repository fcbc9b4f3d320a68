"""The page of `hace serve` in a real browser, and the same page as static files, opened from the disk."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")
from PIL import Image

import hace.lab.serve.page as page_module
from hace import ConfigError, Hierarchy, Predictor
from hace.lab.serve.page import Sample, export_page, hierarchy_document
from hace.lab.serve.server import make_app
from tests.lab.report.conftest import USABLE, serious_barriers, soon


def opened(browser: Any, address: str, *, offline: bool = False) -> None:
    browser.execute_cdp_cmd("Network.enable", {})
    network = {"offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", network)
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    browser.set_window_size(1280, 900)
    browser.get("about:blank")
    browser.get_log("browser")  # what other tests left there
    browser.get(address)
    soon(browser, lambda: browser.execute_script("return document.body.dataset.ready === 'yes'"))


def text(browser: Any, name: str) -> str:
    return browser.execute_script(f"return document.getElementById('{name}').textContent")


def slide(browser: Any, value: int) -> None:
    browser.execute_script(
        "const s = document.getElementById('sure'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))",
        value,
    )


def photo(path: Path, seed: int = 0, size: tuple[int, int] = (90, 61), **options: Any) -> Path:
    """A photo of smooth colours."""
    coarse = np.random.default_rng(seed).integers(0, 255, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path, **options)
    return path


@pytest.fixture
def shown(
    browser: Any, predictor: Predictor, demo: tuple[Path, list[Sample]], serve: Callable[[Any], str]
) -> Any:
    opened(browser, serve(make_app(predictor, samples=demo[1], title="Try the demo")))
    return browser


@pytest.mark.slow
def test_a_photo_gives_the_commands_answer_at_every_certainty(
    shown: Any, predictor: Predictor, tmp_path: Path
) -> None:
    path = photo(tmp_path / "a.png")
    shown.find_element("id", "files").send_keys(str(path))
    soon(shown, lambda: bool(text(shown, "said")))
    h = predictor.hierarchy
    answers = []
    for accuracy in (0.8, 0.9, 0.95, 0.99):
        slide(shown, round(100 * accuracy))
        predictions = predictor.predict([path], accuracy=accuracy)
        (node,) = predictions.answers.ids
        assert shown.execute_script("return page.tree.nodes[decided(page.items[0]).v]?.id ?? null") == node
        at = "[...document.querySelectorAll('#path li b')].map((b) => b.textContent)"
        assert shown.execute_script(f"return {at}") == ([h.name(node)] if node is not None else [])
        assert text(shown, "guarantee") == predictions.guarantee.guarantee  # type: ignore[union-attr]
        best = shown.execute_script(
            "return [...document.querySelectorAll('#best li')].map((e) => e.children[1].textContent)"
        )
        assert best == list(predictions.leaves.names[0])[: len(best)]
        answers.append(node)
    slide(shown, 91)  # between two guarantees the stricter one holds
    assert "At most 5% of all samples" in text(shown, "guarantee")
    assert shown.get_log("browser") == []


def test_several_photos_make_a_table_and_a_csv(shown: Any, tmp_path: Path) -> None:
    names = [photo(tmp_path / f"{i}.png", i) for i in range(3)]
    (tmp_path / "=broken.png").write_bytes(b"not a picture")
    files = "\n".join(str(p) for p in [*names, tmp_path / "=broken.png"])
    shown.find_element("id", "files").send_keys(files)
    soon(shown, lambda: "1 of 4 could not be read" in text(shown, "status"))
    assert shown.execute_script("return document.querySelectorAll('#rows tr').length") == 4
    rows = shown.execute_script("return csv()").splitlines()
    assert rows[0].startswith("sample,answer,answer_name,answer_level,answer_probability")
    assert rows[4].startswith("'=broken.png,,,,,,")
    shown.execute_script("document.querySelectorAll('#rows button')[2].click()")
    assert shown.execute_script("return page.chosen") == 2


def test_samples_regions_and_rows_of_features(shown: Any, predictor: Predictor, demo: Any) -> None:
    shown.execute_script("document.querySelectorAll('.samples button')[3].click()")
    soon(shown, lambda: bool(text(shown, "said")))
    shown.execute_script(
        "const r = document.getElementById('region'); r.value = 'owl\\nHERON\\nunicorn'; r.dispatchEvent(new Event('input'))"
    )
    assert "7 of 65 classes. Unknown: unicorn." in text(shown, "regionSaid")
    assert "No guarantee" in text(shown, "guarantee")
    picture = Image.open(io.BytesIO(demo[1][3].content))
    command = predictor.predict([picture], threshold=0.9, subset=["owl", "heron"]).answers
    said = "const { v, probability } = decided(page.items[0]); return [page.tree.nodes[v].id, probability]"
    assert shown.execute_script(said) == [
        command.ids[0],
        pytest.approx(command.probabilities.item(), abs=1e-5),
    ]
    region = predictor.hierarchy.descendants("bird")
    best = shown.execute_script(
        "return [...document.querySelectorAll('#best li')].map((e) => e.children[1].textContent)"
    )
    assert set(best) <= set(region)
    shown.execute_script(
        "const r = document.getElementById('region'); r.value = ''; r.dispatchEvent(new Event('input'))"
    )
    x = np.random.default_rng(0).normal(size=(2, predictor.width)).astype(np.float32)
    lines = "\n".join("name " + " ".join(map(str, row)) for row in x)
    shown.execute_script(
        "document.getElementById('values').value = arguments[0]; document.querySelector('#typed form').requestSubmit()",
        lines,
    )
    soon(
        shown,
        lambda: shown.execute_script("return page.items.length === 2 && page.items.every((i) => i.scores)"),
    )
    slide(shown, 95)
    result = shown.execute_script("return page.items.map((i) => page.tree.nodes[decided(i).v]?.id ?? null)")
    assert result == predictor.predict(x, accuracy=0.95).answers.ids
    shown.execute_script(
        "document.getElementById('values').value = '1 2 3'; document.querySelector('#typed form').requestSubmit()"
    )
    assert f"Line 1 must be {predictor.width} numbers. Got 3." in text(shown, "status")


def missed_by_tab(browser: Any) -> list[str]:
    """What can be used and the Tab key does not reach. Keys go to the page: a file input would take them for a path."""
    from selenium.webdriver import ActionChains, Keys

    usable = f'[...document.querySelectorAll("{USABLE}")].filter((e) => e.checkVisibility() && !e.disabled)'
    wanted = browser.execute_script(
        "window.reached = new Set(); document.addEventListener('focusin', (e) => window.reached.add(e.target));"
        f"return {usable}.length"
    )
    assert wanted > 15
    for _ in range(wanted + 5):
        ActionChains(browser).send_keys(Keys.TAB).perform()
    return browser.execute_script(
        f"return {usable}.filter((e) => !window.reached.has(e)).map((e) => e.outerHTML.slice(0, 90))"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everybody_can_use_it(shown: Any, scheme: str) -> None:
    shown.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    shown.execute_script("document.querySelectorAll('.samples button')[1].click()")
    soon(shown, lambda: bool(text(shown, "said")))
    assert serious_barriers(shown) == []
    if scheme == "light":
        assert missed_by_tab(shown) == []
    size = {"width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": True}
    shown.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    assert shown.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    tops = "['said', 'drop'].map((id) => document.getElementById(id).getBoundingClientRect().top)"
    said, drop = shown.execute_script(f"return {tops}")
    assert said < drop  # on a phone the answer comes first
    slider = "const r = document.getElementById('sure').getBoundingClientRect(); return r.top > 0 && r.bottom <= innerHeight"
    assert shown.execute_script(slider)  # in sight of the answer that it moves
    addresses = shown.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert all(a.startswith(("http://127.0.0.1", "blob:", "data:")) for a in addresses)


def test_the_sentence_of_every_rank(shown: Any) -> None:
    paths = [
        ("Laridae", "Larus", "Larus argentatus"),
        ("Laridae", "Larus", "Larus canus"),
        ("Apidae", "Apis", "Apis mellifera"),
    ]
    ranked = Hierarchy.from_paths(paths, level_names=["family", "genus", "species"])
    plain = Hierarchy.from_edges([("root", "dog"), ("root", "cat"), ("dog", "husky"), ("dog", "beagle")])
    said = {}
    for name, h in (("ranked", ranked), ("plain", plain)):
        sentences = shown.execute_script(
            "const t = new Tree(arguments[0]); return [-1, ...t.nodes.keys()].map((v) => t.sentence(v))",
            hierarchy_document(h),
        )
        said[name] = dict(zip([None, *h.nodes], sentences, strict=True))
    leaf = {node.rpartition("/")[2]: sentence for node, sentence in said["ranked"].items() if node}
    assert leaf["Laridae"] == "Laridae, a family: not sure which species."
    assert leaf["Larus"] == "Larus, a genus in the family Laridae: not sure which species."
    assert leaf["Larus argentatus"] == "Larus argentatus, a species in the genus Larus."
    assert leaf["Apis"] == "Apis, a genus in the family Apidae."  # it has one class
    assert said["plain"] == {
        None: "Not sure enough to say anything.",
        "root": "Not sure enough to say anything.",
        "dog": "Dog: not sure which of its 2 classes.",
        "husky": "Husky, in the group dog.",
        "beagle": "Beagle, in the group dog.",
        "cat": "Cat.",
    }


@pytest.mark.parametrize(
    ("names", "rank", "above", "expected"),
    [
        (("Aves", "n01"), "Order", "class", "n01, an order in the class Aves."),
        (("Aves", "Gulls sp."), "", "", "Gulls sp., in the group Aves."),
        (("Aves", "x"), "unit", "no rank", "x, a unit in the group Aves."),
        (("Aves", "kea"), "Sub_Species", "unranked", "Kea, a sub species in the group Aves."),
        (("Phones", "iPhone"), "", "ATC code", "iPhone, in the ATC code Phones."),
        (("honey bee", "wasp"), "animal", "family", "Wasp, an animal in the family honey bee."),
        (("root", "élan"), "infraorder", "kingdom", "Élan, an infraorder in the kingdom root."),
    ],
)
def test_articles_ranks_and_capitals(
    shown: Any, names: tuple[str, str], rank: str, above: str, expected: str
) -> None:
    nodes = [
        {"id": "a", "name": names[0], "parents": [], "level": 1, "rank": above},
        {"id": "b", "name": names[1], "parents": [0], "level": 2, "rank": rank},
        {"id": "c", "name": "other", "parents": [0], "level": 2, "rank": ""},
    ]
    document = {"rooted": False, "level_names": None, "nodes": nodes, "leaves": [1, 2]}
    assert shown.execute_script("return new Tree(arguments[0]).sentence(1)", document) == expected
    ranked = shown.execute_script("return new Tree(arguments[0]).sentence(0)", document)
    assert ranked.endswith(": not sure which of its 2 classes.")  # they share no rank


def test_the_rules_of_python_and_of_the_page_agree(shown: Any) -> None:
    """Trees, forests and DAGs, scores over leaves and over nodes, both rules, some classes left out."""
    import torch

    from hace import predict

    graphs = [
        Hierarchy.from_edges(
            [("r", "a"), ("r", "b"), ("a", "x"), ("a", "y"), ("b", "z"), ("b", "w"), ("x", "p"), ("x", "q")]
        ),
        Hierarchy.from_edges([("a", "x"), ("a", "y"), ("b", "z"), ("b", "w")]),
        Hierarchy.from_edges([("a", "x"), ("b", "x"), ("a", "y"), ("b", "z"), ("r", "a"), ("r", "b")]),
    ]
    rng = np.random.default_rng(0)
    script = (
        "const t = new Tree(arguments[0]); return arguments[1].map((s) => {"
        "const { nodes, leaves } = t.probabilities(s, arguments[2], 1, arguments[5] && new Set(arguments[5]));"
        "const v = t.answer(nodes, leaves, arguments[3], arguments[4]); return [v, v < 0 ? 1 : nodes[v]]; })"
    )
    for h in graphs:
        for outputs in ("leaves", "nodes"):
            z = rng.normal(size=(20, h.num_leaves if outputs == "leaves" else h.num_nodes)) * 2
            for rule in ("threshold", "climb") if h.is_tree else ("threshold",):
                for threshold in (0.3, 0.6, 0.9):
                    for subset in (None, list(h.leaves[:3])):
                        keep = None if subset is None else [h.index(leaf) for leaf in subset]
                        result = shown.execute_script(
                            script, hierarchy_document(h), z.tolist(), outputs, threshold, rule, keep
                        )
                        expected = predict(
                            torch.tensor(z), h, rule=rule, threshold=threshold, outputs=outputs, subset=subset
                        )
                        assert [v for v, _ in result] == expected.nodes.tolist()
                        np.testing.assert_allclose([p for _, p in result], expected.probabilities, atol=1e-6)


def test_sets_of_nodes_are_those_of_python(shown: Any) -> None:
    import torch

    from hace import predict

    script = (
        "const t = new Tree(arguments[0]); return arguments[1].map((s) => "
        "t.set(t.probabilities(s, arguments[2], 1, null).nodes, arguments[3], arguments[4]))"
    )
    rng = np.random.default_rng(1)
    for root in ([("r", "a"), ("r", "b")], []):
        h = Hierarchy.from_edges(
            [
                *root,
                ("a", "x"),
                ("a", "y"),
                ("b", "z"),
                ("b", "w"),
                ("b", "v"),
                ("x", "p"),
                ("x", "q"),
                ("w", "o"),
            ]
        )
        for outputs in ("leaves", "nodes"):
            z = rng.normal(size=(12, h.num_leaves if outputs == "leaves" else h.num_nodes)) * 1.5
            for count, threshold in ((1, 0.5), (2, 0.7), (3, 0.9)):
                result = shown.execute_script(
                    script, hierarchy_document(h), z.tolist(), outputs, count, threshold
                )
                expected = predict(
                    torch.tensor(z), h, "set", nodes=count, threshold=threshold, outputs=outputs
                )
                for nodes, slow in zip(result, expected.nodes.tolist(), strict=True):
                    assert set(nodes) == {v for v in slow if v > (0 if h.rooted else -1)}


def test_guarantees_about_a_region_hold_for_this_region_alone(
    browser: Any, demo: tuple[Path, list[Sample]], serve: Callable[[Any], str]
) -> None:
    other = Predictor.from_run(demo[0])
    other.calibration = replace(other.calibration, subset=("owl", "heron"))
    opened(browser, serve(make_app(other, samples=demo[1])))
    slide(browser, 90)
    guarantee = other.calibration.threshold_for(0.9).guarantee
    assert "7 of 65 classes" in text(browser, "regionSaid")
    assert text(browser, "guarantee") == guarantee
    enter = "const r = document.getElementById('region'); r.value = arguments[0]; r.dispatchEvent(new Event('input'))"
    for lines, said in (
        ("owl", "No guarantee: it would be about answers among the classes of the calibration."),
        ("", "No guarantee: it would be about answers among the classes of the calibration."),
        ("heron\nowl", guarantee),
    ):
        browser.execute_script(enter, lines)
        assert text(browser, "guarantee").startswith(said)


def test_a_prior_of_the_calibration_weighs_classes_on_the_page_and_in_the_api(
    browser: Any, demo: tuple[Path, list[Sample]], serve: Callable[[Any], str], tmp_path: Path
) -> None:
    path = photo(tmp_path / "a.png")
    other = Predictor.from_run(demo[0])
    plain = other.predict([path]).leaves.ids[0]
    prior = {plain[0]: 1e-6}
    other.calibration = replace(other.calibration, prior=prior)
    address = serve(make_app(other, samples=demo[1]))
    opened(browser, address)
    browser.find_element("id", "files").send_keys(str(path))
    soon(browser, lambda: bool(text(browser, "said")))
    slide(browser, 90)
    assert text(browser, "guarantee") == other.calibration.threshold_for(0.9).guarantee
    assert "weighted by how common they are here" in text(browser, "note")
    expected = other.predict([path], accuracy=0.9, prior=prior)
    best = (
        "const { leaves } = decided(page.items[0]), best = leaves.indexOf(Math.max(...leaves)); "
        "return page.tree.nodes[page.tree.leaves[best]].id"
    )
    assert browser.execute_script(best) == expected.leaves.ids[0][0] == plain[1]
    assert (
        browser.execute_script("return page.tree.nodes[decided(page.items[0]).v]?.id ?? null")
        == expected.answers.ids[0]
    )
    reply = browser.execute_async_script(
        "const done = arguments[0]; page.items[0].file.arrayBuffer().then((body) => fetch('predict?accuracy=0.9', "
        "{method: 'POST', headers: {'Content-Type': 'image/png'}, body})).then((r) => r.json()).then(done)"
    )
    (document,) = reply["predictions"]
    assert document["answer"]["id"] == expected.answers.ids[0]


def test_the_token_is_in_the_part_of_the_address_that_stays_in_the_browser(
    browser: Any, predictor: Predictor, serve: Callable[[Any], str]
) -> None:
    address = serve(make_app(predictor, token="sesame"))
    opened(browser, f"{address}#token=sesame")
    browser.get("about:blank")
    browser.get(address)
    soon(browser, lambda: "token is missing or wrong" in text(browser, "about"))


@pytest.mark.slow
def test_a_page_without_a_server_computes_what_the_command_computes(
    browser: Any, demo: tuple[Path, list[Sample]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the disk, without a network, to 1e-4: photos of several sizes and formats.

    Tall photos are left out: Pillow 13 resamples them down, then across, earlier releases the other way, as the page does.
    """
    pytest.importorskip("onnxscript")
    try:
        runtime = page_module.runtime_files()
    except ConfigError as error:
        pytest.skip(f"ONNX Runtime Web cannot be fetched here: {error}")
    monkeypatch.setattr(page_module, "runtime_files", lambda folder: runtime)
    photos = [
        photo(tmp_path / "a.png", 1),
        photo(tmp_path / "b.png", 2, (1000, 300)),
        photo(tmp_path / "c.jpg", 3, (640, 427), quality=90),
        photo(tmp_path / "d.webp", 4, (33, 32), lossless=True),
        photo(tmp_path / "e.png", 5, (17, 9)),
    ]
    page = export_page(demo[0], tmp_path / "page", samples=tmp_path / "a.png")
    opened(browser, page.as_uri(), offline=True)
    browser.find_element("id", "files").send_keys("\n".join(map(str, photos)))
    soon(
        browser,
        lambda: browser.execute_script("return page.items.length === 5 && page.items.every((i) => i.scores)"),
    )
    slide(browser, 90)
    result = browser.execute_script("return page.items.map((i) => [...decided(i).nodes])")
    predictor = Predictor.from_run(demo[0])
    for path, nodes in zip(photos, result, strict=True):
        z = predictor.vision.outputs(predictor.vision.transform(Image.open(path).convert("RGB"))[None])
        expected = predictor.loss.node_log_probs(z / predictor.calibration.temperature).exp()[0]
        np.testing.assert_allclose(nodes, expected, atol=1e-4, err_msg=path.name)
    expected_ids = predictor.predict(photos, accuracy=0.9).answers.ids
    assert (
        browser.execute_script("return page.items.map((i) => page.tree.nodes[decided(i).v]?.id ?? null)")
        == expected_ids
    )
    assert browser.get_log("browser") == []


@pytest.mark.slow
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "lanczos", "box", "hamming"])
def test_photos_are_resized_as_pillow_does(shown: Any, interpolation: str) -> None:
    rng = np.random.default_rng(0)
    for size, new in (((50, 40), (33, 26)), ((20, 31), (64, 99)), ((200, 7), (142, 5))):
        image = Image.fromarray(rng.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8))
        expected = np.asarray(image.resize(new, Image.Resampling[interpolation.upper()])).reshape(-1)
        result = shown.execute_script(
            "return [...resized(Uint8Array.from(arguments[0]), ...arguments[1], ...arguments[2], arguments[3])]",
            np.asarray(image).reshape(-1).tolist(), size, new, interpolation,
        )  # fmt: skip
        assert np.array_equal(result, expected)
