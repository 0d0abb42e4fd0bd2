"use strict";
// What every page does: where something goes on, look again when the server says that it changed.
(() => {
  const WAIT = 1000; // milliseconds between two looks, however often things change
  const followed = new Map(); // the streams of events, by the ids of the regions that they change
  const asked = new Set(); // the ids of regions that are asked for again

  async function look(id) {
    const here = location.href;
    const from = document.getElementById(id).dataset.from || here;
    await htmx.ajax("GET", from, { target: "#" + id, select: "#" + id, swap: "outerMorph" });
    // Somebody searched meanwhile: what came is not what the address says any more.
    if (location.href !== here && document.getElementById(id)) await look(id);
  }

  function follow(region) {
    const id = region.id;
    const events = new EventSource(region.dataset.live);
    let waiting = 0;
    const changed = () => {
      waiting = 0;
      const current = document.getElementById(id);
      if (!current || !current.dataset.live) {
        followed.delete(id);
        return events.close();
      }
      // Nobody sees it: look once somebody does.
      if (document.hidden) return (waiting = setTimeout(changed, WAIT));
      look(id);
    };
    events.addEventListener("changed", () => {
      if (!waiting) waiting = setTimeout(changed, WAIT);
    });
    followed.set(id, events);
  }

  // What is being computed: ask for it again after so many milliseconds, until it is there.
  function again(region) {
    const id = region.id;
    asked.add(id);
    setTimeout(async () => {
      asked.delete(id);
      const current = document.getElementById(id);
      if (!current || !current.dataset.again) return;
      if (!document.hidden) await look(id);
      watch();
    }, Number(region.dataset.again));
  }

  function watch() {
    for (const region of document.querySelectorAll("[data-again]")) if (!asked.has(region.id)) again(region);
    for (const region of document.querySelectorAll("[data-live]")) if (!followed.has(region.id)) follow(region);
  }

  addEventListener("DOMContentLoaded", watch);
  document.addEventListener("htmx:after:swap", watch);
  addEventListener("pagehide", () => {
    for (const events of followed.values()) events.close();
    followed.clear();
  });
  // Back from another page, as it was left: things went on meanwhile.
  addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    for (const region of document.querySelectorAll("[data-live]")) look(region.id);
    watch();
  });
})();
