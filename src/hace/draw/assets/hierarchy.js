"use strict";
// An interactive sunburst of a hierarchy, in plain JavaScript and SVG. Nothing is loaded, and names only ever become
// text (textContent), never markup.
//
// haceSunburst(elements, data, options)
//   data     title, ids, names, parent (-1: none; parents come before their children), depth, label (-1: not a class), group,
//            classes (how many are below each node), extra (further parents of a node), levels, rooted, palette, caption, warning
//   options  color(v) -> a CSS colour, or undefined for the default; details(v) -> [[term, text], ...] more to show;
//            rings: how many are drawn at once on a wide screen; prefix(): what precedes node= in the address; external: whether the caller listens to changes of it
// gives { refresh() } to call when the colours or details have changed, { visit(v), open(address) }, and { address() } of the
// node shown.
// The address names the node shown, #node=ID, so that links lead to nodes and Back goes back.

// What an address says; one that somebody mistyped says itself.
function haceDecoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

function haceSunburst(elements, data, options = {}) {
  const SVG = "http://www.w3.org/2000/svg";
  const mostRings = (size) => (size < 480 ? 3 : options.rings || 3);
  const TOP = -1; // the virtual root, above everything
  const count = data.ids.length;
  const children = Array.from({ length: count + 1 }, () => []); // of v at v + 1
  for (let v = 0; v < count; v++) children[data.parent[v] + 1].push(v);
  const also = Array.from({ length: count + 1 }, () => []); // children of v that are drawn below another parent, on a DAG
  for (const [v, parents] of Object.entries(data.extra)) for (const u of parents) also[u + 1].push(Number(v));
  const rows = new Array(count + 1).fill(0);
  const height = new Array(count + 1).fill(0);
  for (let v = count - 1; v >= 0; v--) { // children first
    rows[v + 1] = rows[v + 1] || 1;
    const above = data.parent[v] + 1;
    rows[above] += rows[v + 1];
    height[above] = Math.max(height[above], height[v + 1] + 1);
  }
  const start = data.rooted ? 0 : TOP;
  let focus = start; // the node in the centre
  let cursor = null; // the node that the arrow keys have reached
  let shown = start; // the node that was visited last: the focus, or a class below it
  let hits = new Set();
  let places = new Map(); // node -> [first angle, last angle, inner radius, outer radius]

  const make = (tag, text, attributes = {}) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const draw = (tag, attributes, text) => {
    const element = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const total = data.label.filter((label) => label >= 0).length;
  const inClasses = (v) => {
    const number = v === TOP ? total : data.classes[v];
    return `${number.toLocaleString("en")} ${number === 1 ? "class" : "classes"}`;
  };
  const name = (v) => (v === TOP ? data.title : data.names[v] + (data.extra[v] ? " +" : ""));
  const isClass = (v) => v !== TOP && data.label[v] >= 0;
  const path = (v) => {
    const nodes = [];
    for (; v !== TOP; v = data.parent[v]) nodes.unshift(v);
    return start === TOP ? [TOP, ...nodes] : nodes;
  };

  function color(v) {
    const own = options.color && options.color(v);
    if (own) return own;
    if (v === TOP || data.group[v] < 0) return "#e0e0e0";
    const base = data.palette[data.group[v] % data.palette.length];
    const light = Math.min(0.6, 0.25 * Math.max(0, data.depth[v] - 1));
    const mixed = [1, 3, 5].map((i) => parseInt(base.slice(i, i + 2), 16)).map((c) => Math.round(c + (255 - c) * light));
    return `rgb(${mixed.join(",")})`;
  }

  function sector([from, to, inner, outer]) {
    const sweep = Math.min(to - from, 2 * Math.PI - 1e-4); // a full circle has no direction
    const point = (angle, radius) => `${(radius * Math.sin(angle)).toFixed(2)} ${(-radius * Math.cos(angle)).toFixed(2)}`;
    const large = sweep > Math.PI ? 1 : 0;
    return `M${point(from, inner)}A${inner} ${inner} 0 ${large} 1 ${point(from + sweep, inner)}` +
      `L${point(from + sweep, outer)}A${outer} ${outer} 0 ${large} 0 ${point(from, outer)}Z`;
  }

  function shorten(text, width, size) {
    const most = Math.floor(width / (0.58 * size));
    return text.length <= most ? text : most < 10 ? "" : text.slice(0, most - 1).trimEnd() + "\u2026";
  }

  // A name in two lines of about the same length; null where they are too long for the width.
  function inTwo(text, width, size) {
    const words = text.split(" ");
    let best = null, least = width / (0.58 * size);
    for (let i = 1; i < words.length; i++) {
      const lines = [words.slice(0, i).join(" "), words.slice(i).join(" ")];
      const most = Math.max(...lines.map((line) => line.length));
      if (most <= least) [best, least] = [lines, most - 1];
    }
    return best;
  }

  // Where a name goes, and its lines: along the arc where the sector is wide; else along the radius, from where there is room.
  function lettering(text, [from, to, inner, outer], size) {
    const angle = to - from, radius = (inner + outer) / 2, arc = angle * radius;
    if (angle > 0.5 && arc > outer - inner && angle < 6) {
      const width = Math.min(arc, 2 * radius * Math.sin(Math.min(angle, Math.PI) / 2)) - 16;
      return { along: true, radius, lines: [shorten(text, width, size)] };
    }
    const start = (lines) => Math.max(inner + 4, (lines * size) / angle);
    const [one, two] = [start(1.2), start(2.4)];
    const whole = text.length <= (outer - 4 - one) / (0.58 * size);
    const lines = whole ? null : inTwo(text, outer - 4 - two, size);
    return lines
      ? { along: false, radius: (two + outer - 4) / 2, lines }
      : { along: false, radius: (one + outer - 4) / 2, lines: [shorten(text, outer - 4 - one, size)] };
  }

  function label(svg, v, place) {
    const { along, radius, lines } = lettering(name(v), place, 11.5);
    if (!lines[0]) return;
    const degrees = ((place[0] + place[1]) * 90) / Math.PI;
    const flip = along ? degrees > 90 && degrees < 270 : degrees > 180;
    const turn = along ? (flip ? 180 : 0) : flip ? 90 : -90;
    const text = draw("text", { class: hits.has(v) ? "name on" : "name", "text-anchor": "middle", transform: `rotate(${degrees}) translate(0 ${-radius}) rotate(${turn})` });
    lines.forEach((line, i) => text.append(draw("tspan", { x: 0, dy: i ? "1.1em" : lines.length > 1 ? "-0.2em" : "0.35em" }, line)));
    svg.append(text);
  }

  // One drawing for good: whoever holds it (the focus, a screen reader) keeps it, only its contents change.
  const svg = draw("svg", { tabindex: "0", role: "application",
    "aria-label": "Sunburst. Arrow keys move between nodes, Enter opens a node, Escape goes up. The list of nodes below holds the same." });
  elements.chart.replaceChildren(svg);
  let width = 0;

  function redraw() {
    width = elements.chart.clientWidth;
    const size = Math.max(260, width);
    const half = size / 2;
    const rings = Math.max(1, Math.min(mostRings(size), height[focus + 1]));
    const hole = half * (rings > 2 ? 0.17 : 0.22);
    const step = (half - 4 - hole) / rings;
    svg.setAttribute("viewBox", `${-half} ${-half} ${size} ${size}`);
    svg.replaceChildren();
    places = new Map();
    const turn = (2 * Math.PI) / rows[focus + 1];
    const open = [[focus, 0, 0]];
    const labels = [];
    while (open.length) {
      const [node, ring, from] = open.pop();
      let at = from;
      for (const v of children[node + 1]) {
        const to = at + rows[v + 1] * turn;
        const outer = children[v + 1].length || ring + 1 >= rings ? hole + (ring + 1) * step : half - 4;
        const place = [at, to, hole + ring * step, outer];
        if ((to - at) * outer > 0.25) { // a quarter of a pixel; what is thinner is reached by zooming
          places.set(v, place);
          const cell = draw("path", { class: hits.has(v) ? "cell hit" : "cell", d: sector(place), fill: color(v), "data-node": v });
          if ((to - at) * outer < 5) cell.style.strokeWidth = "0.3"; // or the gaps hide the cells
          svg.append(cell);
          labels.push([v, place]);
          if (ring + 1 < rings) open.push([v, ring + 1, at]);
        }
        at = to;
      }
    }
    for (const [v, place] of labels) label(svg, v, place);
    svg.append(draw("circle", { class: "centre", r: hole - 2, "data-node": focus === start ? focus : data.parent[focus], "data-up": "1" }));
    const letters = Math.max(9, Math.min(14, (2 * hole - 12) / (0.585 * Math.max(1, name(focus).length))));
    const words = shorten(name(focus), 2 * hole - 4, letters); // none where there is no room: the path is above the drawing
    svg.append(draw("text", { class: "centre-name", dy: focus === start ? "0.35em" : "-0.1em", style: `font-size:${letters}px` }, words));
    if (focus !== start) svg.append(draw("text", { class: "centre-name", dy: "1.3em" }, "\u2191 up"));
    svg.append(draw("path", { class: "cursor" }));
    mark(cursor);
  }

  function mark(v) {
    cursor = v !== null && places.has(v) ? v : null;
    const outline = elements.chart.querySelector(".cursor");
    if (cursor === null) outline.removeAttribute("d");
    else outline.setAttribute("d", sector(places.get(cursor)));
    if (cursor !== null) describe(cursor);
  }

  function describe(v) {
    const list = make("dl");
    const add = (term, text) => list.append(make("dt", term), make("dd", text));
    if (v !== TOP) {
      if (data.ids[v] !== data.names[v]) add("id", data.ids[v]);
      const level = data.levels && data.depth[v] > 0 ? data.levels[data.depth[v] - 1] : null;
      add("level", level ? `${data.depth[v]} (${level})` : String(data.depth[v]));
      if (isClass(v)) add("label", String(data.label[v]));
      const above = path(v).slice(0, -1).filter((u) => u !== TOP).map((u) => data.names[u]);
      if (above.length) add("path", above.length > 8 ? [...above.slice(0, 3), "\u2026", ...above.slice(-4)].join(" \u203a ") : above.join(" \u203a "));
      if (data.extra[v]) {
        const links = [data.parent[v], ...data.extra[v]].filter((u) => u !== TOP).map((u) => {
          const button = make("button", data.names[u], { type: "button", class: "parent" });
          button.addEventListener("click", () => visit(u));
          return button;
        });
        const all = make("dd");
        all.append(...links);
        list.append(make("dt", "parents"), all);
      }
    }
    const k = children[v + 1].length + also[v + 1].length;
    if (k) add("below", `${k.toLocaleString("en")} ${k === 1 ? "child" : "children"}, ${inClasses(v)}`);
    for (const [term, text] of (options.details ? options.details(v) : [])) add(term, text);
    elements.details.replaceChildren(make("h3", name(v)), list);
  }

  function entry(v, note) {
    const button = make("button", undefined, { type: "button" });
    const swatch = make("span", undefined, { class: "swatch" });
    swatch.style.background = color(v);
    button.append(swatch, make("span", name(v), { class: "entry" }), make("small", note));
    button.addEventListener("click", () => visit(v));
    const item = make("li");
    item.append(button);
    return item;
  }

  function list() {
    const shown = [...children[focus + 1], ...also[focus + 1]];
    elements.belowTitle.textContent = shown.length ? `Below ${name(focus)}` : "";
    const most = 1000; // more entries than anybody reads; the search finds the others
    elements.below.replaceChildren(...shown.slice(0, most).map((v) => entry(v, children[v + 1].length ? inClasses(v) : isClass(v) ? `label ${data.label[v]}` : "")));
    if (shown.length > most) elements.below.append(make("li", `and ${(shown.length - most).toLocaleString("en")} more`));
  }

  function breadcrumbs() {
    const nodes = path(focus);
    const shown = nodes.length > 9 ? [...nodes.slice(0, 3), null, ...nodes.slice(-5)] : nodes;
    const parts = [];
    for (const v of shown) {
      if (parts.length) parts.push(make("span", "\u203a", { "aria-hidden": "true" }));
      if (v === null) parts.push(make("span", "\u2026"));
      else if (v === focus) parts.push(make("span", name(v), { "aria-current": "page" }));
      else {
        const button = make("button", name(v), { type: "button" });
        button.addEventListener("click", () => visit(v));
        parts.push(button);
      }
    }
    elements.crumbs.replaceChildren(...parts);
  }

  // The address of a node, and the node of an address; null where it names none.
  const prefix = options.prefix || (() => "");
  const address = (v) => `#${prefix()}node=${v === TOP ? "" : encodeURIComponent(data.ids[v])}`;
  function named(hash) {
    const found = hash.startsWith(`#${prefix()}node=`) ? haceDecoded(hash.slice(prefix().length + 6)) : null;
    if (found === null) return hash === "" || hash === "#" ? start : null;
    const v = found === "" ? start : data.ids.indexOf(found);
    return v < 0 && found !== "" ? null : v;
  }

  function visit(v) {
    const there = address(v);
    if (location.hash !== there && !(v === start && location.hash === "")) location.hash = there;
    show(v);
  }

  function open(hash) {
    const v = named(hash);
    if (v !== null && v !== shown) show(v);
    return v !== null && hash !== "";
  }

  // An inner node goes to the centre; a class is shown among its siblings.
  function show(v) {
    const inner = v === TOP || children[v + 1].length > 0;
    focus = inner ? v : data.parent[v] === TOP ? start : data.parent[v];
    hits = inner ? new Set() : new Set([v]);
    cursor = null;
    shown = v;
    redraw();
    breadcrumbs();
    list();
    describe(v);
  }

  function search() {
    const wanted = elements.search.value.trim().toLowerCase();
    const matches = [];
    if (wanted) {
      for (let v = 0; v < count && matches.length < 400; v++) {
        const at = data.names[v].toLowerCase().indexOf(wanted);
        if (at >= 0 || data.ids[v].toLowerCase().includes(wanted)) matches.push([at < 0 ? 999 : at, v]);
      }
      matches.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    }
    const none = wanted && !matches.length ? [make("li", "Nothing found")] : [];
    elements.found.replaceChildren(...none, ...matches.slice(0, 12).map(([, v]) => {
      const item = entry(v, isClass(v) ? "class" : inClasses(v));
      item.firstChild.addEventListener("click", () => { elements.search.value = ""; search(); });
      return item;
    }));
    hits = new Set(matches.map((match) => match[1]));
    redraw();
  }

  function nodeOf(event) {
    const at = event.target.closest && event.target.closest("[data-node]");
    return at ? Number(at.getAttribute("data-node")) : null;
  }
  elements.chart.addEventListener("click", (event) => {
    const v = nodeOf(event);
    if (v !== null) visit(v);
  });
  elements.chart.addEventListener("pointerover", (event) => {
    const v = nodeOf(event);
    if (v !== null) describe(event.target.hasAttribute("data-up") ? focus : v);
  });
  elements.chart.addEventListener("pointerleave", () => { if (cursor === null && !hits.size) describe(focus); });
  elements.chart.addEventListener("keydown", (event) => {
    const siblings = cursor === null ? children[focus + 1] : children[data.parent[cursor] + 1];
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step !== undefined) {
      const at = cursor === null ? (step > 0 ? -1 : 0) : siblings.indexOf(cursor);
      mark(siblings[(at + step + siblings.length) % siblings.length]);
    } else if (event.key === "ArrowDown") {
      const below = children[(cursor === null ? focus : cursor) + 1];
      if (below.length && places.has(below[0])) mark(below[0]);
    } else if (event.key === "ArrowUp") {
      if (cursor !== null && places.has(data.parent[cursor])) mark(data.parent[cursor]);
    } else if (event.key === "Enter" || event.key === " ") {
      if (cursor !== null) visit(cursor);
    } else if (event.key === "Escape" || event.key === "Backspace") {
      if (focus !== start) visit(data.parent[focus]);
    } else return;
    event.preventDefault();
  });
  elements.search.addEventListener("input", search);
  elements.search.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { elements.search.value = ""; search(); }
    if (event.key === "Enter" && elements.found.querySelector("button")) elements.found.querySelector("button").click();
  });
  new ResizeObserver(() => { if (elements.chart.clientWidth !== width) redraw(); }).observe(elements.chart);

  elements.caption.textContent = `${data.title === "everything" ? "" : `${data.title}, `}${data.caption}`;
  if (elements.warning) { elements.warning.textContent = data.warning; elements.warning.hidden = !data.warning; }
  const wanted = named(location.hash);
  show(wanted === null ? start : wanted);
  if (!options.external) window.addEventListener("hashchange", () => open(location.hash));
  const refresh = () => { redraw(); list(); describe(cursor === null ? shown : cursor); };
  return { refresh, visit, open, address: () => address(shown) };
}

if (document.getElementById("data")) { // a page of its own; others call the function themselves
  const find = (id) => document.getElementById(id);
  const elements = { chart: find("chart"), details: find("details"), below: find("below"), belowTitle: find("below-title"),
    crumbs: find("crumbs"), search: find("search"), found: find("found"), caption: find("caption"), warning: find("warning") };
  haceSunburst(elements, JSON.parse(find("data").textContent));
}
