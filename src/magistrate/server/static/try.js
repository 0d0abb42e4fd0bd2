"use strict";
// A judgement under way: count its seconds, show its steps as they come, and the verdict when it is there.
(() => {
  const WAIT = 500; // milliseconds between two looks, however often something comes
  const TICK = 100;

  const start = () => {
    const region = document.getElementById("trial");
    if (!region) return;
    const began = performance.now() - 1000 * elapsed().dataset.seconds;
    const events = new EventSource(region.dataset.follow);
    let waiting = 0;

    function elapsed() {
      return document.querySelector("#trial [data-seconds]");
    }

    function tick() {
      const place = elapsed();
      if (place) place.textContent = ((performance.now() - began) / 1000).toFixed(1);
    }

    function look() {
      waiting = 0;
      htmx.ajax("GET", location.href, { target: "#trial", select: "#trial", swap: "outerMorph" });
    }

    events.addEventListener("changed", () => {
      if (!waiting) waiting = setTimeout(look, WAIT);
    });
    events.addEventListener("done", () => {
      clearTimeout(waiting);
      events.close();
      location.reload();
    });
    addEventListener("pagehide", () => events.close());
    setInterval(tick, TICK);
  };

  addEventListener("DOMContentLoaded", start);
})();
