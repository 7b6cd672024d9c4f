// The processes of the run: a tree, or a list in an order.

const PROCESS_METRICS = ["process_cpu_percent", "process_memory", "process_state"];
const STATES = ["running", "sleeping", "waits for a disk", "stopped", "other"];
const MOST_ROWS = 500;
const COLUMNS = [
  { title: "Name", value: (row) => row.name },
  { title: "puid", value: (row) => row.puid },
  { title: "pid", value: (row) => row.pid },
  { title: "Node", value: (row) => row.host },
  { title: "State", value: (row) => row.state, show: (row) => row.state, class: (row) => row.look },
  { title: "CPU", value: (row) => row.cpu ?? -1, show: (row) => (row.cpu === undefined ? "" : short(row.cpu, "%")) },
  { title: "Memory", value: (row) => row.memory ?? -1, show: (row) => (row.memory === undefined ? "" : short(row.memory, "B")) },
  { title: "Started", value: (row) => row.started, show: (row) => clock(row.started) },
  { title: "Lasted", value: (row) => row.lasted, show: (row) => duration(row.lasted) },
];

// The order of a run that is over: first what failed, as it did so one after the other.
const FAILED_FIRST = { value: (row) => (row.look === "failed" ? row.ended - 1e12 : row.started) };

// The columns of a run that is over: there the values of each process are those of its whole life.
function nameForWhole() {
  for (const column of COLUMNS) column.title = { CPU: "Mean CPU", Memory: "Most memory" }[column.title] ?? column.title;
}

// Rows made of lifetimes and of the newest values of each process, where its run is over those of its whole life.
function rowsOf(lifetimes, records, run, whole) {
  const newest = new Map();
  for (const [metric, tags, , values] of records) {
    const found = newest.get(tags.puid) ?? {};
    found[metric] = values.at(-1);
    newest.set(tags.puid, found);
  }
  return lifetimes.map((lifetime) => {
    const known = newest.get(String(lifetime.puid)) ?? {};
    const alive = lifetime.ended === null || whole;
    return {
      ...lifetime,
      ...lookOf(lifetime, run.signals, STATES[known.process_state] ?? (whole ? "lived when last seen" : "lives")),
      cpu: alive ? known.process_cpu_percent : undefined,
      memory: alive ? known.process_memory : undefined,
      lasted: (lifetime.ended ?? run.now) - lifetime.started,
    };
  });
}

function lookOf({ ended, code, terminated, lost }, signals, state) {
  if (lost) return { look: "failed", state: "lost with its node" };
  if (ended === null) return { look: "live", state };
  if (code === 0) return { look: "ended", state: "ended" };
  if (code === null) return { look: "ended", state: "ended with the run" };
  const name = (number) => signals[number] ?? number;
  if (terminated) return { look: "ended", state: `terminated by ${name(code < 0 ? -code : code - 128)}` };
  return { look: "failed", state: code < 0 ? `killed by signal ${name(-code)}` : `exit code ${code}` };
}

class Processes {
  constructor(table, filter, counts) {
    [this.head, this.body] = [table.tHead, table.tBodies[0]];
    [this.filter, this.counts] = [filter, counts];
    this.rows = [];
    this.lines = new Map(); // by puid
    this.order = null; // a column and a direction, or the tree
    this.open = 0; // the puid of the process whose output is shown
    this.output = "";
    this.opened = () => {};
    const line = this.head.insertRow();
    for (const column of COLUMNS) {
      const cell = line.appendChild(document.createElement("th"));
      const button = cell.appendChild(document.createElement("button"));
      button.textContent = column.title;
      button.title = "sort; a third click shows the tree again";
      button.onclick = () => this.sort(column);
    }
    filter.oninput = () => this.draw();
  }

  sort(column) {
    const direction = this.order?.column !== column ? -1 : this.order.direction === -1 ? 1 : 0;
    this.order = direction ? { column, direction } : null;
    this.draw();
  }

  show(rows) {
    this.rows = rows;
    this.draw();
  }

  draw() {
    const wanted = this.filter.value.trim().toLowerCase();
    const matches = (row) => [row.name.toLowerCase(), String(row.puid), String(row.pid)].some((text) => text.includes(wanted));
    const found = wanted || this.order ? this.rows.filter(matches).map((row) => [row, 0]) : tree(this.rows);
    if (this.order) {
      const { column, direction } = this.order;
      const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
      found.sort(([a], [b]) => direction * compare(column.value(a), column.value(b)));
    }
    const failed = this.rows.filter((row) => row.look === "failed").length;
    const live = this.rows.filter((row) => row.look === "live").length;
    const hidden = Math.max(found.length - MOST_ROWS, 0);
    this.counts.textContent =
      `${live} live, ${this.rows.length - live} ended, ${failed} of them failed` +
      (hidden ? `; ${hidden} rows are not shown, search to find them` : "");
    const lines = found.slice(0, MOST_ROWS).flatMap(([row, depth]) => [
      this.line(row, depth),
      ...(row.puid === this.open ? [this.detail()] : []),
    ]);
    const drawn = this.body.rows;
    if (lines.length !== drawn.length || lines.some((line, i) => line !== drawn[i])) this.body.replaceChildren(...lines);
    this.lines = new Map(found.slice(0, MOST_ROWS).map(([row]) => [row.puid, this.lines.get(row.puid)]));
  }

  // The row of a process, of which only what has changed is written: a table of hundreds is slow to make.
  line(row, depth) {
    const line = this.lines.get(row.puid) ?? this.made(row.puid);
    const set = (element, name, value) => element[name] !== value && (element[name] = value);
    set(line, "className", row.look === "ended" ? "ended" : "");
    for (const [i, column] of COLUMNS.entries()) {
      set(line.cells[i], "textContent", String((column.show ?? column.value)(row)));
      set(line.cells[i], "className", column.class?.(row) ?? "");
    }
    set(line.cells[0].style, "paddingLeft", `${0.6 + depth}rem`);
    return line;
  }

  made(puid) {
    const line = document.createElement("tr");
    for (const _ of COLUMNS) line.insertCell();
    line.onclick = () => {
      this.open = this.open === puid ? 0 : puid;
      this.output = "";
      this.opened();
      this.draw();
    };
    this.lines.set(puid, line);
    return line;
  }

  detail() {
    const line = document.createElement("tr");
    const cell = line.insertCell();
    cell.colSpan = COLUMNS.length;
    cell.appendChild(document.createElement("pre")).textContent =
      this.output || "Nothing that it wrote is known here: only output that passes through the runtime is.";
    return line;
  }
}

// Each row with its depth, children after their parent; first those that failed, then those that live.
function tree(rows) {
  const rank = { failed: 0, live: 1, ended: 2 };
  const known = new Set(rows.map((row) => row.puid));
  const below = Map.groupBy(rows, (row) => (known.has(row.parent) && row.parent !== row.puid ? row.parent : 0));
  const found = [];
  const visit = (parent, depth) => {
    const children = below.get(parent) ?? [];
    children.sort((a, b) => rank[a.look] - rank[b.look] || a.started - b.started);
    for (const row of children) {
      found.push([row, depth]);
      visit(row.puid, depth + 1);
    }
  };
  visit(0, 0);
  return found;
}

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
}

function duration(seconds) {
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 0)} s`;
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${Math.floor(seconds % 60)} s`;
}
