"use strict";
const pairs = [...document.querySelectorAll(".pair")];
const field = (name) => document.getElementById(name);
function show() {
  const words = field("words").value.toLowerCase().split(/\s+/).filter(Boolean);
  const subset = field("subset").value, outcome = field("outcome").value;
  let count = 0;
  for (const pair of pairs) {
    const text = words.length ? pair.textContent.toLowerCase() : "";
    const fits = (!subset || pair.dataset.subset === subset)
      && (!outcome || pair.dataset.outcomes.split(" ").includes(outcome))
      && words.every((word) => text.includes(word));
    pair.hidden = !fits;
    count += fits;
  }
  field("count").textContent = `${count} of ${pairs.length} questions`;
}
for (const name of ["words", "subset", "outcome"]) field(name).addEventListener("input", show);
show();
