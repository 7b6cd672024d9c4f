// The tasks of pools and batches, which a run records at level 5, for the timeline.

const LEVEL_OF_TASKS = 5;

// The tasks of an interval.
class Tasks {
  constructor(source) {
    this.source = source;
    this.nodes = [];
    this.run = null;
    this.from = 0;
    this.byPuid = new Map(); // those that each process ran, in the order of their starts
  }

  // Ask for those that ran between two times, or run now, if the run records them.
  async look(run, rows, from, to) {
    [this.run, this.from] = [run, from];
    this.nodes = run.level >= LEVEL_OF_TASKS ? await this.source.tasks(from, to) : [];
    const lives = Map.groupBy(rows, (row) => `${row.node}:${row.pid}`);
    this.byPuid = new Map();
    for (const { node, tasks } of this.nodes) {
      for (const [pid, start, end, name, failed] of tasks) {
        const row = livedAt(lives.get(`${node}:${pid}`) ?? [], end ?? start);
        if (!row) continue;
        if (!this.byPuid.has(row.puid)) this.byPuid.set(row.puid, []);
        this.byPuid.get(row.puid).push({ start, end: end ?? Math.max(run.now, start), name, failed, runs: end === null });
      }
    }
    for (const tasks of this.byPuid.values()) tasks.sort((a, b) => a.start - b.start);
  }

  // In a line, which of them are shown, or how to have them.
  get note() {
    if (!this.run) return "";
    if (this.run.level < LEVEL_OF_TASKS) return "Tasks of pools and batches are recorded at level 5: dragon -T 5, or DRAGON_TELEMETRY_LEVEL=5.";
    if (!this.nodes.length) return "Tasks are not recorded; the log of the run says why.";
    const count = this.nodes.reduce((sum, node) => sum + node.count, 0);
    const shown = this.nodes.reduce((sum, node) => sum + node.tasks.length, 0);
    const running = this.nodes.flatMap((node) => node.tasks).filter(([, , end]) => end === null).length;
    const parts = [count ? plural(count, "task") : "No task of a pool or a batch ran in this interval"];
    if (shown < count) parts[0] = `${shown.toLocaleString("en")} of ${parts[0]}: those that failed and the longest; zoom in to see the others`;
    if (running) parts.push(`${running.toLocaleString("en")} still ${running > 1 ? "run" : "runs"}`);
    const since = Math.max(0, ...this.nodes.map((node) => node.known_since));
    if (since > this.from) parts.push(`not all that ended before ${clock(since)} are kept`);
    if (this.nodes.some((node) => node.lost)) parts.push("some were not recorded, as there were too many at once");
    return `${parts.join("; ")}.`;
  }
}

// Of processes that had the same process id one after the other, the one that lived at a time. Ends are told a little late.
function livedAt(rows, time) {
  const sorted = rows.toSorted((a, b) => a.started - b.started);
  return sorted.find((row) => row.ended === null || row.ended >= time) ?? sorted.at(-1);
}

// Draw tasks in a lane, those that failed on top.
function drawTasks(pen, tasks, across, y, height, left, right, colours) {
  for (const failed of [false, true]) {
    pen.fillStyle = failed ? colours.failed : colours.task;
    for (const task of tasks) {
      if (task.failed !== failed) continue;
      const from = Math.round(Math.max(across(task.start), left));
      const to = Math.min(across(task.end), right);
      const gap = to - from > 4 ? 1 : 0; // between one and the next
      if (to >= left && from <= right) pen.fillRect(from, y, Math.max(to - from - gap, failed ? 2 : 1), height);
    }
  }
}

// The task that is drawn at a place, among those near it the shortest.
function taskAt(tasks, across, x) {
  const near = tasks.filter((task) => across(task.start) - 1 <= x && x <= Math.max(across(task.end), across(task.start) + 1) + 1);
  const length = (task) => task.end - task.start;
  const rank = (a, b) => b.failed - a.failed || length(a) - length(b);
  return near.sort(rank)[0];
}

function toMilliseconds(seconds) {
  const whole = Math.round(seconds * 1000);
  return `${clock(whole / 1000)}.${String(whole % 1000).padStart(3, "0")}`;
}

// A duration that may be very short.
function brief(seconds) {
  if (seconds >= 1) return duration(seconds);
  return seconds >= 1e-3 ? `${(seconds * 1e3).toPrecision(3)} ms` : `${Math.round(seconds * 1e6)} µs`;
}
