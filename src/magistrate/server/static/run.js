"use strict";
// The page of a run: the two fields of the threshold say the same, and choices are sent as they are made.
(() => {
  const other = { slide: "exact", exact: "slide" };

  document.addEventListener("input", (event) => {
    const twin = document.getElementById(other[event.target.id]);
    if (twin) twin.value = event.target.value;
  });
  document.addEventListener("change", (event) => {
    const form = event.target.closest("form[data-auto]");
    if (form) form.requestSubmit();
  });
  document.documentElement.classList.add("scripted");
})();
