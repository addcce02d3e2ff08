"use strict";
// An option that is clicked, touched or set by a program is chosen at once. The arrow keys only move through the
// options, since every choice is an action of its own; Enter, the space bar or the button "Choose" chooses.
let byArrow = false;
const forget = () => { byArrow = false; };
document.documentElement.classList.add("js");
document.addEventListener("keydown", (event) => { byArrow = event.key.startsWith("Arrow"); }, true);
document.addEventListener("keyup", forget, true);
document.addEventListener("pointerdown", forget, true);
document.addEventListener("change", (event) => {
  if (!byArrow && event.target.matches("input[type=radio]")) {
    event.target.form.requestSubmit();
  }
});
