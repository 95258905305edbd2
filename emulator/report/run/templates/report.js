"use strict";
window.addEventListener("DOMContentLoaded", async () => {
  const views = [];
  const source = document.getElementById("specs");
  const specs = source ? JSON.parse(source.textContent) : {};
  const chooser = document.getElementById("row");
  const show = async () => {
    if (!chooser) return;
    const row = Number(chooser.value);
    for (const part of document.querySelectorAll("[data-row]")) {
      part.hidden = Number(part.dataset.row) !== row;
    }
    await Promise.all(views.map((view) => view.signal("row", row).runAsync()));
  };
  for (const [name, spec] of Object.entries(specs)) {
    const place = document.getElementById("plot-" + name);
    spec.params[0].value = chooser ? Number(chooser.value) : 0;
    try {
      const drawn = await window.vegaEmbed(place, spec, {
        renderer: "svg", ast: true, defaultStyle: false,
        actions: false, downloadFileName: name,
      });
      views.push(drawn.view);
    } catch (error) {
      place.textContent = "This figure could not be drawn (" + error.message + ").";
      place.classList.add("reason");
    }
  }
  if (chooser) chooser.addEventListener("change", show);
  await show();
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.querySelectorAll("tr.headings th")];
    heads.forEach((head, column) => head.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const body = table.tBodies[0];
      const key = (line) => line.cells[column].textContent;
      const compare = (a, b) => key(a).localeCompare(key(b), undefined, { numeric: true });
      const number = (line) => parseFloat(key(line));
      const lines = [...body.rows];
      const numeric = lines.every((line) => key(line) === "n/a" || key(line) === "" ||
        !Number.isNaN(Number(key(line))));
      lines.sort((a, b) => {
        if (!numeric) return up ? compare(a, b) : compare(b, a);
        const [x, y] = [number(a), number(b)];
        if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
        return up ? x - y : y - x;
      });
      body.append(...lines);
    }));
  }
  document.documentElement.dataset.drawn = String(views.length);
});
