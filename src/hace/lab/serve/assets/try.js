"use strict";
// One page, two engines: a server of `hace serve`, or ONNX Runtime Web in an exported page. Either gives the scores of a sample; all
// that follows (temperature, region, answer, sentence) happens here, so that the slider moves answers at once.

const $ = (id) => document.getElementById(id);
const percent = (p) => (p > 0.995 && p < 1 ? ">99%" : p > 0 && p < 0.005 ? "<1%" : `${Math.round(100 * p)}%`);
const CHUNK = 16; // photos per request

// ---------------------------------------------------------------- the hierarchy and its decisions

class Tree {
  // document: of GET /hierarchy
  constructor(document) {
    this.nodes = document.nodes;
    this.levelNames = document.level_names;
    this.rooted = document.rooted;
    this.children = this.nodes.map(() => []);
    this.tops = [];
    this.nodes.forEach((node, v) => {
      if (node.parents.length) node.parents.forEach((p) => this.children[p].push(v));
      else this.tops.push(v);
    });
    // Parents come before children, so the ancestors of a node's parents are known.
    this.above = [];
    this.nodes.forEach((node, v) => {
      const all = new Set([v]);
      node.parents.forEach((p) => this.above[p].forEach((a) => all.add(a)));
      this.above.push([...all]);
    });
    this.leaves = document.leaves; // node of each label
    this.below = this.children.map((c) => c.length);
    const leafSets = this.nodes.map(() => 0);
    this.leaves.forEach((v) => this.above[v].forEach((a) => leafSets[a]++));
    this.classes = leafSets;
  }

  // Probabilities of nodes and of leaves from scores over "leaves" or "nodes". keep: a set of leaf nodes, or null for all;
  // weights: of each node, how much likelier it is here than in training, or null.
  probabilities(scores, outputs, temperature, keep, weights) {
    const allowed = keep && new Set([...keep].flatMap((v) => this.above[v]));
    const node = (column) => (outputs === "leaves" ? this.leaves[column] : column);
    const prior = (v) => (weights ? Math.log(weights[v]) : 0);
    const z = scores.map((s, c) => (allowed && !allowed.has(node(c)) ? -Infinity : s / temperature + prior(node(c))));
    const p = softmax(z);
    const nodes = new Float64Array(this.nodes.length);
    p.forEach((mass, c) => this.above[node(c)].forEach((a) => (nodes[a] += mass)));
    const leaves = outputs === "leaves" ? p : softmax(this.leaves.map((v) => z[v]));
    return { nodes, leaves };
  }

  // From the top, always to the child of greatest mass: [node, ...], without a virtual root.
  walk(q) {
    let next = this.tops;
    const path = [];
    while (next.length) {
      const best = next.reduce((a, b) => (q[b] > q[a] ? b : a));
      path.push(best);
      next = this.children[best];
    }
    return path;
  }

  // From the top down to the most probable leaf.
  toBestLeaf(leaves) {
    let v = this.leaves[leaves.reduce((best, p, i) => (p > leaves[best] ? i : best), 0)];
    const path = [v];
    while (this.nodes[v].parents.length) path.unshift((v = this.nodes[v].parents[0]));
    return path;
  }

  // The answer: a node, or -1. A threshold above 1 answers nothing.
  answer(q, leaves, threshold, rule) {
    const nothing = this.rooted ? this.tops[0] : -1;
    const path = rule === "climb" ? this.toBestLeaf(leaves) : this.walk(q);
    const passes = (v) => (this.rooted && v === nothing) || q[v] >= threshold;
    if (threshold > 1) return nothing;
    if (rule === "climb") return [...path].reverse().find(passes) ?? nothing;
    let at = nothing;
    for (const v of path) {
      if (!passes(v)) break;
      at = v;
    }
    return at;
  }

  // At most `count` nodes with the fewest classes below whose mass is at least a threshold; [] where none but the root has it.
  // best[k][s]: the greatest mass of at most k nodes with s classes in all, and these nodes; trees only.
  set(q, count, threshold) {
    const empty = () => Array.from({ length: count + 1 }, () => [{ mass: 0, nodes: [] }]);
    const joined = (one, other) => {
      const found = empty();
      for (let k = 0; k <= count; k++)
        for (let taken = 0; taken <= k; taken++)
          one[k - taken].forEach((a, i) => a && other[taken].forEach((b, j) => {
            const mass = a.mass + b.mass, known = found[k][i + j];
            if (b && (!known || mass > known.mass)) found[k][i + j] = { mass, nodes: [...a.nodes, ...b.nodes] };
          }));
      return found;
    };
    const best = (v) => {
      const found = this.children[v].map(best).reduce(joined, empty()), all = this.classes[v];
      for (let k = 1; k <= count; k++) {
        const known = found[k][all], several = known && known.nodes.length > 1;
        if (!known || (several ? q[v] >= known.mass * (1 - 1e-12) : q[v] > known.mass * (1 + 1e-12)))
          found[k][all] = { mass: q[v], nodes: [v] };
      }
      return found;
    };
    const found = this.tops.map(best).reduce(joined, empty())[count];
    const passing = found.slice(1, this.leaves.length).find((set) => set && set.mass >= threshold);
    return passing ? passing.nodes.sort((a, b) => q[b] - q[a]) : [];
  }

  name(v, language) {
    const node = this.nodes[v];
    return (language && node.names && node.names[language]) || node.name;
  }

  // "species", or "" where it is not known. "Sub_Family" is read as "sub family"; "ATC code" stays.
  rank(v) {
    const own = this.nodes[v].rank || (this.levelNames && this.levelNames[this.nodes[v].level - 1]) || "";
    const told = own.replaceAll("_", " ").trim();
    return /^(no rank|unranked|)$/i.test(told) ? "" : told.replace(/\b\p{Lu}(?=\p{Ll}+)/gu, (c) => c.toLowerCase());
  }

  // What is above it, in words: " in the family Laridae"; on a graph, all of them.
  inside(v, language) {
    const root = this.rooted ? this.tops[0] : -1;
    const above = this.nodes[v].parents.filter((p) => p !== root);
    const told = above.map((p) => `the ${this.rank(p) || "group"} ${this.name(p, language)}`);
    return told.length ? ` in ${told.join(" and ")}` : "";
  }

  path(v) {
    const found = [];
    for (let at = v; at >= 0; at = this.nodes[at].parents.length ? this.nodes[at].parents[0] : -1) found.unshift(at);
    return found;
  }

  // The rank of the classes below, if they share one.
  rankBelow(v) {
    const ranks = new Set(this.leaves.filter((l) => this.above[l].includes(v)).map((l) => this.rank(l)));
    return ranks.size === 1 ? [...ranks][0] : "";
  }

  // "A herring gull, a common gull or a tern."
  anyOf(set, language) {
    const names = set.map((v) => this.name(v, language));
    return `One of these: ${names.slice(0, -1).join(", ")} or ${names[names.length - 1]}.`;
  }

  // "Larus, a genus in the family Laridae: not sure which species."
  sentence(v, language) {
    const root = this.rooted ? this.tops[0] : -1;
    if (v === -1 || (v === root && this.children[v].length)) return "Not sure enough to say anything.";
    const rank = this.rank(v), inside = this.inside(v, language), below = this.rankBelow(v), count = this.classes[v];
    const what = rank ? `, ${/^(?!uni|eu|one)[aeiou]/i.test(rank) ? "an" : "a"} ${rank}${inside}` : inside && `,${inside}`;
    // A word begins with a capital; an id (n02084071) or a brand (iPhone) stays as it is.
    const said = this.name(v, language).replace(/^\p{Ll}(?=\p{Ll}|['’ -])/u, (c) => c.toUpperCase()) + what;
    if (count <= 1) return said.endsWith(".") ? said : `${said}.`;
    return `${said}: not sure which ${below && below !== rank ? below : `of its ${count} classes`}.`;
  }

  // Ids or names, one per line, to the leaf nodes at or below them; what is unknown.
  region(text) {
    const known = new Map();
    this.nodes.forEach((node, v) => {
      for (const name of [node.id, node.name, ...Object.values(node.names || {})]) {
        const key = name.trim().toLowerCase();
        known.set(key, [...(known.get(key) || []), v]);
      }
    });
    const lines = text.split(/\r?\n/).map((l) => l.trim()).filter((l) => l);
    const unknown = lines.filter((l) => !known.has(l.toLowerCase()));
    const wanted = new Set(lines.flatMap((l) => known.get(l.toLowerCase()) || []));
    return { keep: new Set(this.leaves.filter((l) => this.above[l].some((a) => wanted.has(a)))), unknown, lines };
  }
}

function softmax(z) {
  const top = Math.max(...z);
  const e = Array.from(z, (v) => Math.exp(v - top));
  const sum = e.reduce((a, b) => a + b, 0);
  return e.map((v) => v / sum);
}

// ---------------------------------------------------------------- engines: describe(), sample(i), scores(items)
// An item is { name, file } for a photo, { name, text }, or { name, values } for a row of features.

class Server {
  constructor() {
    // The token comes after "#", which a browser keeps to itself.
    this.token = new URLSearchParams(location.hash.slice(1)).get("token");
  }

  async fetch(path, options = {}) {
    const headers = this.token ? { Authorization: `Bearer ${this.token}` } : {};
    const reply = await fetch(path, { ...options, headers: { ...headers, ...(options.headers || {}) } });
    if (reply.ok) return reply;
    const detail = await reply.json().then((d) => d.detail, () => "");
    const said = typeof detail === "string" ? detail : (detail || []).map((d) => d.msg).join("; ");
    const hint = reply.status === 401 ? " Open the address that `hace serve` printed, with its token." : "";
    throw new Error((said || `The server answered ${reply.status}.`) + hint);
  }

  async describe() {
    const get = async (path) => (await this.fetch(path)).json();
    const [model, tree, samples] = await Promise.all([get("model"), get("hierarchy"), get("samples")]);
    return { model, tree, samples: samples.samples };
  }

  async sample(i, kind) {
    const reply = await this.fetch(`samples/${i}`);
    return kind === "features" ? { values: (await reply.json()).features } : { file: await reply.blob() };
  }

  async scores(items) {
    const asked = "predict?top_k=1&scores=true";
    let reply;
    if (!items[0].file) {
      const body = JSON.stringify(items[0].values ? { features: items.map((i) => i.values) } : { texts: items.map((i) => i.text) });
      reply = await this.fetch(asked, { method: "POST", body, headers: { "Content-Type": "application/json" } });
    } else {
      const body = new FormData();
      items.forEach((i) => body.append("files", i.file, i.name || "photo"));
      reply = await this.fetch(asked, { method: "POST", body });
    }
    return (await reply.json()).predictions;
  }
}

class Browser {
  async describe() {
    const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const source = URL.createObjectURL(new Blob([bytes(RUNTIME.source)], { type: "text/javascript" }));
    this.ort = await import(source);
    this.ort.env.wasm.numThreads = 1; // threads need headers that a plain web server does not send
    this.ort.env.wasm.wasmBinary = bytes(RUNTIME.wasm);
    this.session = await this.ort.InferenceSession.create(bytes(MODEL.onnx), { executionProviders: ["wasm"] });
    this.about = MODEL.page;
    return MODEL.page;
  }

  async sample(i, kind) {
    const content = MODEL.contents[i];
    return kind === "features" ? { values: content } : { file: await (await fetch(content)).blob() };
  }

  async scores(items) {
    const found = [];
    for (const item of items) {
      try {
        const input = this.about.model.input;
        const data = item.values ? Float32Array.from(item.values) : await pixels(item.file, input.preprocessing);
        const feeds = { [input.name]: new this.ort.Tensor("float32", data, [1, ...input.shape]) };
        const out = await this.session.run(feeds, ["scores"]);
        found.push({ sample: item.name, scores: Array.from(out.scores.data) });
      } catch (error) {
        found.push({ sample: item.name, error: error.message });
      }
    }
    return found;
  }
}

// A photo as the model sees it: resized and cut as Pillow (before 13, for tall photos) and torchvision do.
async function pixels(file, view) {
  let image;
  try {
    image = await createImageBitmap(file, { colorSpaceConversion: "none", imageOrientation: "from-image" });
  } catch {
    throw new Error("the image cannot be read");
  }
  const canvas = document.createElement("canvas");
  canvas.width = image.width;
  canvas.height = image.height;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#fff"; // transparent parts are white
  context.fillRect(0, 0, image.width, image.height);
  context.drawImage(image, 0, 0);
  const rgba = context.getImageData(0, 0, image.width, image.height).data;
  let rgb = new Uint8Array((rgba.length / 4) * 3);
  for (let i = 0; i < rgba.length / 4; i++) for (let c = 0; c < 3; c++) rgb[3 * i + c] = rgba[4 * i + c];
  let [w, h] = [image.width, image.height];
  const short = Math.min(w, h), long = Math.trunc((view.resize * Math.max(w, h)) / short);
  const [nw, nh] = w <= h ? [view.resize, long] : [long, view.resize];
  if (nw !== w || nh !== h) rgb = resized(rgb, w, h, nw, nh, view.interpolation);
  [w, h] = [nw, nh];
  const { size, mean, std } = view;
  const top = half(h - size), left = half(w - size);
  const out = new Float32Array(3 * size * size);
  for (let c = 0; c < 3; c++)
    for (let y = 0; y < size; y++)
      for (let x = 0; x < size; x++) {
        const sy = y + top, sx = x + left;
        const inside = sy >= 0 && sy < h && sx >= 0 && sx < w; // what is missing is black
        const value = Math.fround((inside ? rgb[3 * (sy * w + sx) + c] : 0) / 255);
        out[c * size * size + y * size + x] = Math.fround(Math.fround(value - Math.fround(mean[c])) / Math.fround(std[c]));
      }
  return out;
}

// Half of a number as Python rounds it: ties to even.
function half(n) {
  const floor = Math.floor(n / 2);
  return n % 2 === 0 ? n / 2 : floor % 2 === 0 ? floor : floor + 1;
}

const sinc = (x) => (x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x));
const FILTERS = { // support and weight
  box: [0.5, (x) => (x > -0.5 && x <= 0.5 ? 1 : 0)],
  bilinear: [1, (x) => Math.max(0, 1 - Math.abs(x))],
  hamming: [1, (x) => (x === 0 ? 1 : Math.abs(x) >= 1 ? 0 : sinc(x) * (0.54 + 0.46 * Math.cos(Math.PI * x)))],
  bicubic: [2, (x) => {
    const a = -0.5, t = Math.abs(x);
    return t < 1 ? ((a + 2) * t - (a + 3)) * t * t + 1 : t < 2 ? (((t - 5) * t + 8) * t - 4) * a : 0;
  }],
  lanczos: [3, (x) => (x > -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0)],
};

// Pillow's resampling of 8-bit channels: across, then down, with whole-number weights of 22 bits.
function resized(rgb, w, h, nw, nh, interpolation) {
  const across = nw === w ? rgb : pass(rgb, w, h, nw, interpolation, 3, 3 * w, 3, 3 * nw);
  return nh === h ? across : pass(across, h, nw, nh, interpolation, 3 * nw, 3, 3 * nw, 3);
}

// One direction: `lines` lines of `from` pixels become `to` pixels; steps between pixels and lines, before and after.
function pass(data, from, lines, to, interpolation, step, line, newStep, newLine) {
  const [reach, weight] = FILTERS[interpolation];
  const scale = from / to, wide = Math.max(scale, 1), support = reach * wide;
  const out = new Uint8Array(3 * lines * to);
  for (let i = 0; i < to; i++) {
    const center = (i + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - support + 0.5));
    const last = Math.min(from, Math.trunc(center + support + 0.5));
    const weights = [];
    for (let x = first; x < last; x++) weights.push(weight((x - center + 0.5) / wide));
    const sum = weights.reduce((a, b) => a + b, 0);
    const whole = weights.map((v) => (sum ? Math.trunc((v / sum) * 4194304 + (v < 0 ? -0.5 : 0.5)) : 0));
    for (let l = 0; l < lines; l++)
      for (let c = 0; c < 3; c++) {
        let total = 2097152;
        for (let k = 0; k < whole.length; k++) total += whole[k] * data[l * line + (first + k) * step + c];
        out[l * newLine + i * newStep + c] = Math.min(255, Math.max(0, Math.floor(total / 4194304)));
      }
  }
  return out;
}

// ---------------------------------------------------------------- the page

const page = { items: [], chosen: 0, keep: null, calibrated: null };

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// Whether answers are among the classes that the guarantees are about: `calibrated`, null for all.
function likeCalibrated() {
  const { keep, calibrated } = page;
  return keep && calibrated ? keep.size === calibrated.size && [...keep].every((l) => calibrated.has(l)) : keep === calibrated;
}

// The guarantee that the slider asks for: the mildest that was calibrated and is at least as strict; null without one.
function guarantee() {
  const asked = Number($("sure").value) / 100;
  if (!likeCalibrated()) return null;
  return page.guarantees.find((p) => p.accuracy >= asked - 1e-9) || null;
}

function decided(item) {
  const kept = guarantee(), { model, tree } = page;
  const { nodes, leaves } = tree.probabilities(item.scores, model.outputs, model.temperature, page.keep, model.weights);
  const asked = Number($("sure").value) / 100;
  if (kept && kept.rule === "set") {
    const set = kept.threshold > 1 ? [] : tree.set(nodes, kept.nodes, kept.threshold), nothing = tree.rooted ? tree.tops[0] : -1;
    const probability = set.length ? set.reduce((sum, n) => sum + nodes[n], 0) : 1;
    return { nodes, leaves, set, v: set.length ? set[0] : nothing, probability };
  }
  const v = tree.answer(nodes, leaves, kept ? kept.threshold : asked, kept ? kept.rule : "threshold");
  return { nodes, leaves, set: [v], v, probability: v >= 0 ? nodes[v] : 1 };
}

function bar(name, p, chosen) {
  const li = element("li", undefined, chosen ? { class: "answer" } : {});
  const fill = element("i");
  fill.style.width = `${100 * p}%`;
  li.append(fill, element(chosen ? "b" : "span", name), element("span", percent(p)));
  return li;
}

function show() {
  const { tree, model } = page, kept = guarantee(), language = $("language").value;
  const asked = Number($("sure").value), told = kept ? `${100 - asked}% wrong` : `${asked}%`;
  $("sureWords").textContent = kept ? "Guaranteed: at most" : "How sure must it be?";
  $("sureOut").textContent = told;
  $("sure").setAttribute("aria-valuetext", told);
  const broken = kept && model.broken;
  $("guarantee").className = broken ? "broken" : kept ? "soft" : "warning";
  $("guarantee").textContent = kept
    ? broken
      ? `The guarantee is broken: ${model.broken}`
      : kept.guarantee
    : model.guarantees.length && !likeCalibrated()
      ? `No guarantee: it would be about answers among ${page.calibrated ? "the classes of the calibration" : "all classes"}. ` +
        "The slider is a plain threshold on the probability."
      : model.guarantees.length
        ? "No guarantee this strict was calibrated. The slider is a plain threshold on the probability."
        : "This model is not calibrated: the slider is a plain threshold on its own probability, and nothing is guaranteed. " +
          "To calibrate: hace calibrate RUN.";
  const good = page.items.filter((i) => i.scores);
  $("result").hidden = !good.length;
  $("batch").hidden = page.items.length < 2;
  const item = page.items[page.chosen];
  if (item && item.scores) {
    const { nodes, leaves, set, v, probability } = decided(item);
    $("said").textContent = set.length > 1 ? tree.anyOf(set, language) : tree.sentence(v, language);
    const rank = v >= 0 ? tree.rank(v) || `level ${tree.nodes[v].level}` : "";
    const what = set.length > 1 ? "together" : rank;
    $("rank").textContent = v >= 0 && !(tree.rooted && v === tree.tops[0])
      ? `${what[0].toUpperCase()}${what.slice(1)}, probability ${percent(probability)}${model.guarantees.length ? " after calibration" : ""}`
      : "The most probable way down is below.";
    const said = v >= 0 ? tree.path(v) : [];
    const one = v >= 0 && !(tree.rooted && v === tree.tops[0]) ? said : tree.walk(nodes).slice(0, 3);
    const shown = set.length > 1 ? set : one;
    $("path").replaceChildren(...shown.map((n) => bar(tree.name(n, language), nodes[n], set.includes(n))));
    const inner = v < 0 || tree.children[v].length > 0;
    const parent = v >= 0 && tree.nodes[v].parents.length ? tree.nodes[v].parents[0] : -1;
    const family = v < 0 ? tree.tops : inner ? tree.children[v] : parent >= 0 ? tree.children[parent] : tree.tops;
    const rivals = family.filter((n) => n !== v).sort((a, b) => nodes[b] - nodes[a]).slice(0, 5);
    $("rivalsPart").hidden = !rivals.length;
    $("rivalsTitle").textContent = inner ? "What it could be" : "Its closest rivals";
    $("rivals").replaceChildren(...rivals.map((n) => bar(tree.name(n, language), nodes[n])));
    const best = tree.leaves.map((n, i) => [leaves[i], n]).sort((a, b) => b[0] - a[0]).slice(0, 5);
    $("best").replaceChildren(...best.filter(([p]) => p > 0).map(([p, n]) => bar(tree.name(n, language), p)));
    $("shown").hidden = !item.url;
    if (item.url) $("shown").src = item.url;
    $("shown").alt = item.url ? `The photo ${item.name}` : "";
  } else if (item && item.error) {
    $("result").hidden = true;
  }
  $("batchTitle").textContent = `${page.items.length} samples`;
  if (page.items.length > 1) $("rows").replaceChildren(...page.items.map(row));
}

function row(item, i) {
  const tr = element("tr", undefined, i === page.chosen ? { class: "chosen" } : {});
  const pick = element("button", item.name, { type: "button" });
  pick.onclick = () => { page.chosen = i; show(); $("answer").focus(); };
  const first = element("td");
  first.append(pick);
  tr.append(first);
  for (const [k, cell] of cells(item).entries()) tr.append(element("td", cell, k === 2 ? { class: "number" } : {}));
  return tr;
}

function cells(item) {
  if (!item.scores) return [item.error || "…", "", ""];
  const { set, v, probability } = decided(item), { tree } = page, language = $("language").value;
  if (v < 0 || (tree.rooted && v === tree.tops[0])) return ["no answer", "", ""];
  if (set.length > 1) return [set.map((n) => tree.name(n, language)).join(", "), "one of these", percent(probability)];
  return [tree.name(v, language), tree.rank(v) || `level ${tree.nodes[v].level}`, percent(probability)];
}

function csv() {
  const { tree } = page;
  const cell = (value) => {
    let text = String(value ?? "");
    if (/^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text))) text = `'${text}`; // so that no spreadsheet runs it
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [["sample", "answer", "answer_name", "answer_level", "answer_probability", "answer_path", "error"]];
  for (const item of page.items) {
    if (!item.scores) { lines.push([item.name, "", "", "", "", "", item.error]); continue; }
    const { set, v, probability } = decided(item), node = tree.nodes[v];
    const path = v < 0 ? "" : tree.path(v).map((n) => tree.nodes[n].id).join(" > ");
    const all = (key) => set.map((n) => tree.nodes[n][key]).join(" | ");
    if (set.length > 1) lines.push([item.name, all("id"), all("name"), "", probability, "", ""]);
    else lines.push([item.name, node?.id, node?.name, node ? node.level : 0, probability, path, ""]);
  }
  return lines.map((line) => line.map(cell).join(",")).join("\n") + "\n";
}

async function ask(items) {
  if (!items.length) return;
  page.items.forEach((i) => i.url && URL.revokeObjectURL(i.url));
  Object.assign(page, { items, chosen: 0 });
  items.forEach((i) => i.file && (i.url = URL.createObjectURL(i.file)));
  for (let start = 0; start < items.length; start += CHUNK) {
    const part = items.slice(start, start + CHUNK);
    $("status").textContent = items.length > 1 ? `${start} of ${items.length} done …` : "Looking …";
    try {
      const found = await page.engine.scores(part);
      found.forEach((f, i) => Object.assign(part[i], f.scores ? { scores: f.scores } : { error: f.error }));
    } catch (error) {
      part.forEach((i) => (i.error = error.message));
    }
    if (page.items !== items) return; // something else was asked meanwhile
    const first = items.findIndex((i) => i.scores);
    page.chosen = first < 0 ? 0 : first;
    show();
  }
  const broken = items.filter((i) => i.error);
  $("status").textContent = broken.length
    ? `${broken.length} of ${items.length} could not be read: ${broken[0].name}: ${broken[0].error}` : "";
}

const isPhoto = (file) => file.type.startsWith("image/") || /\.(heic|heif|tiff?|bmp|ppm)$/i.test(file.name);

async function askFiles(files) {
  const photos = [...files].filter(isPhoto);
  const skipped = [...files].filter((file) => !isPhoto(file));
  if (photos.length) await ask(photos.map((file) => ({ name: file.webkitRelativePath || file.name || "pasted photo", file })));
  if (skipped.length) {
    const count = skipped.length === 1 ? "1 file was skipped, because it is not a photo" : `${skipped.length} files were skipped, because they are not photos`;
    $("status").textContent = `${$("status").textContent} ${count}: ${skipped[0].name}.`.trim();
  }
}

// Rows of numbers, one sample per line; text in front is its name.
function rowsOf(text, width) {
  return text.split(/\r?\n/).filter((l) => l.trim()).map((line, i) => {
    const words = line.trim().split(/[\s,;]+/).filter((w) => w);
    const named = Number.isNaN(Number(words[0]));
    const values = (named ? words.slice(1) : words).map(Number);
    if (values.length !== width || values.some((v) => !Number.isFinite(v)))
      throw new Error(`Line ${i + 1} must be ${width} numbers. Got ${values.length}${values.some(Number.isNaN) ? ", some of them text" : ""}.`);
    return { name: named ? words[0] : `row ${i + 1}`, values };
  });
}

async function dropped(event) {
  const entries = [...event.dataTransfer.items].map((i) => i.webkitGetAsEntry && i.webkitGetAsEntry()).filter((e) => e);
  if (!entries.length) return askFiles(event.dataTransfer.files);
  const files = [];
  const visit = async (entry) => {
    if (entry.isFile) return files.push(await new Promise((yes, no) => entry.file(yes, no)));
    const reader = entry.createReader();
    for (let part; (part = await new Promise((yes, no) => reader.readEntries(yes, no))).length; ) for (const e of part) await visit(e);
  };
  for (const entry of entries) await visit(entry);
  askFiles(files);
}

// The classes that a list restricts answers to; null for all.
function restricted({ keep }) {
  return keep.size && keep.size < page.tree.leaves.length ? keep : null;
}

function region() {
  const found = page.tree.region($("region").value), { keep, unknown, lines } = found;
  page.keep = restricted(found);
  const shown = unknown.slice(0, 3).join(", ") + (unknown.length > 3 ? ", …" : "");
  $("regionSaid").textContent = lines.length
    ? `${keep.size} of ${page.tree.leaves.length} classes.${unknown.length ? ` Unknown: ${shown}.` : ""}` : "";
  show();
}

async function start() {
  page.engine = typeof MODEL === "undefined" ? new Server() : new Browser();
  const { model, tree, samples } = await page.engine.describe();
  Object.assign(page, { model, tree: new Tree(tree) });
  page.guarantees = model.guarantees.filter((p) => p.of === "samples").sort((a, b) => a.accuracy - b.accuracy);
  const strictest = page.guarantees.at(-1);
  if (strictest && strictest.accuracy < 0.99) $("sure").max = Math.max(80, Math.round(100 * strictest.accuracy));
  const kinds = model.kinds, width = model.input.features;
  $("about").textContent = `${page.tree.leaves.length} classes in a hierarchy of ${tree.nodes.length} nodes. ` +
    (kinds.includes("images") ? "Show it a photo." : kinds.includes("texts") ? "Give it a text." : `Give it a row of ${width} features.`);
  $("note").textContent = model.note;
  $("drop").hidden = !kinds.includes("images");
  const texts = kinds.includes("texts");
  $("typed").hidden = kinds.includes("images") || (!texts && !kinds.includes("features"));
  $("typed").open = !kinds.includes("images");
  $("typed").querySelector("summary").textContent = texts ? "Text" : "Features";
  $("typed").querySelector("label").textContent = texts ? "One text per line" : "Rows of numbers";
  const names = model.input.names && model.input.names.length <= 20 ? `: ${model.input.names.join(", ")}` : "";
  $("valuesHint").textContent = texts ? "Several lines make a table." : `${width} numbers per line${names}; several lines make a table.`;
  const languages = [...new Set(tree.nodes.flatMap((n) => Object.keys(n.names || {})))];
  $("languages").hidden = !languages.length;
  $("language").append(element("option", "as in the hierarchy", { value: "" }), ...languages.map((l) => element("option", l, { value: l })));
  $("samples").hidden = !samples.length;
  for (const [i, sample] of samples.entries()) {
    const kind = sample.kind, label = sample.truth ? `${sample.name}: ${sample.truth}` : sample.name;
    const button = element("button", kind === "images" ? undefined : label, { type: "button", title: label, "aria-label": label });
    button.onclick = async () => ask([{ name: sample.name, ...(await page.engine.sample(i, kind)) }]);
    $("samples").querySelector(".samples").append(button);
    if (kind !== "images") continue;
    button.className = "photo";
    page.engine.sample(i, kind).then(({ file }) => {
      const image = element("img", undefined, { alt: "" });
      image.src = URL.createObjectURL(file);
      button.append(image);
    });
  }
  $("files").onchange = $("folder").onchange = (event) => askFiles(event.target.files);
  $("typed").querySelector("form").onsubmit = (event) => {
    event.preventDefault();
    const lines = $("values").value.split(/\r?\n/).map((l) => l.trim()).filter((l) => l);
    if (texts) return ask(lines.map((text) => ({ name: text.length > 60 ? `${text.slice(0, 59)}…` : text, text })));
    try { ask(rowsOf($("values").value, width)); } catch (error) { $("status").textContent = error.message; }
  };
  for (const name of ["sure", "language"]) $(name).oninput = show;
  $("region").oninput = region;
  $("csv").onclick = () => {
    const link = element("a", "", { download: "answers.csv", href: URL.createObjectURL(new Blob([csv()], { type: "text/csv" })) });
    link.click();
    URL.revokeObjectURL(link.href);
  };
  $("clear").onclick = () => { Object.assign(page, { items: [], chosen: 0 }); show(); $("status").textContent = ""; };
  if (kinds.includes("images")) {
    document.addEventListener("paste", (event) => event.clipboardData.files.length && askFiles(event.clipboardData.files));
    document.addEventListener("dragover", (event) => { event.preventDefault(); $("drop").classList.add("over"); });
    document.addEventListener("dragleave", () => $("drop").classList.remove("over"));
    document.addEventListener("drop", (event) => { event.preventDefault(); $("drop").classList.remove("over"); dropped(event); });
  }
  if (model.region) {
    $("region").value = model.region.join("\n");
    page.calibrated = restricted(page.tree.region($("region").value));
  }
  region();
  document.body.dataset.ready = "yes";
}

start().catch((error) => { $("about").textContent = error.message; $("about").className = "warning"; });
