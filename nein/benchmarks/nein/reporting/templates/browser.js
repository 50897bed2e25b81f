"use strict";
// The sample browser. Data reach the page as text only: nothing from a file is ever taken for markup.
(() => {
  const $ = (id) => document.getElementById(id);
  const index = JSON.parse($("index").textContent);
  const n = index.id.length, runs = index.runs, metrics = index.metrics;
  const metricAt = Object.fromEntries(metrics.map((m, i) => [m.name, i]));
  const chunks = new Map(), waiting = new Map(), KEEP = 80;
  const defaults = { q: "", object: "", template: "", size: "", run: "", verdict: "", metric: metrics.length ?
    (metricAt.removal_vqa !== undefined ? "removal_vqa" : metrics[0].name) : "", sort: "data", page: "1", sample: "" };
  const KEYS = Object.keys(defaults);
  let state = { ...defaults }, found = [], shown = [], opener = null;

  const haystack = index.id.map((id, i) => [id, index.source[i], index.objects[index.object[i]], index.caption[i],
    index.instruction[i]].join("\n").toLowerCase());

  // --- small helpers ---------------------------------------------------------------------
  function element(tag, properties = {}, ...children) {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(properties)) {
      if (key === "class") node.className = value;
      else if (key === "on") for (const [event, f] of Object.entries(value)) node.addEventListener(event, f);
      else if (value !== undefined && value !== null) node.setAttribute(key, value);
    }
    for (const child of children) node.append(child);
    return node;
  }
  const value = (run, metric, i) => index.values[run][metric][i];
  const chosenRuns = () => (state.run === "" ? runs.map((_, r) => r) : [Number(state.run)]);
  function show(metric, v) {
    return v === null || v === undefined ? "unscored" : (v * metric.scale).toFixed(metric.digits);
  }
  const mean = (numbers) => numbers.reduce((a, b) => a + b, 0) / numbers.length;

  // --- the state lives in the address ------------------------------------------------------
  function readHash() {
    const given = new URLSearchParams(location.hash.replace(/^#/, ""));
    state = { ...defaults };
    for (const key of KEYS) if (given.has(key)) state[key] = given.get(key);
    if (!(Number(state.run) >= 0 && Number(state.run) < runs.length)) state.run = "";
    if (metricAt[state.metric] === undefined) state.metric = defaults.metric;
  }
  function writeHash() {
    const kept = new URLSearchParams();
    for (const key of KEYS) if (state[key] !== defaults[key]) kept.set(key, state[key]);
    const text = kept.toString();
    history.replaceState(null, "", text ? "#" + text : location.pathname + location.search);
  }
  function set(changes) {
    state = { ...state, page: "1", sample: "", ...changes };
    writeHash();
    render();
  }

  // --- search, filter, sort -----------------------------------------------------------------
  function passesVerdict(i) {
    if (state.verdict === "") return true;
    const m = metricAt[state.metric], info = metrics[m];
    return chosenRuns().some((r) => {
      const v = value(r, m, i);
      if (state.verdict === "unscored") return v === null;
      if (v === null) return false;
      if (state.verdict === "one") return v === 1;
      if (state.verdict === "zero") return v === 0;
      return info.kind !== "proportion" && v > 0 && v < 1;
    });
  }
  function disagreement(i) { // share of runs in which the two removal judges differ
    const a = metricAt.removal_vqa, b = metricAt.removal_ovd;
    if (a === undefined || b === undefined) return null;
    const pairs = chosenRuns().map((r) => [value(r, a, i), value(r, b, i)]).filter(([x, y]) => x !== null && y !== null);
    return pairs.length ? mean(pairs.map(([x, y]) => (x === y ? 0 : 1))) : null;
  }
  function spread(i) { // standard deviation of the metric over the runs of one track
    const m = metricAt[state.metric], first = runs.some((r) => r.track === "negative") ? "negative" : runs[0].track;
    const numbers = runs.flatMap((run, r) => (run.track === first && value(r, m, i) !== null ? [value(r, m, i)] : []));
    if (numbers.length < 2) return null;
    const middle = mean(numbers);
    return Math.sqrt(mean(numbers.map((x) => (x - middle) ** 2)));
  }
  function level(i) {
    const m = metricAt[state.metric];
    const numbers = chosenRuns().map((r) => value(r, m, i)).filter((v) => v !== null);
    return numbers.length ? mean(numbers) : null;
  }
  function select() {
    const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
    found = [];
    for (let i = 0; i < n; i++) {
      if (state.object !== "" && index.objects[index.object[i]] !== state.object) continue;
      if (state.template !== "" && index.template[i] !== Number(state.template)) continue;
      if (state.size !== "" && index.size[i] !== Number(state.size)) continue;
      if (!words.every((word) => haystack[i].includes(word)) || !passesVerdict(i)) continue;
      found.push(i);
    }
    const info = metrics[metricAt[state.metric]];
    const key = { judges: disagreement, editors: spread, worst: level, best: level }[state.sort];
    if (key && info) {
      const keys = new Map(found.map((i) => [i, key(i)]));
      const up = state.sort === "worst" ? info.higher : state.sort === "best" ? !info.higher : false;
      found.sort((a, b) => {
        const x = keys.get(a), y = keys.get(b);
        if (x === null || y === null) return (x === null) - (y === null) || a - b; // unscored last
        return (up ? x - y : y - x) || a - b;
      });
    }
  }

  // --- chunks ------------------------------------------------------------------------------
  window.neinChunk = (number, data) => {
    chunks.set(number, data);
    for (const done of waiting.get(number) || []) done(data);
    waiting.delete(number);
    for (const old of chunks.keys()) { // forget the oldest, so that a long visit does not fill the memory
      if (chunks.size <= KEEP) break;
      if (old !== number) chunks.delete(old);
    }
  };
  function chunk(number) {
    if (chunks.has(number)) return Promise.resolve(chunks.get(number));
    const inline = $("chunk-" + number);
    if (inline) {
      window.neinChunk(number, JSON.parse(inline.textContent));
      return Promise.resolve(chunks.get(number));
    }
    return new Promise((done) => {
      if (waiting.has(number)) return void waiting.get(number).push(done);
      waiting.set(number, [done]);
      const script = document.createElement("script");
      script.src = index.folder + "/" + String(number).padStart(5, "0") + ".js";
      script.addEventListener("load", () => script.remove());
      script.addEventListener("error", () => {
        script.remove();
        for (const give of waiting.get(number) || []) give(null);
        waiting.delete(number);
      });
      document.head.append(script);
    });
  }

  // --- drawing -----------------------------------------------------------------------------
  function picture(thumb, alt) {
    if (typeof thumb === "string") {
      return element("img", { class: "thumb", alt, src: "data:image/webp;base64," + thumb });
    }
    return element("div", { class: "missing" }, thumb ? thumb.none : "no pictures in this report");
  }
  function badges(r, i) {
    const list = [];
    for (const [name, word] of [["removal_vqa", "VQA"], ["removal_ovd", "OVD"]]) {
      const m = metricAt[name];
      if (m === undefined) continue;
      const v = value(r, m, i);
      const [kind, text] = v === null ? ["none", "unscored"] : v === 1 ? ["good", "removed"] : ["bad", "still there"];
      list.push(element("span", { class: "badge " + kind }, word + ": " + text));
    }
    if (state.metric && !state.metric.startsWith("removal_")) {
      const m = metricAt[state.metric];
      list.push(element("span", { class: "badge none" }, metrics[m].title + " " + show(metrics[m], value(r, m, i))));
    }
    return list;
  }
  function strip(i, data) {
    const row = data && data.thumbs[i % index.chunk], id = index.id[i];
    const thumb = (k) => (row && row.length ? row[k] : data ? null : { none: "the file with this picture is missing" });
    const figures = [[0, "sample"], [1, "target"]].map(([k, name]) =>
      element("figure", {}, picture(thumb(k), name + " of " + id), element("figcaption", {}, name)));
    for (const r of chosenRuns()) {
      figures.push(element("figure", {}, picture(thumb(2 + r), runs[r].label + " of " + id),
        element("figcaption", {}, runs[r].name, element("br"), runs[r].track, element("br"), ...badges(r, i))));
    }
    return element("div", { class: "strip" }, ...figures);
  }
  function card(i) {
    const body = element("div", {}, element("p", { class: "sub" }, "loading"));
    const open = () => set({ sample: index.id[i], page: state.page });
    const node = element("article", { class: "card", tabindex: "0", "data-id": index.id[i],
      "aria-label": index.instruction[i] + " " + index.id[i],
      on: { keydown: (event) => {
        if (event.key !== "Enter" || event.target !== node) return;
        event.preventDefault(); // or the same key press would push the Close button, which gets the focus
        open();
      } } },
      element("h3", {}, index.instruction[i]),
      element("p", { class: "sub" }, index.id[i] + " · object: " + index.objects[index.object[i]] +
        (index.caption[i] ? " · caption: " + index.caption[i] : "")),
      body, element("button", { type: "button", on: { click: open } }, "answers and metrics"));
    chunk(Math.floor(i / index.chunk)).then((data) => body.replaceChildren(strip(i, data)));
    return node;
  }
  function evidence(detail) {
    const parts = [];
    if ("answer" in detail) parts.push("answer: " + JSON.stringify(detail.answer));
    if (detail.p_yes !== undefined && detail.p_yes !== null) parts.push("P(yes) " + detail.p_yes.toFixed(3));
    if (detail.p_no !== undefined && detail.p_no !== null) parts.push("P(no) " + detail.p_no.toFixed(3));
    if ("score" in detail) parts.push("box score " + detail.score.toFixed(3) + " (threshold " + detail.threshold + ")");
    const written = (replies) => Object.entries(replies).map(([word, said]) =>
      word + " " + (said && said.error ? said.error : typeof said === "number" ? said.toFixed(3) :
        JSON.stringify(said))).join(", ");
    if (detail.before) parts.push("in the sample: " + written(detail.before));
    if (detail.after) parts.push("in the edit: " + written(detail.after));
    if (detail.question) parts.push("asked: " + detail.question);
    return parts.join(" · ");
  }
  function openSample() {
    const dialog = $("dialog"), i = index.id.indexOf(state.sample);
    if (i < 0) {
      if (dialog.open) dialog.close();
      return;
    }
    chunk(Math.floor(i / index.chunk)).then((data) => {
      if (index.id[i] !== state.sample) return;
      const body = $("dialog-body");
      body.replaceChildren(element("h3", {}, index.instruction[i]),
        element("p", { class: "sub" }, index.id[i] + " · source image " + index.source[i] + " · object: " +
          index.objects[index.object[i]] + (index.caption[i] ? " · caption: " + index.caption[i] : "")), strip(i, data));
      const details = data ? data.details[i % index.chunk] : [];
      for (const r of chosenRuns()) {
        const record = details[r];
        if (!record) continue;
        const rows = Object.entries(record.scores).map(([name, [v, reason, detail]]) => {
          const m = metrics[metricAt[name]];
          return element("tr", {}, element("th", { scope: "row" }, m ? m.title : name),
            element("td", {}, m ? show(m, v) : String(v)), element("td", { class: "text" }, reason),
            element("td", { class: "text" }, evidence(detail)));
        });
        body.append(element("h3", {}, runs[r].label), element("p", { class: "sub" }, record.instruction +
          (record.seed ? " · seed " + record.seed : "") + (record.error ? " · failed: " + record.error : "") +
          (record.note ? " · " + record.note : "")),
          element("div", { class: "scroll" }, element("table", {}, element("thead", {}, element("tr", {},
            ...["metric", "value", "reason", "evidence"].map((text) => element("th", { scope: "col" }, text)))),
          element("tbody", {}, ...rows))));
      }
      if (!dialog.open) { opener = document.activeElement; dialog.showModal(); }
    });
  }
  function pages() { return Math.max(1, Math.ceil(found.length / index.page)); }
  function render() {
    select();
    const page = Math.min(pages(), Math.max(1, Number(state.page) || 1));
    state.page = String(page);
    shown = found.slice((page - 1) * index.page, page * index.page);
    for (const key of ["q", "object", "template", "size", "run", "verdict", "metric", "sort"]) {
      if ($(key).value !== state[key]) $(key).value = state[key];
    }
    for (const button of document.querySelectorAll("[data-view]")) {
      button.setAttribute("aria-pressed", String(button.dataset.view === state.sort));
    }
    $("count").textContent = found.length + " of " + n + " samples" +
      (found.length ? ", page " + page + " of " + pages() : "");
    for (const [id, off] of [["previous", page <= 1], ["next", page >= pages()]]) $(id).disabled = off;
    $("cards").replaceChildren(...shown.map(card));
    openSample();
  }
  function turn(step) {
    const page = Math.min(pages(), Math.max(1, Number(state.page) + step));
    if (String(page) !== state.page) {
      set({ page: String(page) });
      $("browser").scrollIntoView();
    }
  }
  function move(step) {
    const cards = [...document.querySelectorAll(".card")];
    const at = cards.findIndex((node) => node.contains(document.activeElement));
    const next = cards[at < 0 ? 0 : Math.min(cards.length - 1, Math.max(0, at + step))];
    if (next) { next.focus(); next.scrollIntoView({ block: "nearest" }); }
  }

  // --- wiring ------------------------------------------------------------------------------
  function option(select, value, text) { select.append(element("option", { value }, text)); }
  index.objects.forEach((name) => option($("object"), name, name));
  index.templates.forEach((name, i) => option($("template"), String(i), name));
  index.sizes.forEach((name, i) => option($("size"), String(i), name));
  runs.forEach((run, r) => option($("run"), String(r), run.label));
  metrics.forEach((metric) => option($("metric"), metric.name, metric.title));
  if (!index.sizes.length) $("size").parentElement.hidden = true;
  let timer = 0;
  $("q").addEventListener("input", (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => set({ q: event.target.value }), n > 5000 ? 200 : 60);
  });
  for (const key of ["object", "template", "size", "run", "verdict", "metric", "sort"]) {
    $(key).addEventListener("change", (event) => set({ [key]: event.target.value }));
  }
  for (const button of document.querySelectorAll("[data-view]")) {
    button.addEventListener("click", () => set({ sort: button.dataset.view }));
  }
  $("reset").addEventListener("click", () => { $("q").value = ""; set({ ...defaults }); });
  $("previous").addEventListener("click", () => turn(-1));
  $("next").addEventListener("click", () => turn(1));
  $("close").addEventListener("click", () => $("dialog").close());
  $("dialog").addEventListener("close", () => {
    if (state.sample) {
      const id = state.sample;
      state.sample = "";
      writeHash();
      const again = document.querySelector('.card[data-id="' + CSS.escape(id) + '"]');
      (again || opener || document.body).focus();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
    if (event.key === "Escape" && typing) return void document.activeElement.blur();
    if (typing || $("dialog").open) return;
    const actions = { "/": () => { $("q").focus(); $("q").select(); }, j: () => move(1), k: () => move(-1),
      n: () => turn(1), p: () => turn(-1) };
    if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
  });
  window.addEventListener("hashchange", () => {
    const target = location.hash.slice(1);
    if (target && !target.includes("=") && $(target)) return; // a link to a section of the page
    readHash();
    render();
  });
  if (location.hash.includes("=")) readHash();
  render();
  if (location.hash.includes("=")) $("browser").scrollIntoView();
  document.documentElement.dataset.ready = "yes";
})();
