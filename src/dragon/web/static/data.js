// Where the page gets its data: from the run that serves it, or from what is in the page itself.

const CLOCKS_APART = 60; // seconds that the clock of a node may differ

class Live {
  constructor(token) {
    this.token = token;
  }

  async get(path, parameters = {}) {
    const answer = await fetch(`${path}?${new URLSearchParams(parameters)}`, {
      headers: { Authorization: `Bearer ${this.token}` },
    });
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  }

  run() {
    return this.get("run");
  }

  query(metrics, since, interval) {
    return this.get("query", { metrics: metrics.join(","), since, interval });
  }

  lifetimes(since) {
    return this.get("lifetimes", { since });
  }

  waits() {
    return this.get("waits");
  }

  tasks(start, end) {
    return this.get("tasks", { start, end });
  }

  // The end of what a process wrote, or why that cannot be known.
  async output(puid) {
    try {
      return await this.get("output", { puid });
    } catch (error) {
      if (error instanceof TypeError) throw error;
      return error.message;
    }
  }
}

// The processes that live or have ended. Those that ended long ago are asked for only once.
class Lives {
  constructor(source) {
    this.source = source;
    this.known = new Map(); // by puid
    this.complete = false;
  }

  async look(run) {
    const before = this.known;
    const told = await this.source.lifetimes(this.complete ? Math.max(run.now - CLOCKS_APART, 0) : 0);
    const answered = new Map(told.map((life) => [life.puid, life]));
    const missing = [...before.values()].filter((life) => life.ended === null && !answered.has(life.puid));
    const lost = missing.filter((life) => life.node in run.lost).map((life) => ({ ...life, lost: true, ended: run.now }));
    if (this.complete && missing.length > lost.length) {
      this.complete = false; // one has ended, by a clock that is far off, or was forgotten
      return this.look(run);
    }
    const gone = [...before.values()].filter((life) => life.lost);
    this.known = new Map([...(this.complete ? before : []), ...[...gone, ...lost].map((life) => [life.puid, life]), ...answered]);
    this.complete = true;
    return [...this.known.values()];
  }
}

class Embedded {
  constructor(data) {
    this.data = data;
  }

  async run() {
    return this.data.run;
  }

  async query(metrics, since) {
    const wanted = new Set(metrics);
    const records = this.data.records
      .filter(([metric]) => wanted.has(metric))
      .map(([metric, tags, times, values]) => {
        const first = times.findIndex((time) => time >= since);
        return first < 0 ? null : [metric, tags, times.slice(first), values.slice(first)];
      });
    return { now: this.data.run.now, records: records.filter((record) => record !== null) };
  }

  async lifetimes() {
    return this.data.lifetimes;
  }

  async tasks(from, to) {
    return this.data.tasks.map((node) => {
      const tasks = node.tasks.filter(([, start, end]) => end >= from && start <= to);
      return { ...node, tasks, count: tasks.length };
    });
  }

  async output() {
    return "";
  }
}

// The series of the page, each the values of one metric with one set of tags.
class Store {
  constructor() {
    this.series = new Map();
  }

  // Add what was answered; a value takes the place of one of the same time, as the last interval may have gone on.
  add(records) {
    for (const [metric, tags, times, values] of records) {
      const key = JSON.stringify([metric, Object.entries(tags).sort()]);
      let series = this.series.get(key);
      if (!series) this.series.set(key, (series = { metric, tags, times: [], values: [] }));
      for (let i = 0; i < times.length; i++) {
        while (series.times.length && series.times.at(-1) >= times[i]) {
          series.times.pop();
          series.values.pop();
        }
        series.times.push(times[i]);
        series.values.push(values[i]);
      }
    }
  }

  forget(before) {
    for (const [key, { times, values }] of this.series) {
      const first = times.findIndex((time) => time >= before);
      if (first < 0) this.series.delete(key);
      else if (first > 0) {
        times.splice(0, first);
        values.splice(0, first);
      }
    }
  }

  clear() {
    this.series.clear();
  }

  of(metrics, host) {
    const found = [...this.series.values()];
    return found.filter(({ metric, tags }) => metrics.includes(metric) && (!host || tags.host === host));
  }
}
