"use strict";
(function () {
  const facts = JSON.parse(document.getElementById("facts").textContent);
  const place = "nein-negvqa-check-" + facts.sheet;
  const byId = (name) => document.getElementById(name);
  const items = [...document.querySelectorAll(".item")];
  const say = (text) => { byId("message").textContent = text; };
  let marks = {};
  let keeps = true;

  function read(item) {
    const ticked = item.querySelector("input[type=radio]:checked");
    const note = item.querySelector(".text").value.trim();
    if (!ticked && !note) return null;
    const value = ticked ? ticked.value : null;
    return {
      verdict: value === null ? null : value === "right" ? "right" : "wrong",
      error: value === null || value === "right" ? null : value,
      note: note,
    };
  }

  function show(item, mark) {
    const wanted = mark && mark.verdict ? (mark.verdict === "right" ? "right" : mark.error) : null;
    for (const radio of item.querySelectorAll("input[type=radio]")) radio.checked = radio.value === wanted;
    item.querySelector(".text").value = mark && mark.note ? mark.note : "";
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
    for (const item of items) {
      const mark = marks[item.dataset.id];
      const state = mark && mark.verdict ? mark.verdict : "open";
      item.dataset.state = state;
      ticked += state !== "open";
      right += state === "right";
      item.hidden = byId("open-only").checked && state !== "open";
    }
    byId("progress").textContent = ticked + " of " + items.length + " ticked, " + right + " right";
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
    for (const item of items) show(item, marks[item.dataset.id]);
    update();
  }

  document.querySelector("main").addEventListener("input", (event) => {
    const item = event.target.closest(".item");
    const mark = read(item);
    if (mark) marks[item.dataset.id] = mark; else delete marks[item.dataset.id];
    update();
    keep();
  });
  byId("who").addEventListener("input", keep);
  byId("open-only").addEventListener("input", update);

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
  document.documentElement.dataset.ready = "yes";
})();
