// One look at the run: whether it makes progress, what waits, what failed, which node is behind.

const COUNTERS = { queue_gets: "messages taken from queues", pool_tasks_done: "tasks of pools done" };
const OF_NODES = ["cpu_percent", "used_RAM", "def_pool_utilization", "num_running_processes"];
const RECENT = 10; // seconds in which something must have changed
const BUSY = 5; // % of a CPU that processes use which compute
const FULL = 90; // % of a memory
const LOADED = 20; // % that the CPUs of half of the nodes must be busy for another to be behind
const SILENT_PERIODS = 5; // measurements that did not come
const LEAST_SILENT = 5; // seconds
const MOST_LISTED = 8;
const MOST_OUTPUTS = 3;
const LINES = 12; // of an output

function make(name, text = "", look = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (look) made.className = look;
  return made;
}

function plural(count, one, several = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : several}`;
}

// How much a counter grew since a time, and when it changed last, if it did.
function growth({ times, values }, since) {
  let last = values.length - 1;
  while (last > 0 && values[last - 1] === values[last]) last -= 1;
  let first = values.length - 1;
  while (first > 0 && times[first - 1] >= since) first -= 1;
  return { by: values.length ? values.at(-1) - values[Math.max(first - 1, 0)] : 0, at: last > 0 ? times[last] : 0 };
}

// What happened lately, when anything did last, and from when on that is known.
function happenings(run, rows, store) {
  const since = run.now - RECENT;
  const parts = [];
  let [at, known] = [run.started, run.started];
  for (const [metric, words] of Object.entries(COUNTERS)) {
    let sum = 0;
    for (const series of store.of([metric])) {
      const grown = growth(series, since);
      sum += grown.by;
      at = Math.max(at, grown.at);
      known = Math.max(known, series.times[0] ?? 0);
    }
    if (sum > 0) parts.push(`${sum.toLocaleString("en")} ${words}`);
  }
  const own = run.names.filter((name) => !(name in run.metrics));
  const told = store.of(own).filter((series) => series.times.at(-1) >= since);
  if (told.length) parts.push(`new values of ${[...new Set(told.map((series) => series.metric))].slice(0, 3).join(", ")}`);
  for (const series of store.of(own)) at = Math.max(at, series.times.at(-1));
  const begun = rows.filter((row) => row.started >= since).length;
  const ended = rows.filter((row) => row.ended >= since && row.ended !== null).length;
  if (begun) parts.push(`${plural(begun, "process", "processes")} started`);
  if (ended) parts.push(`${plural(ended, "process", "processes")} ended`);
  for (const row of rows) at = Math.max(at, row.started, row.ended ?? 0);
  return { parts, at, known };
}

// In a sentence, whether the run makes progress.
function standing(run, rows, store, waits) {
  const live = rows.filter((row) => row.look === "live");
  const { parts, at, known } = happenings(run, rows, store);
  if (run.now - at < RECENT) return { look: "live", title: "Making progress", text: `In the last ${RECENT} s: ${parts.join(", ") || "it started"}.` };
  const waiting = waits.reduce((sum, node) => sum + node.processes, 0);
  const everyone = waiting > 0 && waiting >= live.length;
  const shortest = Math.min(...waits.filter((node) => node.processes).map((node) => node.seconds));
  const quiet = everyone ? Math.max(run.now - at, shortest) : run.now - at;
  const counted = run.level >= 4;
  const since = `${at <= known && counted ? "at least " : ""}${duration(quiet)}`;
  const cpu = live.reduce((sum, row) => sum + (row.cpu ?? 0), 0);
  const what = counted ? "no message, task or process" : "no process started or ended (messages and tasks are counted from level 4 on)";
  if (cpu >= BUSY) return { look: "live", title: "Computing", text: `Its processes use ${short(Math.round(cpu), "%")} of a CPU; ${what} for ${since}.` };
  const who = everyone
    ? `${live.length === 1 ? "its only process waits" : `all ${live.length} processes wait`}`
    : `${waiting} of ${plural(live.length, "process waits", "processes wait")} in the runtime${counted ? ", and none uses a CPU" : ""}`;
  return { look: "waits", title: everyone ? `No progress for ${since}` : `Nothing has changed for ${since}`, text: `${who[0].toUpperCase()}${who.slice(1)}; ${what} in that time.` };
}

// The first failures come first: what failed later may have failed because of them.
function failuresOf(rows) {
  return rows.filter((row) => row.look === "failed").sort((a, b) => a.ended - b.ended);
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor((sorted.length - 1) / 2)];
}

// How the nodes are, and for what reasons one is behind.
function nodesOf(run, store, heard) {
  const newest = (metric, host) => store.of([metric], host)[0]?.values.at(-1);
  const recent = (host) => {
    const series = store.of(["cpu_percent"], host)[0];
    const values = series ? series.values.filter((_, i) => series.times[i] >= series.times.at(-1) - RECENT) : [];
    return values.length ? values.reduce((a, b) => a + b, 0) / values.length : undefined;
  };
  const nodes = run.hosts.map((host, index) => {
    const [, memory, shared, processes] = OF_NODES.map((metric) => newest(metric, host));
    const silent = heard.has(host) ? run.now - heard.get(host).at : undefined;
    return { host, lost: run.lost[index], cpu: recent(host), memory, shared, processes, silent, reasons: [] };
  });
  const loads = nodes.filter((node) => node.cpu !== undefined && node.lost === undefined).map((node) => node.cpu);
  const usual = loads.length > 2 ? median(loads) : 0;
  for (const node of nodes) {
    if (node.lost !== undefined) node.reasons.push(`lost: ${node.lost}`);
    else {
      if (node.silent > Math.max(LEAST_SILENT, SILENT_PERIODS * run.period)) node.reasons.push(`no report for ${duration(node.silent)}`);
      if (node.memory > FULL) node.reasons.push(`memory ${short(node.memory, "%")} full`);
      if (node.shared > FULL) node.reasons.push(`shared memory of the run ${short(node.shared, "%")} full`);
      if (usual >= LOADED && node.cpu < usual / 2) node.reasons.push(`CPUs ${short(node.cpu, "%")} busy, less than half of the nodes' median of ${short(usual, "%")}`);
    }
  }
  return nodes;
}

class Overview {
  constructor(place, source, whole) {
    [this.place, this.source, this.whole] = [place, source, whole];
    this.heard = new Map(); // by host, the time of its newest value and when the page got that
    this.outputs = new Map(); // by puid
    this.waits = [];
  }

  // Ask what waits, and for the last words of what failed first.
  async look(run, rows, store) {
    if (this.whole) return;
    this.waits = await this.source.waits();
    for (const series of store.of(["cpu_percent"])) {
      const { host } = series.tags;
      const newest = series.times.at(-1);
      if (this.heard.get(host)?.newest !== newest) this.heard.set(host, { newest, at: run.now });
    }
    for (const row of failuresOf(rows).slice(0, MOST_OUTPUTS)) {
      if (this.outputs.get(row.puid) || (this.outputs.has(row.puid) && run.now - row.ended > RECENT)) continue;
      this.outputs.set(row.puid, await this.source.output(row.puid));
    }
  }

  draw(run, rows, store) {
    const failures = failuresOf(rows);
    const now = this.whole
      ? { look: failures.length ? "failed" : "ended", title: "Recorded", text: `${plural(rows.length, "process", "processes")} in ${duration(run.now - run.started)}.` }
      : standing(run, rows, store, this.waits);
    const count = (look) => rows.filter((row) => row.look === look).length;
    const counts = make("p", "", "figures");
    for (const [look, word] of [["live", this.whole ? "lived when last seen" : "running"], ["ended", "ended"], ["failed", "failed"]]) {
      const figure = counts.appendChild(make("span", "", look));
      figure.append(make("b", count(look).toLocaleString("en")), ` ${word}`);
    }
    const state = make("article", "", `standing ${now.look}`);
    state.append(make("h2", now.title), make("p", now.text), counts);
    const parts = [state];
    if (!this.whole) parts.push(this.drawWaits(run, rows));
    parts.push(this.drawFailures(run, failures));
    if (!this.whole && run.level >= 2) parts.push(this.drawNodes(run, store));
    this.place.replaceChildren(...parts);
  }

  drawWaits(run, rows) {
    const box = make("article", "", "waiting");
    box.append(make("h2", "Waits"));
    const names = new Map(rows.filter((row) => row.look === "live").map((row) => [`${row.node}:${row.pid}`, row.name]));
    const all = this.waits.flatMap((node) => node.objects.map((object) => ({ ...object, host: run.hosts[object.node] })));
    all.sort((a, b) => b.waiters[0].seconds - a.waiters[0].seconds);
    if (!all.length) box.append(make("p", "Nothing has waited in the runtime for a second.", "quiet"));
    const list = box.appendChild(make("ul"));
    for (const { text, count, waiters, host } of all.slice(0, MOST_LISTED)) {
      const who = waiters.slice(0, 4).map(({ node, pid, name }) => name || names.get(`${node}:${pid}`) || `pid ${pid}`);
      const rest = count > who.length ? ` and ${count - who.length} more` : "";
      const item = list.appendChild(make("li"));
      item.append(make("b", who.join(", ") + rest), ` ${count > 1 ? "have" : "has"} waited `, make("b", duration(waiters[0].seconds)), ` ${text}`);
      if (run.hosts.length > 1) item.append(make("span", ` on ${host}`, "quiet"));
    }
    if (all.length > MOST_LISTED) box.append(make("p", `and for ${all.length - MOST_LISTED} more: dragon doctor ${run.name}`, "quiet"));
    return box;
  }

  drawFailures(run, failures) {
    const box = make("article", "", "failures");
    box.append(make("h2", "Failures"));
    if (!failures.length) box.append(make("p", "No process has failed.", "quiet"));
    const list = box.appendChild(make("ul"));
    for (const [i, row] of failures.slice(0, MOST_LISTED).entries()) {
      const item = list.appendChild(make("li"));
      item.append(make("b", row.name), ` (puid ${row.puid}) on ${row.host}: `, make("b", row.state, "failed"), `, ${clock(row.ended)}`);
      const output = this.outputs.get(row.puid)?.trimEnd();
      if (output) item.append(make("pre", output.split("\n").slice(-LINES).join("\n")));
      else if (i === 0 && !this.whole) item.append(make("p", "What it wrote is not kept: only output that passes through the runtime is, as with --basic-label.", "quiet"));
    }
    if (failures.length > MOST_LISTED) box.append(make("p", `and ${failures.length - MOST_LISTED} more, in the list of processes`, "quiet"));
    return box;
  }

  drawNodes(run, store) {
    const nodes = nodesOf(run, store, this.heard);
    const behind = nodes.filter((node) => node.reasons.length);
    const box = make("article", "", "nodes");
    box.append(make("h2", "Nodes"));
    box.append(make("p", behind.length ? `${behind.length} of ${plural(nodes.length, "node")} behind:` : `${plural(nodes.length, "node")}, none behind.`, behind.length ? "" : "quiet"));
    const list = box.appendChild(make("ul"));
    for (const { host, reasons } of behind.slice(0, MOST_LISTED)) {
      list.appendChild(make("li")).append(make("b", host), ": ", make("span", reasons.join("; "), "failed"));
    }
    const table = box.appendChild(make("div", "", "across")).appendChild(make("table"));
    const head = table.createTHead().insertRow();
    for (const title of ["Node", "CPUs", "Memory", "Shared", "Processes", "Reported"]) head.append(make("th", title));
    const percent = (value) => (value === undefined ? "" : short(Math.round(value), "%"));
    const body = table.createTBody();
    for (const node of [...behind, ...nodes.filter((node) => !node.reasons.length)].slice(0, MOST_LISTED)) {
      const line = body.insertRow();
      const silent = node.silent === undefined ? "" : `${Math.round(node.silent)} s ago`;
      for (const text of [node.host, percent(node.cpu), percent(node.memory), percent(node.shared), node.processes ?? "", silent]) {
        line.append(make("td", text));
      }
    }
    if (nodes.length > MOST_LISTED) box.append(make("p", `and ${nodes.length - MOST_LISTED} more`, "quiet"));
    return box;
  }
}
