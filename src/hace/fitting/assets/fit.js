"use strict";
// The slider of the guarantee, and the sunburst of the test samples. Names only ever become text, never markup.

(function () {
  const data = JSON.parse(document.getElementById("fit-data").textContent);
  const find = (id) => document.getElementById(id);
  const percent = (share) => `${Math.round(100 * share)}%`;

  function slide() {
    const slider = find("guarantee"), bar = find("ranks");
    const start = data.curve.findIndex((point) => point.accuracy === 0.95);
    slider.value = String(start < 0 ? data.curve.length - 1 : start);
    function draw() {
      const point = data.curve[Number(slider.value)];
      find("guarantee-value").textContent = percent(1 - point.accuracy);
      slider.setAttribute("aria-valuetext", `at most ${percent(1 - point.accuracy)} wrong`);
      const shares = data.ranks.map((rank) => [rank, point.ranks[rank] || 0]);
      bar.replaceChildren(...shares.filter(([, share]) => share > 0).map(([rank, share]) => {
        const part = document.createElement("span");
        part.className = rank === data.nothing ? "silent" : `step${Math.min(data.ranks.indexOf(rank), 3)}`;
        part.style.flexGrow = String(share);
        const words = `${rank} ${percent(share)}`;
        part.textContent = share * bar.clientWidth > 8 * words.length + 10 ? words : "";
        part.title = `${rank}: ${(100 * share).toFixed(1)}%`;
        return part;
      }));
      const words = shares.map(([rank, share]) => `${rank} ${percent(share)}`).join(", ");
      bar.setAttribute("aria-label", words);
      const unnamed = [...bar.children].some((part) => !part.textContent);
      find("rank-words").textContent = unnamed ? words : "";
      const [share, low, high] = point.false.map((value) => `${(100 * value).toFixed(1)}%`);
      const said = `${share} of ${data.judged} got a false answer [${low}, ${high}].`;
      find("rank-false").textContent = point.kept ? said : `${said} The guarantee is broken.`;
    }
    slider.addEventListener("input", draw);
    draw();
  }

  function sunburst() {
    const tree = data.tree;
    if (!tree) {
      find("sunburst").hidden = true;
      find("no-tree").hidden = false;
      return;
    }
    // From orange over a pale middle to blue.
    const mix = (share) => `color-mix(in srgb, var(--${share < 0.5 ? "orange" : "blue"}) ${Math.round(200 * Math.abs(share - 0.5))}%, var(--middle))`;
    const color = (v) => (data.samples[v] ? mix(data.right[v] / data.samples[v]) : "var(--none)");
    function details(v) {
      if (v < 0) return [];
      const rows = [["test samples", data.samples[v].toLocaleString("en")]];
      if (data.samples[v]) rows.push(["right", percent(data.right[v] / data.samples[v])]);
      const taken = (data.mistakes[v] || []).map(([u, count]) => `${tree.names[u]} (${count})`);
      if (taken.length) rows.push(["taken for", taken.join(", ")]);
      return rows;
    }
    const elements = {};
    for (const id of ["chart", "caption", "search", "found", "crumbs", "warning", "details", "below"]) elements[id] = find(id);
    elements.belowTitle = find("below-title");
    haceSunburst(elements, tree, { color, details, rings: tree.ids.length < 200 ? 4 : 3 });
  }

  if (data.curve.length) slide();
  sunburst();
})();
