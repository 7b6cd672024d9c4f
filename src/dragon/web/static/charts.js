// Lines over time.

const CHARTS = [
  { title: "CPU", metrics: ["cpu_percent"], unit: "%", top: 100 },
  { title: "Memory", metrics: ["used_RAM"], unit: "%", top: 100 },
  { title: "Shared memory of the run", metrics: ["def_pool_utilization"], unit: "%", top: 100 },
  { title: "Network", metrics: ["network_sent", "network_received"], unit: "B/s" },
  { title: "Disks", metrics: ["disk_read", "disk_written"], unit: "B/s" },
  { title: "Processes of the run", metrics: ["num_running_processes"], unit: "" },
  { title: "GPU", metrics: ["DeviceUtilization"], unit: "%", top: 100 },
  { title: "GPU memory", metrics: ["DeviceMemoryUtilization"], unit: "%", top: 100 },
  { title: "GPU power", metrics: ["DevicePowerUsage"], unit: "W" },
  { title: "GPU temperature", metrics: ["DeviceTemperature"], unit: "°C" },
  { title: "Messages in queues", metrics: ["queue_depth"], unit: "" },
  { title: "Messages taken from queues", metrics: ["queue_gets"], unit: "/s" },
  { title: "Tasks of pools", metrics: ["pool_tasks_waiting", "pool_tasks_running"], unit: "" },
  { title: "Tasks of pools done", metrics: ["pool_tasks_done"], unit: "/s" },
  { title: "Dictionaries", metrics: ["dictionary_bytes"], unit: "B" },
];
const COLOURS = ["#4c8dff", "#f28e2b", "#3fae7a", "#e15759", "#a27bdb", "#b98a5e", "#e377c2", "#8a949e", "#b5bd3b", "#35b7c4"];
const POWERS = Array.from({ length: 60 }, (_, power) => 2 ** (power - 4)); // where ticks of bytes may be
const HEIGHT = 150;
const MOST_LINES = 64;

// What the page draws: the charts above, and one for each metric of the program's own.
function chartsOf(run) {
  const own = run.names.filter((name) => !(name in run.metrics));
  return [...CHARTS, ...own.map((name) => ({ title: name, metrics: [name], unit: "" }))];
}

class Chart {
  constructor(place, definition, run) {
    this.definition = definition;
    this.run = run;
    this.box = place.appendChild(document.createElement("article"));
    this.box.className = "chart";
    this.box.hidden = true;
    this.box.appendChild(document.createElement("h3")).textContent = definition.title;
    this.labels = "";
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(this.box);
  }

  size() {
    return { width: Math.max(this.box.clientWidth - 16, 100), height: HEIGHT };
  }

  draw(store, host, from, to) {
    const all = store.of(this.definition.metrics, host);
    const lines = all.slice(0, MOST_LINES).map((series) => this.line(series));
    this.box.hidden = lines.length === 0;
    if (!lines.length) return;
    const labels = lines.map((line) => line.label);
    if (all.length > MOST_LINES) labels[0] += ` (${all.length - MOST_LINES} more are not drawn)`;
    if (labels.join("\n") !== this.labels) this.make(labels);
    this.plot.batch(() => {
      this.plot.setData(uPlot.join(lines.map((line) => [line.times, line.values])), false);
      this.plot.setScale("x", { min: from, max: to });
    });
    if (!(this.plot.cursor.left >= 0)) this.tellNewest();
  }

  // While the mouse is elsewhere, the legend has the newest value of each line.
  tellNewest() {
    const idxs = this.plot.data.map((values) => values.findLastIndex((value) => value !== null && value !== undefined));
    this.plot.setLegend({ idxs: idxs.map((index) => (index < 0 ? null : index)) }, false);
  }

  line(series) {
    const label = this.label(series);
    const counts = this.run.metrics[series.metric]?.kind === "counter";
    return counts ? { label, ...rates(series) } : { label, times: series.times, values: series.values };
  }

  label({ metric, tags }) {
    const { host, place, ...others } = tags;
    const parts = this.run.hosts.length > 1 && host ? [host] : [];
    if (this.definition.metrics.length > 1) parts.push(metric.split("_").at(-1));
    if (place) {
      parts.push(place);
      delete others.puid;
      delete others.name;
    }
    for (const [name, value] of Object.entries(others)) parts.push(name === "name" ? value : `${name} ${value}`);
    return parts.join(" ") || host || metric;
  }

  make(labels) {
    this.plot?.destroy();
    this.labels = labels.join("\n");
    const { unit, top } = this.definition;
    const style = getComputedStyle(document.documentElement);
    const [text, line] = ["--quiet", "--line"].map((name) => colour(style.getPropertyValue(name)));
    const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    const options = {
      ...this.size(),
      legend: { live: true },
      cursor: { y: false, points: { size: 6 } },
      scales: { y: { range: (_, low, high) => [Math.min(low ?? 0, 0), top ?? Math.max(high ?? 1, 1e-9) * 1.05] } },
      axes: [
        { ...axis, size: 30, values: (_, ticks) => ticks.map(clock) },
        { ...axis, size: 82, incrs: unit.startsWith("B") ? POWERS : undefined, values: (_, ticks) => ticks.map((tick) => short(tick, unit)) },
      ],
      series: [
        { value: (_, time) => (time ? clock(time) : "") },
        ...labels.map((label, i) => ({
          label,
          stroke: COLOURS[i % COLOURS.length],
          width: 1.5,
          spanGaps: true,
          value: (_, value) => (value === null || value === undefined ? "" : short(value, unit)),
        })),
      ],
    };
    this.plot = new uPlot(options, [[], ...labels.map(() => [])], this.box);
  }
}

// light-dark() as the page's present scheme has it; a canvas does not know that function.
function colour(text) {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = text;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

// What a counter grew by in a second.
function rates({ times, values }) {
  const rate = values.slice(1).map((value, i) => Math.max(value - values[i], 0) / (times[i + 1] - times[i]));
  return { times: times.slice(1), values: rate };
}

function short(value, unit) {
  const steps = unit.startsWith("B") ? ["", "Ki", "Mi", "Gi", "Ti"] : ["", "k", "M", "G", "T"];
  const base = unit.startsWith("B") ? 1024 : 1000;
  let step = 0;
  while (unit !== "%" && Math.abs(value) >= base && step < steps.length - 1) {
    value /= base;
    step += 1;
  }
  const digits = Number.isInteger(value) ? 0 : Math.abs(value) < 10 ? 2 : Math.abs(value) < 100 ? 1 : 0;
  return `${Number(value.toFixed(digits))} ${steps[step]}${unit}`.trim();
}
