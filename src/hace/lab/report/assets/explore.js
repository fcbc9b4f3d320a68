"use strict";
// The interactive part of a report: a sunburst (hierarchy.js) coloured by the accuracy of a method, or by the difference of two.
// Names only ever become text (textContent), never markup.

function haceExplore(data) {
  const find = (id) => document.getElementById(id);
  const holder = find("sunburst");
  if (!holder || !data.places.length) return;
  const controls = { place: find("choose-place"), first: find("choose-first"), second: find("choose-second"), swap: find("swap"),
    stops: find("show-stops") };
  // Blue and orange can be told apart with any kind of colour vision; the style sheet has them for light, dark and paper.
  const GREY = "var(--none)", PALE = "var(--pale)", BLUE = "var(--blue)", ORANGE = "var(--orange)";
  const Z = 1.96;
  let place = null, tree = null, drawing = null, scale = null;

  const option = (value, text) => {
    const element = document.createElement("option");
    element.value = value;
    element.textContent = text;
    return element;
  };
  const make = (tag, text, className) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    return element;
  };
  const title = (method) => data.titles[method] || method;
  const percent = (value, sign) => `${sign && value > 0 ? "+" : ""}${(100 * value).toFixed(1)}`;
  const first = () => controls.first.value;
  const second = () => controls.second.value; // "" colours by the accuracy of the first
  const accuracy = (method, v) => {
    const m = place.methods[method];
    return !m || v < 0 || !place.samples[v] ? null : m.right[v] / (place.samples[v] * m.seeds);
  };
  const value = (v) => {
    const ours = accuracy(first(), v);
    if (ours === null || !second()) return ours;
    const theirs = accuracy(second(), v);
    return theirs === null ? null : ours - theirs;
  };
  // Wilson's interval of a share of a node's samples; seeds repeat the same samples, so they do not narrow it.
  const around = (method, v) => {
    const p = accuracy(method, v), n = place.samples[v], z = Z * Z;
    const middle = (p + z / (2 * n)) / (1 + z / n), half = (Z / (1 + z / n)) * Math.sqrt((p * (1 - p)) / n + z / (4 * n * n));
    return [Math.max(0, middle - half), Math.min(1, middle + half)];
  };
  // Newcombe's interval of the difference, as if both methods had samples of their own: wider than a paired one.
  const between = (v) => {
    const [a, b] = [accuracy(first(), v), accuracy(second(), v)];
    const [la, ua] = around(first(), v), [lb, ub] = around(second(), v);
    return [a - b - Math.hypot(a - la, ub - b), a - b + Math.hypot(ua - a, b - lb)];
  };
  const ends = (v) => (second() ? between(v) : around(first(), v));
  const unsure = (v) => second() && value(v) !== null && between(v)[0] <= 0 && between(v)[1] >= 0;
  const bracket = (v) => `[${ends(v).map((end) => percent(end, Boolean(second()))).join(", ")}]`;
  const mix = (from, to, share) => `color-mix(in srgb, ${to} ${Math.round(100 * Math.max(0, Math.min(1, share)))}%, ${from})`;
  const quantile = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];

  // The scale follows the nodes: a difference from -most to +most, an accuracy from low to high.
  function measure() {
    const values = [];
    for (let v = 0; v < place.samples.length; v++) {
      const x = value(v);
      if (x !== null && !(tree.rooted && v === 0)) values.push(second() ? Math.abs(x) : x);
    }
    values.sort((a, b) => a - b);
    if (second()) scale = { most: Math.max(0.02, values.length ? quantile(values, 0.95) : 0.02) };
    else scale = { low: values.length ? Math.min(0.95, quantile(values, 0.03)) : 0, high: 1 };
  }
  function color(v) {
    const stops = controls.stops.checked && sure.stopping(v);
    if (typeof stops === "number") return stops < 0 ? GREY : mix(PALE, BLUE, stops);
    const x = value(v);
    if (x === null) return GREY;
    if (second()) return mix(PALE, x < 0 ? ORANGE : BLUE, (unsure(v) ? 0.3 : 1) * (Math.abs(x) / scale.most));
    const at = (x - scale.low) / Math.max(1e-9, scale.high - scale.low);
    return at < 0.5 ? mix(ORANGE, PALE, 2 * at) : mix(PALE, BLUE, 2 * at - 1);
  }

  function details(v) {
    const methods = [...new Set([first(), second()].filter(Boolean))];
    if (v < 0 || (v === 0 && tree.rooted)) { // everything lies below it: the accuracy of classes says more
      return methods.filter((m) => place.methods[m]).map((m) => [title(m), `top-1 ${percent(place.methods[m].top1)}%`]);
    }
    const lines = [["test samples", place.samples[v].toLocaleString("en")]];
    for (const method of methods) {
      const share = accuracy(method, v);
      if (share === null) continue;
      const seeds = place.methods[method].seeds;
      const [low, high] = around(method, v);
      lines.push([title(method), `${percent(share)}% right [${percent(low)}, ${percent(high)}]${seeds > 1 ? `, ${seeds} seeds` : ""}`]);
    }
    if (second() && value(v) !== null) {
      lines.push(["difference", `${percent(value(v), true)} points ${bracket(v)}${unsure(v) ? ": includes 0" : ""}`]);
    }
    for (const method of methods) {
      const m = place.methods[method];
      const mistakes = m ? m.mistakes[v] : [];
      const missed = m ? place.samples[v] * m.seeds - m.right[v] : 0;
      if (!mistakes.length) continue;
      const parts = [];
      for (let i = 0; i < mistakes.length; i += 2) parts.push(`${tree.names[mistakes[i]]} ${Math.round((100 * mistakes[i + 1]) / missed)}%`);
      lines.push([`mistakes of ${title(method)} go to`, parts.join(", ")]);
    }
    return lines;
  }

  function legend() {
    const bar = make("span", undefined, "bar");
    bar.style.background = `linear-gradient(to right, ${ORANGE}, ${PALE}, ${BLUE})`;
    bar.style.printColorAdjust = "exact";
    const named = second()
      ? [`${title(second())} better by ${percent(scale.most)} points or more`, `${title(first())} better by as much`]
      : [`${percent(scale.low)}% right or less`, `${percent(scale.high)}%`];
    const more = second() ? "pale: the 95% interval includes 0; grey: no test samples" : "grey: no test samples";
    const stopping = controls.stops.checked;
    if (stopping) bar.style.background = `linear-gradient(to right, ${PALE}, ${BLUE})`;
    const words = stopping ? ["answers continue below", "answers stop here", "grey: no answers"] : [...named, more];
    find("legend").replaceChildren(make("span", words[0]), bar, make("span", words[1]), make("span", words[2]));
  }

  function extremes() {
    const known = [];
    for (let v = 0; v < place.samples.length; v++) if (tree.label[v] >= 0 && value(v) !== null) known.push([value(v), v]);
    known.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
    const entry = ([x, v]) => {
      const button = make("button");
      button.type = "button";
      button.append(make("span", tree.names[v]), make("small", `${percent(x, Boolean(second()))}${second() ? "" : "%"} ${bracket(v)}, n = ${place.samples[v]}`));
      if (unsure(v)) button.className = "faint";
      button.addEventListener("click", () => { drawing.visit(v); holder.scrollIntoView({ block: "nearest" }); });
      const item = make("li");
      item.append(button);
      return item;
    };
    const column = (words, entries) => {
      const box = make("div"), list = make("ul");
      list.append(...(entries.length ? entries.map(entry) : [make("li", "none")]));
      box.append(make("h4", words), list);
      return box;
    };
    const most = 8;
    const up = second() ? known.filter(([x]) => x > 0) : known;
    const down = second() ? known.filter(([x]) => x < 0) : known;
    const words = second()
      ? [`Classes where ${title(first())} gains most over ${title(second())}, in points`, "and where it loses most"]
      : [`Classes that ${title(first())} knows best`, "and least"];
    find("extremes").replaceChildren(column(words[0], up.slice(0, most)), column(words[1], down.slice(-most).reverse()));
  }

  function recolour() {
    controls.swap.disabled = !second(); // nothing to swap with
    sure.show(place, tree, [first(), second()]);
    measure();
    legend();
    extremes();
    if (drawing) drawing.refresh();
  }

  // #place=1&node=ID leads to a node of the second place.
  const prefix = () => (place === data.places[0] ? "" : `place=${data.places.indexOf(place)}&`);

  function choosePlace(index) {
    place = data.places[index];
    const fresh = tree !== data.trees[place.tree];
    tree = data.trees[place.tree];
    const wanted = [controls.first.value || data.first, controls.second.value === "" && drawing ? "" : controls.second.value || data.second];
    const methods = Object.keys(place.methods);
    controls.first.replaceChildren(...methods.map((m) => option(m, title(m))));
    controls.second.replaceChildren(option("", "nothing: show its accuracy"), ...methods.map((m) => option(m, title(m))));
    controls.first.value = methods.includes(wanted[0]) ? wanted[0] : methods[0];
    controls.second.value = methods.includes(wanted[1]) && wanted[1] !== controls.first.value ? wanted[1] : "";
    if (fresh) {
      drawing = null;
      measure();
      holder.replaceChildren(find("sunburst-parts").content.cloneNode(true));
      const elements = { chart: find("chart"), details: find("details"), below: find("below"), belowTitle: find("below-title"),
        crumbs: find("crumbs"), search: find("search"), found: find("found"), caption: find("caption"), warning: find("warning") };
      sure.show(place, tree, [first(), second()]);
      drawing = haceSunburst(elements, tree, { color, details, prefix, external: true });
    }
    recolour();
  }

  const sure = haceSure(title, () => { legend(); if (drawing) drawing.refresh(); });
  controls.stops.addEventListener("change", () => { legend(); drawing.refresh(); });
  function follow() {
    const address = /^#(?:place=(\d+)&)?node=/.exec(location.hash);
    if (!address && location.hash !== "") return;
    const index = address && address[1] ? Number(address[1]) : address ? 0 : Number(controls.place.value);
    if (index < data.places.length && String(index) !== controls.place.value) {
      controls.place.value = String(index);
      choosePlace(index);
    }
    drawing.open(location.hash);
  }
  window.addEventListener("hashchange", follow);
  controls.place.replaceChildren(...data.places.map((p, i) => option(String(i), p.title)));
  controls.place.addEventListener("change", () => {
    choosePlace(Number(controls.place.value));
    if (location.hash.includes("node=")) history.replaceState(null, "", drawing.address()); // the node is in another place now
  });
  controls.first.addEventListener("change", recolour);
  controls.second.addEventListener("change", recolour);
  controls.swap.addEventListener("click", () => {
    [controls.first.value, controls.second.value] = [second(), first()];
    recolour();
  });
  choosePlace(0);
  if (/^#(place=\d+&)?node=/.test(location.hash)) {
    follow();
    holder.scrollIntoView();
  }
}
