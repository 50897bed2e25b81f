
// The ticks: a form in every card, kept by the browser and taken away as a file.
(() => {
  const facts = JSON.parse(document.getElementById("facts").textContent);
  const place = "nein-negvqa-check-" + facts.sheet;
  const byId = (name) => document.getElementById(name);
  const cards = new Map(); // id -> the card that is drawn
  const say = (text) => { byId("message").textContent = text; };
  let marks = {};
  let keeps = true;

  function read(card) {
    const ticked = card.querySelector("input[type=radio]:checked");
    const note = card.querySelector(".words").value.trim();
    if (!ticked && !note) return null;
    const value = ticked ? ticked.value : null;
    return {
      verdict: value === null ? null : value === "right" ? "right" : "wrong",
      error: value === null || value === "right" ? null : value,
      note: note,
    };
  }

  const stateOf = (id) => (marks[id] && marks[id].verdict) || "open";

  function show(card, id) {
    const mark = marks[id];
    const wanted = mark && mark.verdict ? (mark.verdict === "right" ? "right" : mark.error) : null;
    for (const radio of card.querySelectorAll("input[type=radio]")) radio.checked = radio.value === wanted;
    card.querySelector(".words").value = mark && mark.note ? mark.note : "";
    card.dataset.state = stateOf(id);
  }

  function result() {
    const ticks = {};
    for (const id of facts.ids) ticks[id] = marks[id] || { verdict: null, error: null, note: "" };
    return {
      format: facts.format, sheet: facts.sheet, population: facts.population, negator: facts.negator,
      checker: byId("who").value.trim(), items: ticks,
    };
  }

  function update() {
    let ticked = 0, right = 0;
    for (const id of facts.ids) {
      const state = stateOf(id);
      if (cards.has(id)) cards.get(id).dataset.state = state;
      ticked += state !== "open";
      right += state === "right";
    }
    byId("progress").textContent = ticked + " of " + facts.ids.length + " ticked, " + right + " right";
  }

  function keep() {
    try {
      localStorage.setItem(place, JSON.stringify(result()));
    } catch (error) {
      if (keeps) say("This browser does not keep ticks for files; export them before you close the page.");
      keeps = false;
    }
  }

  function take(found) {
    marks = {};
    for (const id of facts.ids) {
      const mark = found.items && found.items[id];
      if (mark && (mark.verdict || mark.note)) marks[id] = mark;
    }
    byId("who").value = found.checker || "";
    for (const [id, card] of cards) show(card, id);
    update();
  }

  browser.onCard((card, id) => {
    const form = byId("form").content.cloneNode(true);
    for (const radio of form.querySelectorAll("input[type=radio]")) radio.name = "verdict-" + id;
    card.append(form);
    cards.set(id, card);
    show(card, id);
    card.querySelector("fieldset").addEventListener("input", () => {
      const mark = read(card);
      if (mark) marks[id] = mark; else delete marks[id];
      update();
      keep();
    });
  });
  browser.only((id) => !byId("open-only").checked || stateOf(id) === "open");
  byId("who").addEventListener("input", keep);
  byId("open-only").addEventListener("input", () => browser.render());

  byId("export").addEventListener("click", () => {
    const text = JSON.stringify(result(), null, 1) + "\n";
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    link.download = "check-" + facts.sheet + ".json";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    say("Exported. Read it with: nein negvqa check " + link.download);
  });

  byId("load").addEventListener("change", async (event) => {
    const file = event.target.files[0];
    event.target.value = "";
    if (!file) return;
    try {
      const found = JSON.parse(await file.text());
      if (found.format !== facts.format || found.sheet !== facts.sheet) {
        say("This file belongs to another sheet; nothing was changed.");
        return;
      }
      take(found);
      keep();
      say("Loaded " + file.name + ".");
    } catch (error) {
      say("This file is no exported check; nothing was changed.");
    }
  });

  let sure = 0;
  byId("clear").addEventListener("click", () => {
    if (Date.now() - sure > 4000) {
      sure = Date.now();
      say("Press again to clear all ticks of this sheet.");
      return;
    }
    sure = 0;
    take({ items: {}, checker: byId("who").value });
    keep();
    say("Cleared.");
  });

  let kept = null;
  try {
    kept = JSON.parse(localStorage.getItem(place));
  } catch (error) {
    kept = null;
  }
  take(kept || { items: {} });
})();
