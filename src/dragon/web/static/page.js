// The page itself: asks again and again, and draws what it is told.

const AGAIN = 1000;
const SETTLED = 150; // milliseconds after which an interval counts as chosen
const PART = 0.1; // of the time may go into asking: a run of very many nodes takes a while to answer
let page; // the page, once there is one
const byId = (id) => document.getElementById(id);

async function main() {
  const embedded = byId("data").textContent.trim();
  const source = embedded ? new Embedded(JSON.parse(embedded)) : new Live(location.hash.slice(1));
  page = new Page(source, Boolean(embedded));
  for (;;) {
    const begun = performance.now();
    if (embedded || !document.hidden) await page.look();
    if (embedded) return;
    const took = performance.now() - begun;
    await new Promise((resume) => setTimeout(resume, Math.max(AGAIN - took, took / PART - took)));
  }
}

class Page {
  constructor(source, whole) {
    [this.source, this.whole] = [source, whole];
    this.store = new Store();
    this.charts = new Map();
    this.since = 0; // the time from which on to ask for measurements
    this.afresh = true; // whether those of the whole window are to be asked for
    this.busy = false;
    this.wanted = false; // whether to ask again after the question that is open
    if (whole) nameForWhole();
    this.processes = new Processes(byId("processes"), byId("filter"), byId("counts"));
    if (whole) this.processes.order = { column: FAILED_FIRST, direction: 1 };
    this.processes.opened = () => this.look();
    this.lives = new Lives(source);
    this.overview = new Overview(byId("overview"), source, whole);
    this.timeline = new Timeline(byId("timeline"));
    this.tasks = new Tasks(source);
    this.timeline.moved = () => this.lookAtTasksSoon();
    byId("lanes").onchange = () => this.draw();
    byId("window").closest("label").hidden = whole;
    byId("window").onchange = () => this.startAgain();
    byId("node").onchange = () => this.draw();
    addEventListener("resize", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
  }

  get window() {
    return this.whole ? this.run.now - this.run.started : Number(byId("window").value);
  }

  startAgain() {
    this.afresh = true;
    this.look();
  }

  recolour() {
    for (const chart of this.charts.values()) chart.labels = "";
    this.timeline.recolour();
    this.draw();
  }

  // Ask for what is new. While a question is open, remember to ask again: what to show may have changed since it was asked.
  async look() {
    this.wanted = true;
    if (this.busy) return;
    this.busy = true;
    try {
      while (this.wanted) {
        this.wanted = false;
        await this.lookOnce();
      }
    } finally {
      this.busy = false;
    }
  }

  async lookOnce() {
    try {
      this.run = await this.source.run();
      await this.lookAtCharts();
      await this.lookAtProcesses();
      if (this.whole || this.timeline.isSeen) await this.lookAtTasks();
      byId("trouble").hidden = true;
      this.draw();
    } catch (error) {
      byId("trouble").hidden = false;
      byId("trouble").textContent = error instanceof TypeError ? "The run is over, or cannot be reached." : error.message;
      if (!(error instanceof TypeError)) console.error(error);
    }
  }

  async lookAtCharts() {
    for (const definition of chartsOf(this.run)) {
      if (!this.charts.has(definition.title)) {
        this.charts.set(definition.title, new Chart(byId("charts"), definition, this.run));
      }
    }
    const interval = Math.max(this.run.period, this.window / 300);
    const metrics = [...this.charts.values()].flatMap((chart) => chart.definition.metrics);
    if (this.afresh) {
      this.afresh = false;
      this.store.clear();
      this.since = this.run.now - this.window;
    }
    const { now, records } = await this.source.query(metrics, this.since, interval);
    this.store.add(records);
    this.store.forget(now - this.window);
    this.since = Math.max(now - 2 * interval - 2 * this.run.period, 0);
  }

  async lookAtProcesses() {
    const [{ records }, lifetimes] = await Promise.all([
      this.source.query(PROCESS_METRICS, this.run.now - 15 * this.run.period, 0),
      this.lives.look(this.run),
    ]);
    this.rows = rowsOf(lifetimes, records, this.run, this.whole);
    await this.overview.look(this.run, this.rows, this.store);
    if (this.processes.open) this.processes.output = await this.source.output(this.processes.open);
  }

  // The tasks of the interval that the timeline shows.
  async lookAtTasks() {
    const { zoomed } = this.timeline;
    await this.tasks.look(this.run, this.rows, zoomed?.from ?? this.run.started, zoomed?.to ?? this.run.now + CLOCKS_APART);
    this.timeline.showTasks(this.tasks);
  }

  lookAtTasksSoon() {
    clearTimeout(this.soon);
    this.soon = setTimeout(() => this.look(), SETTLED);
  }

  draw() {
    if (!this.rows) return;
    this.tell();
    const host = byId("node").value;
    const { now } = this.run;
    for (const chart of this.charts.values()) {
      chart.run = this.run;
      chart.draw(this.store, host, Math.max(now - this.window, this.run.started), now);
    }
    this.overview.draw(this.run, this.rows, this.store);
    const rows = this.rows.filter((row) => !host || row.host === host);
    this.processes.show(rows);
    const look = byId("lanes").value;
    this.timeline.show(rows.filter((row) => !look || row.look === look), this.run.started, now);
  }

  tell() {
    const { command, hosts, lost, started, now, level, name } = this.run;
    const brief = command.replace(/^\S*\//, ""); // without the folder of the interpreter
    document.title = `${brief} – dragon`;
    Object.assign(byId("command"), { textContent: brief, title: command });
    const gone = Object.entries(lost).map(([node, reason]) => `${hosts[node]} is lost: ${reason}`);
    const facts = [`run ${name}`, `${hosts.length} node${hosts.length > 1 ? "s" : ""}`, duration(now - started)];
    if (!level) facts.push("nothing is measured");
    facts.push(...(this.run.notes ?? []));
    byId("facts").textContent = [...facts, ...gone].join(" · ");
    const choice = byId("node");
    if (choice.options.length !== hosts.length + 1) {
      choice.replaceChildren(new Option("all", ""), ...hosts.map((host) => new Option(host, host)));
    }
  }
}

main();
