"use strict";
(() => {
  const list = document.getElementById("rows");
  const form = document.getElementById("filter");
  if (!list || !form) return;
  const rows = Array.from(list.children);
  const count = document.getElementById("count");
  const none = document.getElementById("none");
  const heads = Array.from(document.querySelectorAll("#heads button"));
  const words = new Map();
  const chosen = ["judge", "judged", "gold", "right"];
  let sorted = null;
  let waiting = 0;

  const text = (row) => {
    if (!words.has(row)) words.set(row, (row.dataset.id + " " + row.textContent).toLowerCase());
    return words.get(row);
  };
  const value = (name) => (form.elements[name] ? form.elements[name].value : "");
  const bound = (name, otherwise) => {
    const number = parseFloat(value(name));
    return Number.isFinite(number) ? number : otherwise;
  };

  function filter() {
    const wanted = value("words").toLowerCase().split(/\s+/).filter(Boolean);
    const least = bound("least", -Infinity);
    const most = bound("most", Infinity);
    const scored = least !== -Infinity || most !== Infinity;
    let shown = 0;
    for (const row of rows) {
      const score = parseFloat(row.dataset.score);
      const fits =
        chosen.every((name) => !value(name) || row.dataset[name] === value(name)) &&
        (!scored || (score >= least && score <= most)) &&
        wanted.every((word) => text(row).includes(word));
      row.hidden = !fits;
      if (fits) shown += 1;
    }
    count.textContent = shown.toLocaleString("en") + " of " + rows.length.toLocaleString("en") + " shown";
    none.hidden = shown > 0;
  }

  function key(row, name) {
    if (name === "score") return row.dataset.score === undefined ? null : parseFloat(row.dataset.score);
    return row.dataset[name];
  }

  function sort(name) {
    const step = sorted && sorted.name === name ? sorted.step + 1 : 0;
    // First the way that is asked for most, then the other way round, then as it was.
    const ways = name === "score" ? [-1, 1, 0] : [1, -1, 0];
    const way = ways[step % 3];
    sorted = { name, step };
    const compare = (a, b) => {
      const x = key(a, name), y = key(b, name);
      if (x === null || y === null) return (x === null) - (y === null);
      if (typeof x === "number") return way * (x - y);
      return way * x.localeCompare(y, "en", { numeric: true });
    };
    const order = (a, b) => a.dataset.order - b.dataset.order;
    list.append(...rows.slice().sort((a, b) => (way && compare(a, b)) || order(a, b)));
    for (const head of heads) {
      const own = way && head.dataset.sort === name;
      head.setAttribute("aria-pressed", String(Boolean(own)));
      head.dataset.way = own ? (way > 0 ? "up" : "down") : "";
    }
  }

  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, 120);
  });
  form.addEventListener("reset", () => setTimeout(filter));
  for (const head of heads) {
    head.disabled = false;
    head.addEventListener("click", () => sort(head.dataset.sort));
  }
  // A quote far down in a long context comes into view when its line is opened.
  list.addEventListener("toggle", (event) => {
    const box = event.target.open && event.target.querySelector(".sources");
    const mark = box && box.querySelector("mark[data-claims]");
    if (mark) box.scrollTop = Math.max(0, mark.offsetTop - box.offsetTop - box.clientHeight / 3);
  }, true);
  filter();
})();
