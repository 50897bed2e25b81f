"use strict";
// A link to something inside a folded table opens it; paper has no folds.
const reveal = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const fold = target && target.closest("details");
  if (fold) { fold.open = true; target.scrollIntoView(); }
};
window.addEventListener("hashchange", reveal);
window.addEventListener("beforeprint", () => { for (const fold of document.querySelectorAll("#tables details")) fold.open = true; });
reveal();
