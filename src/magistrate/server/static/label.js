"use strict";
// One item of a label queue: keys label, the mouse marks words, and the next item is there before it is wanted.
(() => {
  const told = (words) => {
    document.getElementById("told").textContent = words;
  };
  let next = null; // the page of the item that comes after this one, being fetched or fetched
  let busy = false; // something is being stored
  let page = null; // what is shown: see `begin`

  // --- words and offsets: the server counts code points, the browser UTF-16 units ------------------

  const points = (text, units) => Array.from(text.slice(0, units)).length;
  function unitsOf(text) {
    const found = [];
    let at = 0;
    for (const letter of text) {
      found.push(at);
      at += letter.length;
    }
    found.push(at);
    return found;
  }

  // Where words begin and end, `[start, end)` in UTF-16 units; also in scripts without blanks.
  function wordsOf(text) {
    if (!window.Intl || !Intl.Segmenter) {
      return [...text.matchAll(/[\p{L}\p{M}\p{N}_]+|[^\s\p{L}\p{M}\p{N}_]/gu)].map((m) => [m.index, m.index + m[0].length]);
    }
    const parts = new Intl.Segmenter(undefined, { granularity: "word" }).segment(text);
    return [...parts].filter((each) => each.segment.trim()).map((each) => [each.index, each.index + each.segment.length]);
  }

  // The words that a stretch touches, from the beginning of the first to the end of the last.
  function snapped(words, start, end) {
    const touched = words.filter(([from, to]) => from < end && to > start);
    return touched.length ? [touched[0][0], touched[touched.length - 1][1]] : null;
  }

  function selectedIn(element) {
    const selection = getSelection();
    if (!selection.rangeCount || selection.isCollapsed) return null;
    const range = selection.getRangeAt(0);
    if (!element.contains(range.startContainer) || !element.contains(range.endContainer)) return null;
    const before = document.createRange();
    before.selectNodeContents(element);
    before.setEnd(range.startContainer, range.startOffset);
    const start = before.toString().length;
    return [start, start + range.toString().length];
  }

  // --- one item -------------------------------------------------------------------------------------

  function begin(root) {
    const form = root.querySelector("#answer");
    const output = root.querySelector("#output-text");
    const list = root.querySelector("#spans");
    const kinds = [...root.querySelectorAll("#kinds input")];
    const text = output.textContent;
    const words = wordsOf(text);
    const units = unitsOf(text);
    const shown = { root, form, spans: [], chosen: -1, began: performance.now() };

    // Marked words are kept in UTF-16 units here.
    const sent = form.elements.spans.value ? JSON.parse(form.elements.spans.value) : [];
    shown.spans = sent.map(([start, end, kind]) => ({ start: units[start], end: units[end], kind }));

    const lookOf = (kind) => (kinds.find((each) => each.value === kind) || { dataset: { look: "gold" } }).dataset.look;
    const kindNow = () => (kinds.find((each) => each.checked) || kinds[0]).value;
    const label = () => form.elements.label.value;
    const check = (value) => {
      form.querySelector(`input[name=label][value=${value}]`).checked = true;
    };

    function draw() {
      shown.spans.sort((a, b) => a.start - b.start || a.end - b.end);
      output.replaceChildren();
      let at = 0;
      shown.spans.forEach((span, number) => {
        const from = Math.max(span.start, at);
        if (from > at) output.append(text.slice(at, from));
        if (span.end <= from) return;
        const mark = document.createElement("mark");
        mark.className = lookOf(span.kind) + (number === shown.chosen ? " chosen" : "");
        mark.dataset.number = number;
        mark.title = span.kind;
        mark.textContent = text.slice(from, span.end);
        output.append(mark);
        at = span.end;
      });
      output.append(text.slice(at));
      list.hidden = !shown.spans.length;
      list.replaceChildren(...shown.spans.map(line));
      const kept = shown.spans.map((span) => [points(text, span.start), points(text, span.end), span.kind]);
      form.elements.spans.value = kept.length ? JSON.stringify(kept) : "";
    }

    function line(span, number) {
      const item = document.createElement("li");
      const pick = document.createElement("button");
      pick.type = "button";
      pick.className = "marked-words";
      pick.setAttribute("aria-pressed", String(number === shown.chosen));
      const mark = document.createElement("mark");
      mark.className = lookOf(span.kind);
      mark.textContent = text.slice(span.start, span.end);
      const kind = document.createElement("small");
      kind.textContent = ` ${span.kind.replaceAll("_", " ")}`;
      pick.append(mark, kind);
      pick.addEventListener("click", () => choose(number));
      const remove = document.createElement("button");
      remove.type = "button";
      remove.textContent = "Remove";
      remove.setAttribute("aria-label", `Remove ${text.slice(span.start, span.end)}`);
      remove.addEventListener("click", () => drop(number));
      item.append(pick, remove);
      return item;
    }

    function choose(number) {
      shown.chosen = shown.chosen === number ? -1 : number;
      const span = shown.spans[shown.chosen];
      const kind = span && kinds.find((each) => each.value === span.kind);
      if (kind) kind.checked = true;
      draw();
    }

    function drop(number) {
      const [gone] = shown.spans.splice(number, 1);
      shown.chosen = -1;
      draw();
      if (gone) told(`Removed: ${text.slice(gone.start, gone.end)}`);
      return Boolean(gone);
    }

    function add(stretch) {
      const found = stretch && snapped(words, ...stretch);
      if (!found) return;
      const [start, end] = found;
      const kind = kindNow();
      // What it overlaps becomes part of it: no character is marked twice.
      const apart = shown.spans.filter((each) => each.end <= start || each.start >= end);
      const over = shown.spans.filter((each) => !(each.end <= start || each.start >= end));
      const span = { start: Math.min(start, ...over.map((each) => each.start)), end: Math.max(end, ...over.map((each) => each.end)), kind };
      shown.spans = [...apart, span];
      shown.spans.sort((a, b) => a.start - b.start);
      shown.chosen = shown.spans.indexOf(span);
      if (label() === "" || label() === "faithful") check("hallucinated");
      getSelection().removeAllRanges();
      draw();
      told(`Marked as ${kind.replaceAll("_", " ")}: ${text.slice(span.start, span.end)}`);
    }

    function ofKind(number) {
      const kind = kinds[number - 1];
      if (!kind) return false;
      kind.checked = true;
      const span = shown.spans[shown.chosen];
      if (span) {
        span.kind = kind.value;
        draw();
      }
      return true;
    }

    function resize(step) {
      const span = shown.spans[shown.chosen];
      if (!span) return false;
      const after = shown.spans[shown.chosen + 1];
      const ends = words.map(([, end]) => end).filter((end) => end > span.start && (!after || end <= after.start));
      const at = ends.indexOf(span.end);
      const end = ends[(at < 0 ? ends.findIndex((each) => each > span.end) : at) + step];
      if (end === undefined) return true;
      span.end = end;
      draw();
      return true;
    }

    // --- the quote -----------------------------------------------------------------------------------

    const sources = [...root.querySelectorAll("[data-source]")];
    const quoted = root.querySelector("#quoted");
    function showQuote() {
      const given = form.elements.quote.value;
      quoted.hidden = !given;
      if (!given) return;
      const [source, start, end] = JSON.parse(given);
      quoted.querySelector("q").textContent = Array.from(sources[source].textContent).slice(start, end).join("");
    }
    function quote() {
      for (const source of sources) {
        const stretch = selectedIn(source);
        if (!stretch) continue;
        const found = snapped(wordsOf(source.textContent), ...stretch) || stretch;
        const [start, end] = found.map((each) => points(source.textContent, each));
        form.elements.quote.value = JSON.stringify([Number(source.dataset.source), start, end]);
        showQuote();
        told("The quote is stored.");
        return true;
      }
      return false;
    }
    root.querySelector("#unquote").addEventListener("click", () => {
      form.elements.quote.value = "";
      showQuote();
    });

    // --- search in the context -----------------------------------------------------------------------

    const field = root.querySelector("#find");
    const count = root.querySelector("#found");
    let hits = [];
    let hit = -1;
    function find() {
      const wanted = field.value.toLowerCase();
      hits = [];
      hit = -1;
      for (const source of wanted ? sources : []) {
        const walker = document.createTreeWalker(source, NodeFilter.SHOW_TEXT);
        for (let node = walker.nextNode(); node; node = walker.nextNode()) {
          const here = node.data.toLowerCase();
          for (let at = here.indexOf(wanted); at >= 0 && hits.length < 1000; at = here.indexOf(wanted, at + wanted.length)) {
            if (at + wanted.length > node.data.length) break;
            const range = document.createRange();
            range.setStart(node, at);
            range.setEnd(node, at + wanted.length);
            hits.push(range);
          }
        }
      }
      count.textContent = !wanted ? "" : hits.length === 1 ? "1 place" : `${hits.length} places`;
      if (hits.length) step();
      else paint();
    }
    function step() {
      hit = (hit + 1) % hits.length;
      paint();
      const pane = root.querySelector("#context");
      const place = hits[hit].getBoundingClientRect();
      const around = pane.getBoundingClientRect();
      pane.scrollTop += place.top - around.top - pane.clientHeight / 3;
    }
    function paint() {
      if (!window.CSS || !CSS.highlights) return;
      CSS.highlights.set("label-find", new Highlight(...hits));
      CSS.highlights.set("label-found", new Highlight(...(hit < 0 ? [] : [hits[hit]])));
    }
    field.addEventListener("input", find);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") field.blur();
      if (event.key !== "Enter") return;
      event.preventDefault();
      if (hits.length) step();
    });

    // --- events --------------------------------------------------------------------------------------

    const button = root.querySelector("#mark");
    button.addEventListener("mousedown", (event) => event.preventDefault()); // what is selected stays so
    button.addEventListener("click", () => mark());
    function mark() {
      const stretch = selectedIn(output);
      if (stretch) add(stretch);
      return Boolean(stretch);
    }
    output.addEventListener("click", (event) => {
      const mark = event.target.closest("mark");
      if (mark && getSelection().isCollapsed) choose(Number(mark.dataset.number));
    });
    for (const kind of kinds) kind.addEventListener("change", () => ofKind(kinds.indexOf(kind) + 1));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      save();
    });
    form.elements.note.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save();
    });
    const comment = root.querySelector("#comment-text");
    if (comment) {
      comment.addEventListener("keydown", (event) => {
        if (event.key === "Escape") comment.blur();
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) comment.form.requestSubmit();
      });
    }
    for (const each of root.querySelectorAll("#mark, .find, .answer kbd, .comment kbd, #help")) each.hidden = false;
    if (!sources.length) root.querySelector(".find").hidden = true;
    draw();
    showQuote();
    return Object.assign(shown, { mark, check, label, ofKind, resize, quote, drop, focusFind: () => field.focus(), comment });
  }

  // --- to the server and on ---------------------------------------------------------------------------

  async function fetchPage(address) {
    const reply = await fetch(address, { headers: { accept: "text/html" } });
    if (!reply.ok) throw new Error(`the server answered ${reply.status}`);
    const parsed = new DOMParser().parseFromString(await reply.text(), "text/html");
    return { address: reply.url, title: parsed.title, root: parsed.getElementById("label") };
  }

  function prefetch() {
    const { next: address, number } = page.root.dataset;
    const fetched = fetchPage(`${address}?but=${number}`);
    fetched.catch(() => {}); // it is asked for again where it is wanted
    next = fetched;
  }

  function show(found) {
    if (!found.root) {
      location.assign(found.address);
      return;
    }
    const root = document.importNode(found.root, true);
    page.root.replaceWith(root);
    document.title = found.title;
    history.pushState(null, "", found.address);
    page = begin(root);
    scrollTo(0, 0);
    root.querySelector("h1").focus({ preventScroll: true });
    prefetch();
  }

  // The next page was made before this label was stored.
  function tell(said) {
    const place = page.root.querySelector("#standing");
    if (place) place.textContent = said.standing;
    const figure = page.root.querySelector("#figure");
    figure.hidden = !said.figure;
    figure.textContent = said.figure ? `So far: ${said.figure}` : "";
  }

  function refuse(words) {
    const place = page.root.querySelector("#refused");
    place.textContent = words;
    place.hidden = false;
    place.scrollIntoView({ block: "nearest" });
  }

  async function store({ form, began }) {
    form.elements.seconds.value = ((performance.now() - began) / 1000).toFixed(1);
    try {
      const reply = await fetch(form.action, {
        method: "POST",
        body: new URLSearchParams(new FormData(form)),
        headers: { accept: "application/json" },
      });
      const said = await reply.json().catch(() => ({}));
      return reply.ok ? said : { refused: said.detail || `It was not stored: the server answered ${reply.status}.` };
    } catch {
      return { refused: "It was not stored: the server does not answer. Try again." };
    }
  }

  // Nothing goes on before the label is stored.
  async function save() {
    const { form, root } = page;
    if (busy || !form.reportValidity()) return;
    busy = true;
    const said = await store(page);
    if (said.refused) {
      refuse(said.refused);
    } else {
      try {
        const found = await next.catch(() => fetchPage(root.dataset.next));
        show(found);
        tell(said);
        told(`Saved: ${said.label}. ${found.title}`);
      } catch (error) {
        console.error(error);
        location.assign(root.dataset.next); // it is stored; the next page comes as without this script
      }
    }
    busy = false;
  }

  function at(label) {
    page.check(label);
    save();
    return true;
  }

  function follow(selector) {
    const link = page.root.querySelector(selector);
    if (link) link.click();
    return Boolean(link);
  }

  const keys = {
    f: () => at("faithful"),
    u: () => at("unsure"),
    s: () => at("skip"),
    h: () => (page.label() === "hallucinated" ? at("hallucinated") : (page.check("hallucinated"), true)),
    Enter: (event) => !event.target.closest("a, button, summary, input") && (save(), true),
    z: () => (page.root.querySelector("#undo").requestSubmit(), true),
    j: () => follow("a[rel=next]"),
    k: () => follow("a[rel=prev]"),
    c: () => page.comment && (page.comment.focus(), true),
    e: () => follow("#reveal"),
    q: () => page.quote(),
    m: () => page.mark(),
    x: () => page.drop(page.chosen),
    "[": () => page.resize(-1),
    "]": () => page.resize(1),
    "/": () => (page.focusFind(), true),
    "?": () => {
      const help = page.root.querySelector("#help");
      help.open = !help.open;
      if (help.open) help.scrollIntoView({ block: "nearest" });
      return true;
    },
  };

  document.addEventListener("keydown", (event) => {
    if (!page || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || event.isComposing) return;
    const field = event.target.closest("input, select, textarea, [contenteditable]");
    if (field && field.type !== "radio") return;
    if (event.repeat) return;
    const done = /^[1-9]$/.test(event.key) ? page.ofKind(Number(event.key)) : keys[event.key] && keys[event.key](event);
    if (done) event.preventDefault();
  });

  document.addEventListener("mouseup", () => setTimeout(() => page && page.mark(), 0));
  // Back and forth among items that were shown without loading a page.
  addEventListener("popstate", () => location.reload());
  addEventListener("DOMContentLoaded", () => {
    const root = document.getElementById("label");
    if (!root) return;
    page = begin(root);
    prefetch();
  });
})();
