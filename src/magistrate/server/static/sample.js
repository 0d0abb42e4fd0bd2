"use strict";
// One sample: a chosen claim marks its words on both sides and scrolls to them; keys lead on.
(() => {
  const FRAMES = 12; // drawn while a place is kept in sight, as long texts around it are laid out

  const start = () => {
    const evidence = document.getElementById("evidence");
    if (!evidence) return;
    const panes = evidence.querySelectorAll(".pane");
    let turns = 0;
    const links = [...evidence.querySelectorAll("a[data-claim]")];
    const linkOf = (number) => links.find((link) => link.dataset.claim === String(number));

    function choose(number) {
      const link = number && linkOf(number);
      for (const each of links) {
        each.toggleAttribute("aria-current", false);
        each.parentElement.classList.toggle("chosen", each === link);
      }
      for (const mark of evidence.querySelectorAll("mark.chosen")) mark.classList.remove("chosen");
      if (!link) {
        delete evidence.dataset.chosen;
        delete evidence.dataset.kind;
        if (links.length) history.replaceState(null, "", document.getElementById("claims").dataset.none);
        return;
      }
      link.setAttribute("aria-current", "true");
      evidence.dataset.chosen = number;
      evidence.dataset.kind = link.dataset.kind;
      history.replaceState(null, "", link.href.split("#")[0]);
      for (const mark of evidence.querySelectorAll(`mark[data-claims~="${number}"]`)) mark.classList.add("chosen");
      show(link);
    }

    function show(link) {
      const list = document.getElementById("claims");
      reveal(list, link.parentElement, 0);
      turns += 1;
      for (const pane of panes) bring(pane, FRAMES, turns);
    }

    // What was not laid out yet has a guessed height, so the place moves for some frames once it comes near.
    function bring(pane, frames, turn) {
      const mark = turn === turns && pane.querySelector("mark.chosen");
      if (!mark) return;
      reveal(pane, mark, 0.3);
      if (frames) requestAnimationFrame(() => bring(pane, frames - 1, turn));
    }

    function reveal(area, element, share) {
      const around = area.getBoundingClientRect();
      const place = element.getClientRects()[0] || element.getBoundingClientRect();
      if (place.top >= around.top && place.bottom <= around.bottom) return;
      area.scrollTop += place.top - around.top - share * area.clientHeight;
    }

    evidence.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
      const link = event.target.closest("[data-claim]");
      if (link) {
        event.preventDefault();
        choose(link.getAttribute("aria-current") ? null : link.dataset.claim);
        return;
      }
      const mark = event.target.closest("mark[data-claims]");
      if (!mark || String(getSelection())) return;
      // Where quotes overlap, one after the other.
      const claims = mark.dataset.claims.split(" ");
      choose(claims[(claims.indexOf(evidence.dataset.chosen) + 1) % claims.length]);
    });

    function typing(target) {
      return target.closest("input, select, textarea, [contenteditable]");
    }

    function follow(selector) {
      const link = document.querySelector(selector);
      if (link) link.click();
      return Boolean(link);
    }

    function among(target, step) {
      const at = links.indexOf(target.closest("[data-claim]"));
      const next = at < 0 ? null : links[at + step];
      if (!next) return false;
      next.focus({ preventScroll: true });
      choose(next.dataset.claim);
      return true;
    }

    const keys = {
      j: () => follow("a[rel=next]"),
      k: () => follow("a[rel=prev]"),
      u: () => follow("#up"),
      ArrowRight: () => follow("a[rel=next]"),
      ArrowLeft: () => follow("a[rel=prev]"),
      ArrowDown: (event) => among(event.target, 1),
      ArrowUp: (event) => among(event.target, -1),
      Escape: () => evidence.dataset.chosen && (choose(null), true),
    };

    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || event.defaultPrevented) return;
      if (typing(event.target)) return;
      const link = /^[1-9]$/.test(event.key) && linkOf(event.key);
      const done = link ? (choose(link.dataset.claim), true) : keys[event.key] && keys[event.key](event);
      if (done) event.preventDefault();
    });

    for (const hint of document.querySelectorAll(".keys")) hint.hidden = false;
    const asked = evidence.dataset.chosen && linkOf(evidence.dataset.chosen);
    if (asked) show(asked);
  };

  addEventListener("DOMContentLoaded", start);
})();
