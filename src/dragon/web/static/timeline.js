// A lane for each process that lived in the interval shown, by node, with a bar from its start to its end, and in it the
// tasks that it ran. Only the lanes that are seen are drawn.

const LANE = 14;
const AXIS = 22; // height of the times above the lanes
const LEAST_SPAN = 1e-3; // seconds that can be shown
const STEPS = [1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];

class Timeline {
  constructor(box) {
    this.box = box;
    this.canvas = box.querySelector("canvas");
    this.spacer = box.querySelector(".spacer");
    this.tip = byId("tip");
    this.nodes = []; // of each its host and its processes
    this.lanes = []; // processes, and before those of each node a heading
    this.whole = { from: 0, to: 1 };
    this.zoomed = null; // the interval that was chosen; the whole run, which goes on, otherwise
    this.tasks = new Map(); // by puid
    this.moved = () => {};
    this.drag = null;
    this.colours = null;
    this.due = false;
    new ResizeObserver(() => this.draw()).observe(box);
    box.addEventListener("scroll", () => {
      this.tip.hidden = true;
      this.draw();
    });
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
    canvas.addEventListener("pointercancel", () => this.stop());
    canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    canvas.addEventListener("dblclick", () => this.zoom(null));
    canvas.addEventListener("keydown", (event) => this.key(event));
    byId("whole").onclick = () => this.zoom(null);
  }

  get shown() {
    return this.zoomed ?? this.whole;
  }

  get left() {
    return Math.min(150, this.box.clientWidth * 0.3);
  }

  show(rows, from, to) {
    this.whole = { from, to: Math.max(to, from + LEAST_SPAN) };
    this.nodes = [...Map.groupBy(rows, (row) => row.host)].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
    for (const [, members] of this.nodes) members.sort((a, b) => a.started - b.started || a.puid - b.puid);
    this.arrange();
  }

  // Choose the lanes. The process at that height stays there.
  arrange(height = 0) {
    const { from, to } = this.shown;
    const kept = height ? this.at(height) : undefined;
    const before = this.lanes.indexOf(kept);
    this.lanes = this.nodes.flatMap(([host, rows]) => {
      const seen = this.zoomed ? rows.filter((row) => row.started <= to && (row.ended ?? to) >= from) : rows;
      const part = seen.length < rows.length ? `${seen.length.toLocaleString("en")} of ` : "";
      return [{ heading: `${host}: ${part}${plural(rows.length, "process", "processes")}` }, ...seen];
    });
    const after = this.lanes.indexOf(kept);
    this.size();
    if (kept && after >= 0) this.box.scrollTop += (after - before) * LANE;
    this.draw();
  }

  size() {
    const total = AXIS + this.lanes.length * LANE + 4;
    this.spacer.style.height = `${total}px`;
    return total;
  }

  showTasks(tasks) {
    this.tasks = tasks.byPuid;
    byId("tasks").textContent = tasks.note;
    byId("tasks").hidden = !tasks.note;
    byId("task").hidden = !this.tasks.size;
    this.box.dataset.tasks = [...this.tasks.values()].reduce((sum, some) => sum + some.length, 0);
    this.draw();
  }

  // Whether any of it is on the screen.
  get isSeen() {
    const { top, bottom } = this.box.getBoundingClientRect();
    return top < innerHeight && bottom > 0;
  }

  recolour() {
    this.colours = null;
    this.draw();
  }

  // ---- where things are

  across(time) {
    const { from, to } = this.shown;
    return this.left + ((time - from) / (to - from)) * (this.box.clientWidth - this.left);
  }

  timeAt(x) {
    const { from, to } = this.shown;
    return from + ((x - this.left) / Math.max(this.box.clientWidth - this.left, 1)) * (to - from);
  }

  // The process whose lane is there.
  at(y) {
    const lane = y < AXIS ? undefined : this.lanes[Math.floor((y - AXIS + this.box.scrollTop) / LANE)];
    return lane?.heading === undefined ? lane : undefined;
  }

  // ---- the interval

  zoom(interval, height) {
    const { from, to } = this.whole;
    if (interval) {
      const span = Math.max(interval.to - interval.from, LEAST_SPAN);
      const begin = Math.min(Math.max(interval.from, from), Math.max(to - span, from));
      this.zoomed = span >= to - from ? null : { from: begin, to: begin + span };
    } else this.zoomed = null;
    this.arrange(height);
    this.moved();
  }

  zoomBy(factor, around, height) {
    const { from, to } = this.shown;
    this.zoom({ from: around - (around - from) * factor, to: around + (to - around) * factor }, height);
  }

  wheel(event) {
    if (event.shiftKey || event.offsetX < this.left) return; // which scrolls
    event.preventDefault();
    const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
    this.zoomBy(Math.exp(Math.min(Math.max(event.deltaY * lines, -300), 300) * 0.002), this.timeAt(event.offsetX), event.offsetY);
  }

  key(event) {
    const { from, to } = this.shown;
    const step = (to - from) / 4;
    const middle = (from + to) / 2;
    const does = {
      "+": () => this.zoomBy(0.5, middle),
      "-": () => this.zoomBy(2, middle),
      ArrowLeft: () => this.zoomed && this.zoom({ from: from - step, to: to - step }),
      ArrowRight: () => this.zoomed && this.zoom({ from: from + step, to: to + step }),
      Escape: () => this.zoom(null),
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  }

  down(event) {
    if (event.button !== 0 || event.offsetX < this.left) return;
    this.drag = { begun: event.offsetX, now: event.offsetX };
    this.canvas.setPointerCapture(event.pointerId);
  }

  move(event) {
    if (this.drag) {
      this.drag.now = Math.max(event.offsetX, this.left);
      this.draw();
    }
    const row = this.drag ? undefined : this.at(event.offsetY);
    this.tip.hidden = !row;
    if (!row) return;
    const task = taskAt(this.tasks.get(row.puid) ?? [], (time) => this.across(time), event.offsetX);
    const lines = task && event.offsetX >= this.left ? this.aboutTask(task, row) : this.about(row);
    this.tip.replaceChildren(...lines.map((text, i) => make(i ? "div" : "b", text)));
    const width = document.documentElement.clientWidth;
    this.tip.style.left = `${Math.max(Math.min(event.clientX + 12, width - this.tip.offsetWidth - 8), 0)}px`;
    const below = event.clientY + 16;
    const fits = below + this.tip.offsetHeight <= innerHeight;
    this.tip.style.top = `${fits ? below : Math.max(event.clientY - this.tip.offsetHeight - 8, 0)}px`;
  }

  about(row) {
    const until = row.ended === null ? "" : ` to ${clock(row.ended)}`;
    return [row.name, row.state, `${clock(row.started)}${until}, ${duration(row.lasted)}`, `puid ${row.puid}, pid ${row.pid}, ${row.host}`];
  }

  aboutTask(task, row) {
    const until = task.runs ? "" : ` to ${toMilliseconds(task.end)}`;
    const outcome = task.runs ? "a task that still runs" : task.failed ? "a task that failed" : "a task";
    const times = `${toMilliseconds(task.start)}${until}, ${brief(task.end - task.start)}`;
    return [task.name, outcome, times, `in ${row.name}, puid ${row.puid}, ${row.host}`];
  }

  up(event) {
    if (!this.drag) return;
    const [first, last] = [this.drag.begun, this.drag.now].sort((a, b) => a - b).map((x) => this.timeAt(x));
    const wide = Math.abs(this.drag.now - this.drag.begun) > 4;
    this.stop();
    if (wide) this.zoom({ from: first, to: last }, event.offsetY);
  }

  stop() {
    this.drag = null;
    this.draw();
  }

  // ---- on the canvas

  draw() {
    if (this.due) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      this.paint();
    });
  }

  paint() {
    const { box, canvas, shown } = this;
    const total = this.size();
    const [width, height] = [box.clientWidth, Math.min(total, box.clientHeight || total)];
    const scale = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
    if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    this.colours ??= Object.fromEntries(
      ["ground", "raised", "line", "text", "quiet", "accent", "ended", "failed", "task"].map((name) => [name, colour(`var(--${name})`)]),
    );
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const times = this.ticks();
    pen.fillStyle = this.colours.line;
    for (const time of times) pen.fillRect(Math.round(this.across(time)), AXIS, 1, height);
    const first = Math.floor(box.scrollTop / LANE);
    const last = Math.min(first + Math.ceil(height / LANE) + 1, this.lanes.length);
    for (let i = first; i < last; i++) this.lane(pen, this.lanes[i], AXIS + i * LANE - box.scrollTop, width);
    this.axis(pen, times, width);
    if (this.drag) {
      pen.globalAlpha = 0.25;
      pen.fillStyle = this.colours.accent;
      pen.fillRect(Math.min(this.drag.begun, this.drag.now), AXIS, Math.abs(this.drag.now - this.drag.begun), height);
      pen.globalAlpha = 1;
    }
    Object.assign(box.dataset, { from: shown.from, to: shown.to, lanes: this.lanes.length });
    byId("interval").textContent = this.zoomed ? `${clock(shown.from)} to ${clock(shown.to)}, ${duration(shown.to - shown.from)}` : "the whole run";
    byId("whole").hidden = !this.zoomed;
  }

  lane(pen, lane, y, width) {
    const middle = y + LANE / 2;
    if (lane.heading !== undefined) {
      pen.fillStyle = this.colours.raised;
      pen.fillRect(0, y, width, LANE);
      pen.fillStyle = this.colours.text;
      pen.fillText(lane.heading, 6, middle);
      return;
    }
    const end = lane.ended ?? this.whole.to;
    const from = Math.max(this.across(lane.started), this.left);
    const to = Math.min(Math.max(this.across(end), this.across(lane.started) + 1.5), width);
    if (to > from) {
      pen.fillStyle = this.colours[{ live: "accent", failed: "failed" }[lane.look] ?? "ended"];
      const tasks = this.tasks.get(lane.puid);
      if (tasks) pen.globalAlpha = 0.3; // so that one sees when the process had no task
      pen.fillRect(from, y + 2, to - from, LANE - 4);
      pen.globalAlpha = 1;
      if (tasks) drawTasks(pen, tasks, (time) => this.across(time), y + 2, LANE - 4, this.left, width, this.colours);
    }
    pen.save();
    pen.beginPath();
    pen.rect(0, y, this.left - 6, LANE);
    pen.clip();
    pen.fillStyle = lane.look === "failed" ? this.colours.failed : lane.look === "live" ? this.colours.text : this.colours.quiet;
    pen.fillText(shortened(pen, lane.name, this.left - 24), 12, middle);
    pen.restore();
  }

  axis(pen, times, width) {
    pen.fillStyle = this.colours.ground;
    pen.fillRect(0, 0, width, AXIS);
    pen.fillStyle = this.colours.quiet;
    pen.textAlign = "center";
    const fine = this.shown.to - this.shown.from < 10;
    for (const time of times) {
      const text = fine ? toMilliseconds(time) : clock(time);
      const half = pen.measureText(text).width / 2;
      pen.fillText(text, Math.min(Math.max(this.across(time), this.left + half), width - half - 2), AXIS / 2);
    }
    pen.textAlign = "start";
  }

  // Whole numbers of a step, of which some fit in.
  ticks() {
    const { from, to } = this.shown;
    const least = ((to - from) * 90) / Math.max(this.box.clientWidth - this.left, 90);
    const step = STEPS.find((step) => step >= least) ?? Math.ceil(least / 86400) * 86400;
    const found = [];
    for (let i = Math.ceil(from / step); i * step <= to; i++) found.push(i * step);
    return found;
  }
}

// A text, or as much of its beginning as a width has room for.
function shortened(pen, text, width) {
  const whole = pen.measureText(text).width;
  return whole <= width ? text : `${text.slice(0, Math.max(Math.floor((text.length * width) / whole) - 1, 1))}…`;
}
