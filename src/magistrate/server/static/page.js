"use strict";
// What every page does: where something goes on, look again when the server says that it changed.
(() => {
  const WAIT = 1000; // milliseconds between two looks, however often things change

  function follow(region) {
    const events = new EventSource(region.dataset.live);
    let waiting = 0;
    const look = () => {
      waiting = 0;
      const current = document.getElementById(region.id);
      if (!current || !current.dataset.live) return events.close();
      // What somebody types or has chosen must not be replaced under their hands.
      if (document.hidden) return (waiting = setTimeout(look, WAIT));
      htmx.ajax("GET", location.href, { target: "#" + region.id, select: "#" + region.id, swap: "outerMorph" });
    };
    events.addEventListener("changed", () => {
      if (!waiting) waiting = setTimeout(look, WAIT);
    });
    addEventListener("pagehide", () => events.close());
  }

  // What is being worked out: ask for it again after so many milliseconds, until it is there.
  function again(region) {
    setTimeout(async () => {
      const current = document.getElementById(region.id);
      if (!current || !current.dataset.again) return;
      if (!document.hidden) {
        const target = "#" + region.id;
        await htmx.ajax("GET", current.dataset.from || location.href, { target, select: target, swap: "outerMorph" });
      }
      again(region);
    }, Number(region.dataset.again));
  }

  addEventListener("DOMContentLoaded", () => {
    for (const region of document.querySelectorAll("[data-again]")) again(region);
    for (const region of document.querySelectorAll("[data-live]")) follow(region);
  });
})();
