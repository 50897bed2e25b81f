
// One item at a time: its answers are kept by the browser and saved as a file. Texts become nodes, never markup.
(() => {
  const $ = (id) => document.getElementById(id);
  const { sheet, questions, items } = JSON.parse($("facts").textContent);
  const place = "nein-labels-" + sheet;
  const columns = ["sheet", "items", "rater", "item", ...questions.map((q) => q.key), "seconds", "note"];
  let marks = {}, at = 0, since = Date.now(), keeps = true; // marks: item -> { answers, seconds, note }

  const say = (text) => { $("message").textContent = text; };
  const mark = (id) => (marks[id] ||= { answers: {}, seconds: 0, note: "" });
  const whole = (id) => questions.every((q) => marks[id] && marks[id].answers[q.key]);
  function element(tag, properties, ...children) {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  }

  function keep() {
    try {
      localStorage.setItem(place, JSON.stringify({ who: $("who").value, marks, at }));
    } catch (error) {
      if (keeps) say("This browser does not keep labels for files: save them before you close the page.");
      keeps = false;
    }
  }
  function clock() { // seconds on the item that is open; a pause counts as five minutes at most
    mark(items[at].id).seconds += Math.min(300, (Date.now() - since) / 1000);
    since = Date.now();
  }
  function update() {
    const done = items.filter((item) => whole(item.id)).length;
    $("bar").max = items.length;
    $("bar").value = done;
    $("progress").textContent = done + " of " + items.length + " labelled";
    if (done === items.length) say("Everything is labelled: save the file and hand it back.");
  }

  function show() {
    const item = items[at], said = mark(item.id).answers;
    const views = element("div", { className: "views" }, ...item.pictures.map(([name, thumb]) => {
      const node = typeof thumb === "string" ? element("img", { alt: name, src: thumb })
        : element("div", { className: "missing" }, thumb.none);
      node.addEventListener("load", () => node.classList.toggle("coarse", node.naturalWidth < 256));
      node.addEventListener("click", enlarge);
      return element("figure", {}, node, element("figcaption", {}, name));
    }));
    const cells = (tag, texts) => element("tr", {}, ...texts.map((text) => element(tag, {}, text)));
    const table = item.rows.length ? [element("div", { className: "scroll" }, element("table", {},
      element("thead", {}, cells("th", item.heads)), element("tbody", {}, ...item.rows.map((row) => cells("td", row)))))] : [];
    let key = 0;
    const forms = questions.map((q) => element("fieldset", {}, element("legend", {}, q.text), ...q.answers.map(([value, text]) => {
      const button = element("button", { type: "button", value, name: q.key }, text, " ", element("kbd", {}, String(++key % 10)));
      button.dataset.key = key % 10;
      button.setAttribute("aria-pressed", String(said[q.key] === value));
      button.addEventListener("click", () => answer(q.key, value));
      return button;
    })));
    $("item").replaceChildren(element("p", { className: "sub" }, "Item " + (at + 1) + " of " + items.length),
      element("h2", {}, item.title), views, ...table, ...forms);
    $("note").value = mark(item.id).note;
    $("previous").disabled = at === 0;
    $("next").disabled = at === items.length - 1;
    update();
  }
  function go(to) {
    if (to < 0 || to >= items.length) return;
    clock();
    at = to;
    keep();
    show();
    $("item").scrollIntoView();
  }
  function open() { // the next item without all answers, from here on and then from the start
    const order = [...items.keys()].map((k) => (at + k) % items.length);
    go(order.find((k) => !whole(items[k].id)) ?? at);
  }
  function answer(key, value) {
    const id = items[at].id, before = whole(id);
    mark(id).answers[key] = value;
    if (!before && whole(id)) return void open();
    clock();
    keep();
    show();
  }
  function enlarge() { $("item").querySelector(".views").classList.toggle("large"); }

  const quoted = (text) => (/[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text);
  function file() {
    const rows = items.map((item) => {
      const { answers, seconds, note } = mark(item.id);
      return [sheet, items.length, $("who").value.trim(), item.id, ...questions.map((q) => answers[q.key] || ""), seconds.toFixed(1), note];
    });
    return [columns, ...rows].map((row) => row.map((cell) => quoted(String(cell))).join(",") + "\n").join("");
  }
  function parsed(text) { // rows of cells; quotes inside of quotes are doubled
    const rows = [[]];
    for (const [, quote, bare, end] of text.matchAll(/(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r?\n|$)/g)) {
      rows.at(-1).push(quote === undefined ? bare : quote.replaceAll('""', '"'));
      if (end !== ",") rows.push([]);
    }
    return rows.filter((row) => row.length === columns.length).map((row) => Object.fromEntries(columns.map((name, k) => [name, row[k]])));
  }

  $("save").addEventListener("click", () => {
    if (!$("who").value.trim()) {
      say("Write your name first: labels are told apart by it.");
      return void $("who").focus();
    }
    clock();
    keep();
    const link = element("a", { href: URL.createObjectURL(new Blob([file()], { type: "text/csv" })) });
    link.download = "labels-" + sheet + "-" + $("who").value.trim().replace(/[^A-Za-z0-9-]+/g, "_") + ".csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    say("Saved as " + link.download + ": hand it back.");
  });
  $("load").addEventListener("change", async (event) => {
    const given = event.target.files[0];
    event.target.value = "";
    if (!given) return;
    const rows = parsed(await given.text()).filter((row) => row.sheet === sheet);
    if (!rows.length) return void say("This file has no labels of this page; nothing was changed.");
    for (const row of rows) {
      const answers = Object.fromEntries(questions.map((q) => [q.key, row[q.key]]).filter(([, said]) => said));
      marks[row.item] = { answers, seconds: Number(row.seconds) || 0, note: row.note };
    }
    $("who").value = rows[0].rater;
    keep();
    show();
    say("Loaded " + given.name + ".");
  });
  $("who").addEventListener("input", keep);
  $("note").addEventListener("input", () => { mark(items[at].id).note = $("note").value.replace(/[\r\n]/g, " "); keep(); });
  $("previous").addEventListener("click", () => go(at - 1));
  $("next").addEventListener("click", () => go(at + 1));
  $("open").addEventListener("click", open);
  document.addEventListener("visibilitychange", () => { if (document.hidden) clock(); else since = Date.now(); });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || document.activeElement.tagName === "INPUT") return;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") go(at + (event.key === "ArrowLeft" ? -1 : 1));
    else if (event.key === "z") enlarge();
    else if (/^\d$/.test(event.key)) $("item").querySelector('[data-key="' + event.key + '"]')?.click();
  });

  try {
    const kept = JSON.parse(localStorage.getItem(place)) || {};
    $("who").value = kept.who || "";
    marks = kept.marks || {};
    at = Math.min(items.length - 1, kept.at || 0);
  } catch (error) {
    marks = {};
  }
  show();
  document.documentElement.dataset.ready = "yes";
})();
