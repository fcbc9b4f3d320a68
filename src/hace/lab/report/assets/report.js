"use strict";
// The interactive part of a report: a sunburst (hierarchy.js) coloured by the accuracy of a method, or by the difference of two.
// Names only ever become text (textContent), never markup.

function haceReport(data) {
  const find = (id) => document.getElementById(id);
  const holder = find("sunburst");
  if (!holder || !data.places.length) return;
  const controls = { place: find("choose-place"), first: find("choose-first"), second: find("choose-second"), swap: find("swap") };
  // Blue and orange can be told apart with any kind of colour vision; all shades carry dark text.
  const GREY = [229, 231, 233], PALE = [246, 246, 244], BLUE = [86, 156, 222], ORANGE = [240, 152, 60];
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
  const mix = (from, to, share) => `rgb(${from.map((c, i) => Math.round(c + (to[i] - c) * Math.max(0, Math.min(1, share)))).join(",")})`;
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
    const x = value(v);
    if (x === null) return `rgb(${GREY.join(",")})`;
    if (second()) return mix(PALE, x < 0 ? ORANGE : BLUE, Math.abs(x) / scale.most);
    const at = (x - scale.low) / Math.max(1e-9, scale.high - scale.low);
    return at < 0.5 ? mix(ORANGE, PALE, 2 * at) : mix(PALE, BLUE, 2 * at - 1);
  }

  function details(v) {
    const methods = [...new Set([first(), second()].filter(Boolean))];
    if (v < 0 || (v === 0 && tree.rooted)) { // everything lies below it: the accuracy of classes says more
      return methods.filter((m) => place.methods[m]).map((m) => [title(m), `top-1 ${percent(place.methods[m].top1)} %`]);
    }
    const lines = [["test samples", place.samples[v].toLocaleString("en")]];
    for (const method of methods) {
      const share = accuracy(method, v);
      if (share === null) continue;
      const seeds = place.methods[method].seeds;
      lines.push([title(method), `${percent(share)} % right${seeds > 1 ? `, mean of ${seeds} seeds` : ""}`]);
    }
    if (second() && value(v) !== null) lines.push(["difference", `${percent(value(v), true)} points`]);
    for (const method of methods) {
      const m = place.methods[method];
      const went = m ? m.went[v] : [];
      const missed = m ? place.samples[v] * m.seeds - m.right[v] : 0;
      if (!went.length) continue;
      const parts = [];
      for (let i = 0; i < went.length; i += 2) parts.push(`${tree.names[went[i]]} ${Math.round((100 * went[i + 1]) / missed)} %`);
      lines.push([`mistakes of ${title(method)} go to`, parts.join(", ")]);
    }
    return lines;
  }

  function legend() {
    const bar = make("span", undefined, "bar");
    const css = (c) => `rgb(${c.join(",")})`;
    bar.style.background = `linear-gradient(to right, ${css(ORANGE)}, ${css(PALE)}, ${css(BLUE)})`;
    bar.style.printColorAdjust = "exact";
    const ends = second()
      ? [`${title(second())} better by ${percent(scale.most)} points or more`, `${title(first())} better by as much`]
      : [`${percent(scale.low)} % right or less`, `${percent(scale.high)} %`];
    find("legend").replaceChildren(make("span", ends[0]), bar, make("span", ends[1]), make("span", "grey: no test samples"));
  }

  function extremes() {
    const known = [];
    for (let v = 0; v < place.samples.length; v++) if (tree.label[v] >= 0 && value(v) !== null) known.push([value(v), v]);
    known.sort((a, b) => b[0] - a[0] || a[1] - b[1]);
    const entry = ([x, v]) => {
      const button = make("button");
      button.type = "button";
      button.append(make("span", tree.names[v]), make("small", second() ? `${percent(x, true)} points` : `${percent(x)} %`));
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
      ? [`Classes where ${title(first())} gains most over ${title(second())}`, "and where it loses most"]
      : [`Classes that ${title(first())} knows best`, "and least"];
    find("extremes").replaceChildren(column(words[0], up.slice(0, most)), column(words[1], down.slice(-most).reverse()));
  }

  function recolour() {
    measure();
    legend();
    extremes();
    if (drawing) drawing.refresh();
  }

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
        crumbs: find("crumbs"), search: find("search"), found: find("found"), caption: find("caption") };
      drawing = haceSunburst(elements, tree, { color, details });
    }
    recolour();
  }

  controls.place.replaceChildren(...data.places.map((p, i) => option(String(i), p.title)));
  controls.place.addEventListener("change", () => choosePlace(Number(controls.place.value)));
  controls.first.addEventListener("change", recolour);
  controls.second.addEventListener("change", recolour);
  controls.swap.addEventListener("click", () => {
    if (!second()) return;
    [controls.first.value, controls.second.value] = [second(), first()];
    recolour();
  });
  choosePlace(0);
}

// A switch shows one of its parts.
for (const box of document.querySelectorAll(".switch")) {
  const chooser = box.querySelector("select"), parts = [...box.children].filter((part) => part.dataset.option !== undefined);
  chooser.addEventListener("change", () => { for (const part of parts) part.hidden = part.dataset.option !== chooser.value; });
}
// A link into something folded opens it.
function unfold() {
  const target = location.hash.startsWith("#") && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let box = target && target.closest("details"); box; box = box.parentElement && box.parentElement.closest("details")) box.open = true;
}
window.addEventListener("hashchange", unfold);
unfold();
haceReport(JSON.parse(document.getElementById("report-data").textContent));
