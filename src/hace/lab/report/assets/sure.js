"use strict";
// The rank it is sure of: a slider over guaranteed accuracy, and how many answers stop at each level.
//
// haceSure(title, changed) gives { show(place, tree, methods), stopping(v) }; stopping is the share of the answers at or below a
// node that stop there under the guarantee, -1 without answers, null where nothing is known.

function haceSure(title, changed) {
  const find = (id) => document.getElementById(id);
  const slider = find("guarantee"), bars = find("sure-bars"), box = find("sure");
  let place = null, tree = null, methods = [], shares = null;
  const make = (tag, text, className) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    return element;
  };
  const known = () => methods.filter((m) => place.sure[m]);
  const guaranteed = () => Math.round(100 * place.guarantees[Number(slider.value)]);

  function measure() {
    shares = null;
    const own = known()[0];
    if (!own) return;
    const at = new Array(tree.ids.length).fill(0), through = new Array(tree.ids.length).fill(0);
    const stops = place.sure[own][Number(slider.value)].stops;
    for (let i = 0; i < stops.length; i += 2) at[stops[i]] = stops[i + 1];
    for (let v = at.length - 1; v >= 0; v--) { // children first
      through[v] += at[v];
      if (tree.parent[v] >= 0) through[tree.parent[v]] += through[v];
    }
    shares = at.map((count, v) => (through[v] ? count / through[v] : -1));
  }

  // How many answers are classes, and how many stop one, two ... levels above.
  function levels(answers) {
    const counts = new Map();
    for (let i = 0; i < answers.stops.length; i += 2) {
      const v = answers.stops[i], isClass = tree.label[v] >= 0;
      const key = isClass ? "class" : tree.rooted && v === 0 ? "silent" : tree.depth[v];
      counts.set(key, (counts.get(key) || 0) + answers.stops[i + 1]);
    }
    counts.set("silent", (counts.get("silent") || 0) + answers.silent);
    const name = (depth) => (tree.levels && tree.levels[depth - 1]) || `level ${depth}`;
    const leaf = tree.levels ? tree.levels[tree.levels.length - 1] : "class";
    const inner = [...counts.keys()].filter((key) => typeof key === "number").sort((a, b) => b - a);
    const rows = [["class", leaf], ...inner.map((key) => [key, name(key)]), ["silent", "no answer"]];
    return rows.map(([key, words]) => [words, (counts.get(key) || 0) / answers.total, key]);
  }

  function draw() {
    find("guarantee-value").textContent = `${guaranteed()}%`;
    slider.setAttribute("aria-valuetext", `${guaranteed()} percent`);
    bars.replaceChildren(...known().map((method) => {
      const answers = place.sure[method][Number(slider.value)], row = make("div", undefined, "sure-row");
      const right = (100 * (1 - answers.wrong / answers.total)).toFixed(1), specific = (100 * answers.specificity).toFixed(0);
      row.append(make("p", `${title(method)}: ${right}% not wrong, ${specific}% specific`));
      const bar = make("div", undefined, "sure-bar");
      levels(answers).forEach(([words, share, key], i) => {
        if (share <= 0) return;
        const part = make("span", share > 0.09 ? `${words} ${Math.round(100 * share)}%` : "", key === "silent" ? "silent" : `step${Math.min(i, 3)}`);
        part.style.flexGrow = String(share);
        part.title = `${words}: ${(100 * share).toFixed(1)}%`;
        bar.append(part);
      });
      const all = levels(answers).filter(([, share]) => share > 0).map(([words, share]) => `${words} ${(100 * share).toFixed(1)}%`).join(", ");
      bar.setAttribute("role", "img");
      bar.setAttribute("aria-label", `Answers stop at: ${all}`);
      const short = levels(answers).filter(([, share]) => share > 0).map(([words, share]) => `${words} ${Math.round(100 * share)}%`).join(", ");
      row.append(bar, make("p", short, "sure-words")); // on a phone, where names do not fit the bar
      return row;
    }));
  }

  function show(here, over, wanted) {
    [place, tree, methods] = [here, over, [...new Set(wanted.filter(Boolean))]];
    box.hidden = !known().length;
    find("show-stops").closest("label").hidden = box.hidden;
    if (box.hidden) { shares = null; find("show-stops").checked = false; return; }
    slider.max = String(place.guarantees.length - 1);
    measure();
    draw();
  }

  slider.addEventListener("input", () => { measure(); draw(); changed(); });
  return { show, stopping: (v) => (shares ? shares[v] : null) };
}
