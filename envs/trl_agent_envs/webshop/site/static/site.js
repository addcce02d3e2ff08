"use strict";
// An option that is clicked, touched or set by a program is chosen at once. The arrow keys only move through the
// options, since every choice is an action of its own; Enter, the space bar or the button "Choose" chooses. Who leaves
// the options without that sees again what is chosen.
let byArrow = false;
const page = document.documentElement.classList;
page.add("js");
document.addEventListener("keydown", (event) => {
  byArrow = event.key.startsWith("Arrow");
  page.add("keys");
}, true);
document.addEventListener("keyup", () => { byArrow = false; }, true);
document.addEventListener("pointerdown", () => {
  byArrow = false;
  page.remove("keys");
}, true);
document.addEventListener("change", (event) => {
  if (!byArrow && event.target.matches("input[type=radio]")) {
    event.target.form.requestSubmit();
  }
});
document.addEventListener("focusout", (event) => {
  if (event.target.matches("input[type=radio], .choose") && !event.target.form.contains(event.relatedTarget)) {
    event.target.form.reset();
  }
});
