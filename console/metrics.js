// What GET /metrics says, read twice a few seconds apart, as rates over the last minutes.

const KEPT = 150;

/** Samples of the Prometheus text format: `[{name, labels, value}]`. */
export function parse(text) {
  const samples = [];
  for (const line of text.split('\n')) {
    const found = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] || '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[name] = value;
    samples.push({ name: found[1], labels, value: Number(found[3]) });
  }
  return samples;
}

const sum = (samples, name, by) => {
  const sums = {};
  for (const s of samples) {
    if (s.name === name) sums[by(s.labels)] = (sums[by(s.labels)] || 0) + s.value;
  }
  return sums;
};

// Differences of two readings, where the server did not start anew in between.
const differences = (now, before) =>
  Object.fromEntries(Object.entries(now).map(([k, v]) => [k, Math.max(0, v - (before[k] ?? v))]));

// The q-quantile of a histogram's growth, interpolated within its bucket as Prometheus does; seconds.
function quantile(buckets, q) {
  const bounds = Object.keys(buckets).map((le) => [le === '+Inf' ? Infinity : Number(le), buckets[le]]);
  bounds.sort((a, b) => a[0] - b[0]);
  const total = bounds.at(-1)?.[1] || 0;
  if (!total) return null;
  let low = 0;
  let below = 0;
  for (const [bound, n] of bounds) {
    if (n >= q * total) {
      if (bound === Infinity) return low;
      return low + ((bound - low) * (q * total - below)) / (n - below || 1);
    }
    low = bound;
    below = n;
  }
  return low;
}

const OUTCOMES = ['granted', 'held', 'timeout', 'no_quorum', 'cancelled', 'rejected'];

/** Readings become series: `add(text)` each time, then `series` has what the charts draw. */
export class History {
  times = [];
  acquisitions = OUTCOMES.map(() => []);
  outcomes = OUTCOMES;
  waiting = [[], []];
  handovers = [[]];
  nodes = [];
  latencies = [];
  events = [];
  #before;

  add(text, at = Date.now()) {
    const samples = parse(text);
    const now = {
      at,
      acquisitions: sum(samples, 'quorate_acquisitions_total', (l) => l.outcome),
      waits: sum(samples, 'quorate_wait_duration_seconds_bucket', (l) => l.le),
      waited: sum(samples, 'quorate_wait_duration_seconds_count', () => 'all'),
      spent: sum(samples, 'quorate_node_request_duration_seconds_sum', (l) => l.node),
      asked: sum(samples, 'quorate_node_request_duration_seconds_count', (l) => l.node),
      lost: sum(samples, 'quorate_extensions_total', (l) => (l.outcome === 'lost' ? l.primitive : '')),
      forced: sum(samples, 'quorate_forced_releases_total', (l) => l.primitive),
      expired: sum(samples, 'quorate_leases_expired_total', (l) => l.primitive),
    };
    const before = this.#before;
    this.#before = now;
    if (!before) return;
    const seconds = (now.at - before.at) / 1000;
    this.times.push(now.at / 1000);
    const acquisitions = differences(now.acquisitions, before.acquisitions);
    OUTCOMES.forEach((outcome, i) => this.acquisitions[i].push((acquisitions[outcome] || 0) / seconds));
    const waits = differences(now.waits, before.waits);
    [0.5, 0.95].forEach((q, i) => {
      const value = quantile(waits, q);
      this.waiting[i].push(value === null ? null : value * 1000);
    });
    this.handovers[0].push((differences(now.waited, before.waited).all || 0) / seconds);
    const spent = differences(now.spent, before.spent);
    const asked = differences(now.asked, before.asked);
    for (const node of Object.keys(now.spent)) {
      if (!this.nodes.includes(node)) {
        this.nodes.push(node);
        this.latencies.push(this.times.slice(1).map(() => null));
      }
    }
    this.nodes.forEach((node, i) => this.latencies[i].push(asked[node] ? (1000 * spent[node]) / asked[node] : null));
    for (const [kind, said] of [['lost', 'lost'], ['forced', 'released by force'], ['expired', 'expired unreleased']]) {
      for (const [primitive, n] of Object.entries(differences(now[kind], before[kind]))) {
        if (n && primitive) this.events.unshift({ at: now.at, primitive, n, said });
      }
    }
    this.events.length = Math.min(this.events.length, 20);
    for (const column of [this.times, ...this.acquisitions, ...this.waiting, ...this.handovers, ...this.latencies]) {
      if (column.length > KEPT) column.shift();
    }
  }
}
