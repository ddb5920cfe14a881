// The table of all cells. Texts of the record reach the document as text nodes alone.
"use strict";

const PAGE = 100;
const FILTERS = ["status", "subject", "profile", "dtype", "quantity", "environment"];
const SORTS = { ratio: "descending", bits: "ascending", seconds: "descending" };

const $ = (id) => document.getElementById(id);

/** An element with attributes and children; strings become text. */
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value !== null && value !== undefined && value !== "") made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** The cells: decompressed, and a reader for each column. */
async function load() {
  const bytes = Uint8Array.from(atob($("data").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = JSON.parse(await new Response(stream).text());
  for (const column of Object.values(data.columns)) {
    column.at = column.index
      ? (cell) => (column.index[cell] === null ? null : column.values[column.index[cell]])
      : (cell) => column[cell];
  }
  data.at = (name, cell) => data.columns[name].at(cell);
  data.profiles = data.columns.case.values.map((id) => id.split("/", 1)[0]);
  return data;
}

// --- the address ----------------------------------------------------------------------------

/** What the fragment says: filters, words, sorting and a cell; null if it is a plain anchor. */
function stateOf(fragment) {
  if (!fragment.includes("=")) return null;
  const state = {};
  for (const part of fragment.slice(1).split("&")) {
    const [key, value] = part.split("=", 2);
    try {
      state[key] = decodeURIComponent(value ?? "");
    } catch {
      state[key] = value;
    }
  }
  return state;
}

function fragmentOf(state) {
  const plain = (text) =>
    encodeURIComponent(text).replace(/%(2F|40|3A|2C)/g, (code) => decodeURIComponent(code));
  const order = [...FILTERS, "q", "sort", "cell"];
  const parts = order.filter((key) => state[key]).map((key) => `${key}=${plain(state[key])}`);
  return `#${parts.join("&")}`;
}

// --- the explorer ---------------------------------------------------------------------------

class Explorer {
  constructor(data) {
    this.data = data;
    this.form = $("filters");
    this.state = {};
    this.page = 0;
    this.found = [];
    this.merged = Object.keys(data.labels).length > 1;
    this.fill();
    this.listen();
  }

  idOf(cell) {
    const at = (name) => this.data.at(name, cell);
    return `${at("subject")}-${at("dtype")}-${at("case")}-${at("quantity")}`;
  }

  outcome(cell) {
    const status = this.data.at("status", cell);
    const grade = this.data.at("grade", cell);
    const clause = this.data.at("clause", cell);
    if (status === "passed") return [grade ?? "passed", grade ?? "plain"];
    return [clause ? `${status}, ${clause}` : status, this.data.marks[status]];
  }

  /** The choices of every filter, from what there is. */
  fill() {
    const columns = this.data.columns;
    const choices = {
      status: ["failing", ...columns.status.values, ...columns.grade.values],
      subject: columns.subject.values,
      profile: [...new Set(this.data.profiles)],
      dtype: columns.dtype.values,
      quantity: [...columns.quantity.values.filter((q) => !this.data.checks.includes(q)), "checks",
        ...columns.quantity.values.filter((q) => this.data.checks.includes(q))],
      environment: columns.environment.values,
    };
    for (const name of FILTERS) {
      const select = this.form.elements[name];
      if (!select) continue;
      select.append(element("option", { value: "" }, "all"));
      for (const value of [...new Set(choices[name])]) {
        const label = name === "environment" ? `${this.data.labels[value]} (${value})` : value;
        const option = element("option", {}, label);
        option.value = value;
        select.append(option);
      }
      select.options[0].value = "";
    }
  }

  listen() {
    const changed = () => {
      for (const name of [...FILTERS, "q"]) {
        const input = this.form.elements[name];
        if (input) this.state[name] = input.value.trim();
      }
      this.page = 0;
      this.remember();
      this.show();
    };
    let timer = 0;
    this.form.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(changed, 150);
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      changed();
    });
    this.form.addEventListener("reset", () => {
      this.state = {};
      this.page = 0;
      setTimeout(() => {
        this.remember();
        this.show();
        this.open(null);
      });
    });
    $("before").addEventListener("click", () => this.turn(-1));
    $("after").addEventListener("click", () => this.turn(1));
    $("cell-close").addEventListener("click", () => {
      this.state.cell = "";
      this.remember();
      this.open(null);
      this.render();
      $("filters").elements.q.focus();
    });
    $("cell-link").addEventListener("click", (event) => {
      const { cell, environment } = this.state;
      const fragment = fragmentOf({ cell, environment: this.merged ? environment : "" });
      copy(event.currentTarget, location.href.split("#", 1)[0] + fragment);
    });
    for (const head of document.querySelectorAll("#table th[data-sort]")) {
      head.querySelector("button").addEventListener("click", () => {
        this.state.sort = this.state.sort === head.dataset.sort ? "" : head.dataset.sort;
        this.page = 0;
        this.remember();
        this.show();
      });
    }
    window.addEventListener("hashchange", () => this.follow());
  }

  /** Keeps the state in the address, so that it can be linked to. */
  remember() {
    history.replaceState(null, "", fragmentOf(this.state));
  }

  /** Does what the address says. */
  follow() {
    const state = stateOf(location.hash);
    if (state === null) return;
    this.state = state;
    this.page = 0;
    for (const name of [...FILTERS, "q"]) {
      const input = this.form.elements[name];
      if (input) input.value = state[name] ?? "";
    }
    this.show();
    const cell = this.seek(state);
    this.open(cell);
    if (cell === null) {
      const head = document.querySelector("#cells h2");
      if (state.cell) $("found").textContent = `There is no cell ${state.cell} in this report.`;
      head.scrollIntoView();
      head.focus({ preventScroll: true });
    }
  }

  /** The cell that is linked to; null if there is none. */
  seek(state) {
    if (!state.cell) return null;
    for (let cell = 0; cell < this.data.cells; cell += 1) {
      if (this.data.at("quantity", cell) !== null && state.cell.endsWith(this.data.at("quantity", cell))
        && this.idOf(cell) === state.cell
        && (!state.environment || this.data.at("environment", cell) === state.environment)) {
        return cell;
      }
    }
    return null;
  }

  turn(step) {
    this.page += step;
    this.render();
    $("found").scrollIntoView({ block: "nearest" });
  }

  // --- selection ----------------------------------------------------------------------------

  /** For each value of a column whether it is wanted; null if all are. */
  wanted(name) {
    const value = this.state[name];
    if (!value) return null;
    if (name === "profile") return this.data.profiles.map((profile) => profile === value);
    const values = this.data.columns[name].values;
    if (name === "quantity" && value === "checks") return values.map((v) => this.data.checks.includes(v));
    return values.map((v) => v === value);
  }

  select() {
    const columns = this.data.columns;
    const tests = [];
    for (const name of ["subject", "profile", "dtype", "quantity", "environment"]) {
      const wanted = this.wanted(name);
      const index = columns[name === "profile" ? "case" : name].index;
      if (wanted) tests.push((cell) => wanted[index[cell]]);
    }
    const status = this.state.status;
    if (status === "failing") tests.push((cell) => this.fails(cell));
    else if (status) tests.push((cell) => columns.status.at(cell) === status || columns.grade.at(cell) === status);
    for (const word of (this.state.q ?? "").toLowerCase().split(/\s+/).filter(Boolean)) tests.push(this.search(word));
    const found = [];
    for (let cell = 0; cell < this.data.cells; cell += 1) {
      if (tests.every((test) => test(cell))) found.push(cell);
    }
    return this.sorted(found);
  }

  fails(cell) {
    const strict = this.data.strict[this.data.at("environment", cell)];
    return this.data.failing.includes(this.data.at("status", cell)) || (strict && this.data.at("grade", cell) === "suspicious");
  }

  /** Whether a word is in one of a cell's texts, or in its id. */
  search(word) {
    const names = ["subject", "dtype", "case", "quantity", "status", "grade", "clause", "reason", "diagnosis", "resembles", "digest"];
    const hits = names.map((name) => {
      const column = this.data.columns[name];
      const hit = column.values.map((value) => value.toLowerCase().includes(word));
      return hit.includes(true) ? (cell) => column.index[cell] !== null && hit[column.index[cell]] : null;
    }).filter(Boolean);
    const spans = word.includes("-");
    return (cell) => hits.some((hit) => hit(cell)) || (spans && this.idOf(cell).toLowerCase().includes(word));
  }

  sorted(cells) {
    const name = this.state.sort;
    if (!(name in SORTS)) return cells;
    const number = (cell) => {
      const value = this.data.at(name, cell);
      return value === "inf" ? Infinity : typeof value === "number" ? value : null;
    };
    const sign = SORTS[name] === "descending" ? -1 : 1;
    return cells.filter((cell) => number(cell) !== null).sort((a, b) => {
      const [x, y] = [number(a), number(b)];
      return x === y ? a - b : sign * (x < y ? -1 : 1);
    });
  }

  // --- what is seen -------------------------------------------------------------------------

  show() {
    this.found = this.select();
    for (const head of document.querySelectorAll("#table th[data-sort]")) {
      const own = head.dataset.sort === this.state.sort;
      head.setAttribute("aria-sort", own ? SORTS[head.dataset.sort] : "none");
    }
    const count = (number) => number.toLocaleString("en");
    $("found").textContent = `${count(this.found.length)} of ${count(this.data.cells)} cells`;
    this.render();
  }

  /** One page of the table. */
  render() {
    const pages = Math.max(1, Math.ceil(this.found.length / PAGE));
    this.page = Math.min(Math.max(this.page, 0), pages - 1);
    const shown = this.found.slice(this.page * PAGE, (this.page + 1) * PAGE);
    document.querySelector("#table tbody").replaceChildren(...shown.map((cell) => this.row(cell)));
    $("page").textContent = `page ${this.page + 1} of ${pages}`;
    $("before").disabled = this.page === 0;
    $("after").disabled = this.page === pages - 1;
  }

  link(cell) {
    const { sort, q, ...filters } = this.state;
    const environment = this.merged ? this.data.at("environment", cell) : "";
    return fragmentOf({ ...filters, sort, q, environment, cell: this.idOf(cell) });
  }

  row(cell) {
    const at = (name) => this.data.at(name, cell);
    const [word, kind] = this.outcome(cell);
    const value = (name) => element("td", { class: "num" }, text(at(name)));
    return element("tr", { "aria-current": this.idOf(cell) === this.state.cell ? "true" : null },
      element("td", {}, element("span", { class: `chip ${kind}` }, word)),
      element("td", {}, at("subject")),
      this.merged ? element("td", {}, element("span", { class: "env" }, this.data.labels[at("environment")])) : null,
      element("th", { scope: "row" }, element("a", { href: this.link(cell) }, at("case"))),
      element("td", {}, at("dtype")),
      element("td", {}, at("quantity")),
      value("ratio"), value("bits"), value("seconds"));
  }

  /** Shows all that is known of a cell; of null nothing. */
  open(cell) {
    $("cell").hidden = cell === null;
    if (cell === null) return;
    const at = (name) => this.data.at(name, cell);
    const [word, kind] = this.outcome(cell);
    $("cell-title").replaceChildren(element("span", { class: `chip ${kind}` }, word), ` ${this.idOf(cell)}`);
    const alike = this.alike(cell);
    const facts = [
      ["Why the case is there", this.data.why[this.data.columns.case.index[cell]]],
      ["Environment", this.merged ? `${this.data.labels[at("environment")]} (${at("environment")})` : null],
      ["Reason", at("reason")],
      ["Diagnosis", at("diagnosis")],
      ["Error over bound", text(at("ratio"))],
      ["Worst entry", at("entry") && `[${at("entry").join(", ")}]: ${text(at("value"))}, certified ${text(at("certified"))}, error ${text(at("error"))}, bound ${text(at("bound"))}`],
      ["Error in ulp", text(at("ulp"))],
      ["Effective bits", text(at("bits"))],
      ["Errors look like", at("resembles")],
      ["z, and root mean square", at("z") !== null ? `${text(at("z"))}, ${text(at("rms"))}` : null],
      ["Resolution", text(at("resolution"))],
      ["Seconds", text(at("seconds"))],
      ["Digest", at("digest")],
      ["Same bits", at("digest") ? alike.join(", ") || "nobody else" : null],
    ];
    $("cell").querySelector("dl").replaceChildren(...facts.filter(([, value]) => value).map(([name, value]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value))));
    const texts = [["again", "command that runs it again"], ["detail", at("status") === "failed" ? "lines that reproduce it" : "what it said"]];
    $("cell-texts").replaceChildren(...texts.filter(([name]) => at(name)).map(([name, label]) => copyable(`cell-${name}`, label, at(name))));
    this.render();
    $("cell").scrollIntoView({ block: "start" });
    $("cell-title").focus({ preventScroll: true });
  }

  /** Who else gave the same bits in the same case. */
  alike(cell) {
    const { digest, case: cases, quantity, dtype } = this.data.columns;
    const found = [];
    for (let other = 0; other < this.data.cells; other += 1) {
      if (other !== cell && digest.index[other] === digest.index[cell] && cases.index[other] === cases.index[cell]
        && quantity.index[other] === quantity.index[cell] && dtype.index[other] === dtype.index[cell]) {
        const where = this.merged ? ` in ${this.data.labels[this.data.at("environment", other)]}` : "";
        found.push(this.data.at("subject", other) + where);
      }
    }
    return found;
  }
}

/** A number, or the word that stands for it; "" for what is unknown. */
function text(value) {
  const far = typeof value === "number" && value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e6);
  if (far) return value.toExponential();
  return value === null || value === undefined ? "" : String(value);
}

// --- copying --------------------------------------------------------------------------------

function copyable(id, label, content) {
  return element("div", { class: "copyable" },
    element("pre", { id, tabindex: "0", role: "group", "aria-label": label }, content),
    element("button", { type: "button", class: "copy", "data-copy": id }, "Copy", element("span", { class: "sr" }, ` ${label}`)));
}

async function copy(button, content) {
  const before = button.firstChild.textContent;
  let done = true;
  try {
    await navigator.clipboard.writeText(content);
  } catch {
    // Without the clipboard interface, as in a page that a server sends without encryption.
    const area = element("textarea", { "aria-hidden": "true" });
    area.value = content;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
  }
  button.firstChild.textContent = done ? "Copied" : "Not copied";
  setTimeout(() => { button.firstChild.textContent = before; }, 2000);
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button, $(button.dataset.copy).textContent);
});
for (const button of document.querySelectorAll(".copy")) button.hidden = false;

// --- parts that are closed ------------------------------------------------------------------

/** Opens what an anchor leads into. */
function reveal() {
  if (location.hash.includes("=")) return;
  const target = location.hash.length > 1 && $(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (target instanceof HTMLDetailsElement) target.open = true;
  const closed = target.closest("details");
  if (closed) closed.open = true;
}
window.addEventListener("hashchange", reveal);
window.addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details:not([open])")) {
    part.dataset.closed = "";
    part.open = true;
  }
});
window.addEventListener("afterprint", () => {
  for (const part of document.querySelectorAll("details[data-closed]")) {
    delete part.dataset.closed;
    part.open = false;
  }
});
reveal();

load().then((data) => {
  const explorer = new Explorer(data);
  $("unscripted").hidden = true;
  $("explorer").hidden = false;
  explorer.show();
  explorer.follow();
  document.documentElement.dataset.ready = "";
}).catch((error) => {
  $("unscripted").textContent = `The table of all cells cannot be shown (${error.message}); a current browser can.`;
});
