"use strict";
// The parts of the page that change: switches, what is folded, and the drawing.

// A switch shows one of its parts.
for (const box of document.querySelectorAll(".switch")) {
  const chooser = box.querySelector("select"), parts = [...box.children].filter((part) => part.dataset.option !== undefined);
  chooser.addEventListener("change", () => { for (const part of parts) part.hidden = part.dataset.option !== chooser.value; });
}
// A link into something folded opens it.
function unfold() {
  const target = location.hash.startsWith("#") && document.getElementById(haceDecoded(location.hash.slice(1)));
  for (let box = target && target.closest("details"); box; box = box.parentElement && box.parentElement.closest("details")) box.open = true;
}
window.addEventListener("hashchange", unfold);
// Paper has what it takes to reproduce the study.
const about = document.getElementById("about");
let wasOpen = false;
window.addEventListener("beforeprint", () => { wasOpen = about.open; about.open = true; });
window.addEventListener("afterprint", () => { about.open = wasOpen; });
unfold();
haceExplore(JSON.parse(document.getElementById("report-data").textContent));
