
// The samples: cards that are searched, filtered and ordered, and a dialog with all that is known of one. Data
// reach the page as text only: nothing from a file is ever taken for markup. `browser` is for scripts of other
// parts of the page: `tell(f)` shows f(row, member, sample), texts, of every row of a dialog's table, `render()`
// draws anew.
const browser = (() => {
  const $ = (id) => document.getElementById(id);
  const index = JSON.parse($("index").textContent);
  const n = index.ids.length, { members, measures, facets } = index;
  const [noun, memberWord, measureWord] = index.words;
  const measureAt = Object.fromEntries(measures.map((m, i) => [m.name, i]));
  const chunks = new Map(), waiting = new Map(), KEEP = 80;
  const keyOf = (facet) => facet.name.toLowerCase().replace(/[^a-z0-9]+/g, "-");
  const defaults = { q: "", ...Object.fromEntries(facets.map((facet) => [keyOf(facet), ""])), member: "", measure: index.chosen,
    verdict: "", sort: "data", page: "1", sample: "", picture: "" };
  const KEYS = Object.keys(defaults), CHOICES = KEYS.filter((key) => !["q", "page", "sample", "picture"].includes(key));
  let state = { ...defaults }, found = [], opener = null, told = (row) => row;

  const haystack = index.ids.map((id, i) => [id, index.titles[i], index.asides[i],
    ...facets.flatMap((facet) => facet.of[i].map((entry) => facet.entries[entry]))].join("\n").toLowerCase());

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
  const value = (member, measure, i) => index.values[i][member][measure];
  const chosen = () => (state.member === "" ? members.map((_, m) => m) : [members.findIndex((m) => m.label === state.member)]);
  const isScore = (v) => typeof v === "number"; // else null, unscored, or words that say that it is not asked
  function fixed(x, digits) { // as Python writes it: a half goes to the even digit
    const longer = x.toFixed(digits + 60), cut = longer.slice(0, longer.length - 60).replace(/\.$/, "");
    return /50{59}$/.test(longer) && Number(cut.at(-1)) % 2 === 0 ? cut : x.toFixed(digits);
  }
  const show = (measure, v) => (isScore(v) ? fixed(v * measure.scale, measure.digits) : v || "unscored");
  const mean = (numbers) => numbers.reduce((a, b) => a + b, 0) / numbers.length;
  const scored = (list, measure, i) => list.map((m) => value(m, measure, i)).filter(isScore);

  // --- the state lives in the address ------------------------------------------------------
  function readHash() {
    const given = new URLSearchParams(location.hash.replace(/^#/, ""));
    state = { ...defaults };
    for (const key of KEYS) if (given.has(key)) state[key] = given.get(key);
    for (const key of CHOICES) if (![...$(key).options].some((option) => option.value === state[key])) state[key] = defaults[key];
  }
  function writeHash() {
    const kept = new URLSearchParams();
    for (const key of KEYS) if (state[key] !== defaults[key]) kept.set(key, state[key]);
    const text = kept.toString();
    history.replaceState(null, "", text ? "#" + text : location.pathname + location.search);
  }
  function set(changes) {
    state = { ...state, page: "1", sample: "", picture: "", ...changes };
    writeHash();
    render();
  }

  // --- search, filter, order ----------------------------------------------------------------
  function passesVerdict(i) {
    if (state.verdict === "") return true;
    return chosen().some((m) => {
      const v = value(m, measureAt[state.measure], i);
      if (!isScore(v)) return v === null && state.verdict === "unscored";
      return state.verdict === "one" ? v === 1 : state.verdict === "zero" ? v === 0 : state.verdict === "between" && v > 0 && v < 1;
    });
  }
  const ORDERS = {
    level: (i) => { // mean of the measure
      const numbers = scored(chosen(), measureAt[state.measure], i);
      return numbers.length ? mean(numbers) : null;
    },
    rivals: (i) => { // share of members about whom two measures differ
      const [a, b] = index.rivals.map((name) => measureAt[name]);
      const pairs = chosen().map((m) => [value(m, a, i), value(m, b, i)]).filter((pair) => pair.every(isScore));
      return pairs.length ? mean(pairs.map(([x, y]) => (x === y ? 0 : 1))) : null;
    },
    members: (i) => { // standard deviation of the measure over the members
      const numbers = scored(members.flatMap((m, at) => (m.peer ? [at] : [])), measureAt[state.measure], i);
      return numbers.length < 2 ? null : Math.sqrt(mean(numbers.map((x) => (x - mean(numbers)) ** 2)));
    },
  };
  function select() {
    const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
    const entries = facets.map((facet) => (state[keyOf(facet)] === "" ? -1 : facet.entries.indexOf(state[keyOf(facet)])));
    found = [];
    for (let i = 0; i < n; i++) {
      if (!facets.every((facet, f) => entries[f] < 0 || facet.of[i].includes(entries[f]))) continue;
      if (words.every((word) => haystack[i].includes(word)) && passesVerdict(i)) found.push(i);
    }
    const key = { worst: "level", best: "level" }[state.sort] || state.sort;
    if (ORDERS[key] && measures.length) {
      const keys = new Map(found.map((i) => [i, ORDERS[key](i)]));
      const higher = measures[measureAt[state.measure]].higher_is_better;
      const up = state.sort === "worst" ? higher : state.sort === "best" ? !higher : false;
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
  const LOST = { pictures: [["", { none: "the file with this picture is missing" }]], lines: [], said: [] };
  const detail = (i) => chunk(Math.floor(i / index.chunk)).then((data) => (data ? data[i % index.chunk] : LOST));

  // --- drawing -----------------------------------------------------------------------------
  function outlines({ size, boxes }) { // over a picture, which lies in its square as the SVG does
    const shape = (name, facts) => {
      const node = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(facts)) node.setAttribute(key, value);
      return node;
    };
    const layer = shape("svg", { viewBox: "0 0 " + size.join(" ") });
    for (const [label, left, top, right, bottom] of boxes) {
      const box = shape("rect", { x: left, y: top, width: right - left, height: bottom - top });
      box.append(shape("title", {}));
      box.firstChild.textContent = label;
      layer.append(box);
    }
    return layer;
  }
  function picture(i, place, thumb, alt, caption, said = {}) {
    let node;
    if (typeof thumb === "string") {
      const image = element("img", { class: "thumb", alt, src: thumb,
        on: { load: () => image.classList.toggle("coarse", image.naturalWidth < 128) } });
      node = element("button", { type: "button", title: "enlarge", "data-picture": place,
        on: { click: () => set({ sample: index.ids[i], page: state.page, picture: String(place) }) } }, image);
      if (said.boxes) node.append(outlines(said));
    } else node = element("div", { class: "missing" }, thumb.none);
    return element("figure", {}, node, element("figcaption", {}, ...caption));
  }
  function badges(m, i) {
    const list = [];
    measures.forEach((measure, at) => {
      const v = value(m, at, i);
      if (measure.badge) {
        const [name, yes, no] = measure.badge;
        const [kind, text] = !isScore(v) ? ["none", v || "unscored"] : v === 1 ? ["good", yes] : ["bad", no];
        list.push(element("span", { class: "badge " + kind }, name + ": " + text));
      } else if (measure.name === state.measure) {
        list.push(element("span", { class: "badge none" }, measure.title + " " + show(measure, v)));
      }
    });
    return list;
  }
  function cell([text, aside, mark]) {
    return element("td", { class: mark }, element("b", {}, text), ...(aside ? [element("br"), element("span", { class: "sub" }, aside)] : []));
  }
  function table(heads, rows) {
    return element("div", { class: "scroll" }, element("table", {},
      element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))), element("tbody", {}, ...rows)));
  }
  function body(i, data) {
    const id = index.ids[i], shown = [];
    const strip = data.pictures.map(([name, thumb], place) => picture(i, place, thumb, (name + " of " + id).trim(), [name]));
    for (const m of chosen()) {
      const said = data.said[m];
      if (!said || said.picture === undefined) continue;
      const lines = (members[m].names.length ? members[m].names : [members[m].label]).flatMap((name) => [name, element("br")]);
      strip.push(picture(i, data.pictures.length + m, said.picture, members[m].label + " of " + id, [...lines, ...badges(m, i)], said));
    }
    if (strip.length) shown.push(element("div", { class: "strip" }, ...strip));
    shown.push(...data.lines.map((line) => element("p", {}, line)));
    const rows = chosen().filter((m) => data.said[m] && data.said[m].cells).map((m) =>
      element("tr", {}, element("th", { scope: "row" }, members[m].label), ...data.said[m].cells.map(cell)));
    if (rows.length) shown.push(table([memberWord, ...index.heads], rows));
    return shown;
  }
  function about(i) {
    return element("p", { class: "sub" }, [index.ids[i], index.asides[i]].filter(Boolean).join(" · "));
  }
  const opens = (data) => data.said.some((said) => said && said.rows);
  function card(i) {
    const inside = element("div", {}, element("p", { class: "sub" }, "loading"));
    const open = () => set({ sample: index.ids[i], page: state.page });
    const node = element("article", { class: "card", tabindex: "0", "data-id": index.ids[i],
      "aria-label": index.titles[i] + " " + index.ids[i],
      on: { keydown: (event) => {
        if (event.key !== "Enter" || event.target !== node) return;
        event.preventDefault(); // or the same key press would push the first button, which gets the focus
        open();
      } } }, element("h3", {}, index.titles[i]), about(i), inside);
    detail(i).then((data) => {
      inside.replaceChildren(...body(i, data));
      if (opens(data)) inside.append(element("button", { type: "button", on: { click: open } }, "answers and measures"));
    });
    return node;
  }
  function openSample() {
    const dialog = $("dialog"), i = index.ids.indexOf(state.sample);
    if (i < 0) {
      for (const shown of [$("zoom"), dialog]) if (shown.open) shown.close();
      return;
    }
    detail(i).then((data) => {
      if (index.ids[i] !== state.sample) return;
      $("dialog-body").replaceChildren(element("h3", {}, index.titles[i]), about(i), ...body(i, data));
      for (const m of chosen()) {
        const said = data.said[m];
        if (!said || !said.rows) continue;
        const rows = said.rows.map((row) => told(row, m, i)).map(([head, ...texts]) => element("tr", {}, element("th", { scope: "row" }, head),
          ...texts.map((text, at) => element("td", { class: at ? "text" : "" }, text))));
        $("dialog-body").append(element("h3", {}, members[m].label), element("p", { class: "sub" }, said.line || ""), table(index.columns, rows));
      }
      for (const button of dialog.querySelectorAll("[data-step]")) button.disabled = !neighbour(Number(button.dataset.step));
      if (!dialog.open) { opener = document.activeElement; dialog.showModal(); }
      enlarge();
    });
  }
  const neighbour = (step) => { const at = found.indexOf(index.ids.indexOf(state.sample)) + step; return at >= 0 && index.ids[found[at]]; };
  function step(by) { // to the sample before or after
    const id = neighbour(by);
    if (id) set({ sample: id, page: String(Math.floor(found.indexOf(index.ids.indexOf(id)) / index.page) + 1) });
  }
  function enlarge() { // the chosen picture of the open sample as large as the window, or "all" side by side
    const every = [...$("dialog-body").querySelectorAll("[data-picture]")];
    const shown = every.filter((button) => ["all", button.dataset.picture].includes(state.picture));
    if (!shown.length) {
      if ($("zoom").open) $("zoom").close();
      return;
    }
    $("zoom").classList.toggle("several", shown.length > 1);
    $("zoom").replaceChildren(...shown.map((button) => button.parentElement.cloneNode(true)));
    if (!$("zoom").open) $("zoom").showModal();
  }
  function look(by) { // at the picture before or after; without a number at all
    const all = [...$("dialog-body").querySelectorAll("[data-picture]")].map((button) => button.dataset.picture);
    const next = by ? all.at(state.picture === "all" ? Math.min(by, 0) : all.indexOf(state.picture) + by) : "all";
    if (next !== undefined) set({ sample: state.sample, page: state.page, picture: next });
  }
  const pages = () => Math.max(1, Math.ceil(found.length / index.page));
  function render() {
    select();
    const page = Math.min(pages(), Math.max(1, Number(state.page) || 1));
    state.page = String(page);
    for (const key of ["q", ...CHOICES]) if ($(key).value !== state[key]) $(key).value = state[key];
    for (const button of document.querySelectorAll("[data-view]")) {
      button.setAttribute("aria-pressed", String(button.dataset.view === state.sort));
    }
    $("count").textContent = found.length + " of " + n + " " + noun + (found.length ? ", page " + page + " of " + pages() : "");
    for (const [id, off] of [["previous", page <= 1], ["next", page >= pages()]]) $(id).disabled = off;
    const shown = found.slice((page - 1) * index.page, page * index.page);
    const sign = JSON.stringify([shown, state.member, state.measure]);
    if ($("deck").dataset.shown !== sign) $("deck").replaceChildren(...shown.map(card)); // opening a dialog draws no card
    $("deck").dataset.shown = sign;
    openSample();
  }
  function turn(by) {
    const page = Math.min(pages(), Math.max(1, Number(state.page) + by));
    if (String(page) !== state.page) {
      set({ page: String(page) });
      $("cards").scrollIntoView();
    }
  }
  function move(by) {
    const nodes = [...document.querySelectorAll(".card")];
    const at = nodes.findIndex((node) => node.contains(document.activeElement));
    const next = nodes[at < 0 ? 0 : Math.min(nodes.length - 1, Math.max(0, at + by))];
    if (next) { next.focus(); next.scrollIntoView({ block: "nearest" }); }
  }

  // --- wiring ------------------------------------------------------------------------------
  const option = (value, text) => element("option", { value }, text);
  const choice = (id, title, options) => { // one that leaves no choice is not shown
    const label = element("label", {}, title, element("select", { id }, ...options));
    label.hidden = options.filter((one) => one.value !== "").length < 2;
    return label;
  };
  for (const facet of facets) {
    $("q").parentElement.parentElement.insertBefore(choice(keyOf(facet), facet.name,
      [option("", "all"), ...facet.entries.map((entry) => option(entry, entry))]), $("verdict").parentElement);
  }
  const before = $("verdict").parentElement;
  $("controls").insertBefore(choice("member", memberWord, [option("", "all"), ...members.map((m) => option(m.label, m.label))]), before);
  $("controls").insertBefore(choice("measure", measureWord, measures.map((m) => option(m.name, m.title))), before);
  const views = [["worst", "Worst"], ["best", "Best"]];
  if (index.rivals && index.rivals.slice(0, 2).every((name) => measureAt[name] !== undefined)) views.push(["rivals", index.rivals[2]]);
  if (members.filter((m) => m.peer).length > 1) views.push(["members", index.spread]);
  for (const [key, text] of views) {
    $("sort").append(option(key, text + " first"));
    $("views").insertBefore(element("button", { type: "button", "data-view": key, "aria-pressed": "false",
      on: { click: () => set({ sort: key }) } }, text), $("views").lastElementChild);
  }
  if (index.boxes) {
    const outline = () => $("outline").setAttribute("aria-pressed", String(document.body.classList.toggle("boxes")));
    const button = element("button", { type: "button", id: "outline", "aria-pressed": "false", on: { click: outline } }, "Boxes");
    $("views").insertBefore(button, $("views").lastElementChild);
  }
  if (!measures.length) {
    for (const id of ["member", "verdict", "sort"]) $(id).parentElement.hidden = true;
    for (const button of document.querySelectorAll("[data-view]")) button.hidden = true;
  }
  let timer = 0;
  $("q").addEventListener("input", (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => set({ q: event.target.value }), n > 5000 ? 200 : 60);
  });
  for (const key of CHOICES) $(key).addEventListener("change", (event) => set({ [key]: event.target.value }));
  $("reset").addEventListener("click", () => { $("q").value = ""; set({ ...defaults }); });
  $("previous").addEventListener("click", () => turn(-1));
  $("next").addEventListener("click", () => turn(1));
  $("close").addEventListener("click", () => $("dialog").close());
  for (const button of document.querySelectorAll("[data-step]")) button.addEventListener("click", () => step(Number(button.dataset.step)));
  $("zoom").addEventListener("click", (event) => {
    const button = state.picture === "all" && event.target.closest("[data-picture]");
    if (button) set({ sample: state.sample, page: state.page, picture: button.dataset.picture });
    else $("zoom").close();
  });
  $("zoom").addEventListener("close", () => {
    const place = state.picture;
    if (place === "") return;
    state.picture = "";
    writeHash();
    const button = $("dialog-body").querySelector('[data-picture="' + CSS.escape(place) + '"]');
    if (button) button.focus();
  });
  $("dialog").addEventListener("close", () => {
    if (state.sample) {
      const id = state.sample;
      state.sample = state.picture = "";
      writeHash();
      const again = document.querySelector('.card[data-id="' + CSS.escape(id) + '"]');
      (again || opener || document.body).focus();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
    if (event.key === "Escape" && typing) return void document.activeElement.blur();
    if (typing) return;
    const actions = $("zoom").open ? { ArrowLeft: () => look(-1), ArrowRight: () => look(1), z: () => $("zoom").close(),
      Escape: () => $("zoom").close() } // the browser would close a dialog below it that a link has opened, too
      : $("dialog").open ? { j: () => step(1), k: () => step(-1), ArrowRight: () => step(1), ArrowLeft: () => step(-1), z: () => look(0) }
        : { "/": () => { $("q").focus(); $("q").select(); }, j: () => move(1), k: () => move(-1), n: () => turn(1), p: () => turn(-1),
          z: () => { const node = document.activeElement.closest(".card"); if (node) set({ sample: node.dataset.id, page: state.page, picture: "all" }); } };
    if (index.boxes) actions.b = () => $("outline").click();
    if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
  });
  window.addEventListener("hashchange", () => {
    const target = location.hash.slice(1);
    if (target && !target.includes("=")) return; // a link to a section of the page
    readHash();
    render();
  });
  const start = () => {
    if (location.hash.includes("=")) readHash();
    render();
    if (location.hash.includes("=")) $("cards").scrollIntoView();
    document.documentElement.dataset.ready = "yes";
  };
  setTimeout(start); // once the scripts of other parts have said what they want
  return { tell: (f) => { told = f; }, render, measures, value, show, fixed };
})();
