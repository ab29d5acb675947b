// The cells of one chart, and how deltas change them. Rows follow `doc.shards`; matrices are [row][bin].
export class Cells {
  constructor(doc) {
    this.doc = doc;
    this.seq = doc.seq;
    this.row = new Map(doc.shards.map((shard, row) => [shard.index, row]));
    this.bad = new Map(doc.nonfinite.map(([row, bin, count]) => [`${row}:${bin}`, count]));
  }

  get rows() { return this.doc.shards.length; }
  get bins() { return this.doc.bins; }
  get width() { return this.doc.width; }
  bin(step) { return Math.floor((step - this.doc.from) / this.width); }
  first(bin) { return this.doc.from + bin * this.width; }
  last(bin) { return Math.min(this.first(bin) + this.width, Math.max(this.doc.current_step, this.first(bin) + 1)) - 1; }
  diverged(row, bin) { return this.bad.get(`${row}:${bin}`) ?? 0; }

  // Returns "applied", "old", or "refetch" where the delta does not continue what is here.
  apply(delta) {
    if (delta.seq <= this.seq) return "old";
    if (delta.prev > this.seq) return "refetch";
    if (delta.bins.length && delta.width !== this.width) {
      if (this.bins > 0) return "refetch";
      this.doc.width = delta.width;
    }
    this.seq = delta.seq;
    this.doc.current_step = delta.step;
    this.doc.status = delta.status;
    delta.bins.forEach((step, at) => this.put(this.bin(step), delta, at));
    for (const [at, place, count] of delta.nonfinite ?? []) {
      const row = this.row.get(delta.index[place]);
      if (row !== undefined) this.bad.set(`${row}:${this.bin(delta.bins[at])}`, count);
    }
    return "applied";
  }

  put(bin, delta, at) {
    const { doc } = this;
    while (doc.bins <= bin) {
      for (const name of ["mean", "max", "tokens"]) for (const line of doc[name]) line.push(null);
      doc.bins += 1;
      doc.to += doc.width;
    }
    delta.index.forEach((index, place) => {
      const row = this.row.get(index);
      if (row === undefined) return;
      doc.mean[row][bin] = delta.mean[at][place];
      doc.max[row][bin] = delta.max[at][place];
      doc.tokens[row][bin] = delta.tokens[at][place];
      if (delta.mean[at][place] !== null) doc.shards[row].latest = delta.mean[at][place];
    });
  }

  // Mean and deviation of the 16 cells with data before a cell, and how far the cell is from them.
  past(row, bin) {
    const line = this.doc.mean[row];
    const before = [];
    for (let b = bin - 1; b >= 0 && before.length < 16; b--) if (line[b] !== null) before.push(line[b]);
    if (before.length < 3 || line[bin] === null) return null;
    const mean = before.reduce((a, b) => a + b, 0) / before.length;
    const spread = Math.sqrt(before.reduce((a, b) => a + (b - mean) ** 2, 0) / (before.length - 1));
    const floor = 0.01 * Math.max(Math.abs(mean), 1e-6);
    return { mean, z: (line[bin] - mean) / Math.max(spread, floor) };
  }

  // Hardness in force in a cell; the newest known one where the rules have not looked since.
  hardness(row, bin) {
    const line = this.doc.hardness?.[row];
    if (!line) return null;
    return line[Math.min(bin, line.length - 1)] ?? null;
  }

  isSpike(row, bin) {
    const scale = this.scale ?? this.doc.scale;
    const highest = this.doc.max[row][bin];
    return scale !== null && highest !== null && highest > scale.spike;
  }
}

// Steps of workers: [rank][bin] seconds.
export class StepTimes {
  constructor(doc) { this.doc = doc; }
  get rows() { return this.doc.mean_s.length; }

  apply(delta, cells) {
    if (!delta.workers_s) return;
    delta.bins.forEach((step, at) => {
      const bin = cells.bin(step);
      delta.workers_s[at]?.forEach((seconds, rank) => {
        const line = this.doc.mean_s[rank];
        if (!line) return;
        while (line.length <= bin) line.push(null);
        line[bin] = seconds;
      });
    });
  }

  // Share above (+) or below (-) the median of the window.
  ratio(rank, bin) {
    const seconds = this.doc.mean_s[rank][bin] ?? null;
    return seconds === null || !this.doc.median_s ? null : seconds / this.doc.median_s - 1;
  }

  latest(rank) {
    const line = this.doc.mean_s[rank];
    for (let b = line.length - 1; b >= 0; b--) if (line[b] !== null && line[b] !== undefined) return line[b];
    return null;
  }
}
