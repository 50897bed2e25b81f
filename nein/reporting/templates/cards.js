"use strict";
// Filters the cards by words in their text and by the entries of their facets.
const cards = [...document.querySelectorAll(".sample")].map((node) => ({ node, facets: JSON.parse(node.dataset.facets) }));
const words = document.getElementById("words"), selects = [...document.querySelectorAll("[data-facet]")];
function show() {
  const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const { node, facets } of cards) {
    const text = wanted.length ? node.textContent.toLowerCase() : "";
    const fits = wanted.every((word) => text.includes(word))
      && selects.every((select) => !select.value || (facets[select.dataset.facet] || []).includes(select.value));
    node.hidden = !fits;
    count += fits;
  }
  document.getElementById("count").textContent = `${count} of ${cards.length} samples`;
}
for (const field of [words, ...selects]) field.addEventListener("input", show);
show();
