// Which of a job's shards one chart shows: a search, and pages where there are more than one answer holds.
import { count } from "./words.js";

const SEARCH_FROM = 40; // fewer are seen at a glance
const TYPING_MS = 300;

export class Finder {
  constructor(part, changed) {
    Object.assign(this, { part, changed, search: "", offset: 0, size: 0, total: 0 });
    const input = part.find.querySelector("input");
    input.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.look(input.value.trim()), TYPING_MS);
    });
    part.find.addEventListener("submit", (event) => {
      event.preventDefault();
      clearTimeout(this.timer);
      this.look(input.value.trim());
    });
    part.pager.addEventListener("click", ({ target }) => this.page(target.value));
  }

  query() {
    return { ...(this.search ? { search: this.search } : {}), ...(this.offset ? { offset: this.offset } : {}) };
  }

  first() { this.offset = 0; }

  look(words) {
    if (words === this.search) return;
    this.search = words;
    this.offset = 0;
    this.changed();
  }

  page(way) {
    if (way === "next") this.offset += this.size;
    else if (way === "before") this.offset = Math.max(0, this.offset - this.most);
    else return;
    this.changed();
  }

  // What came: how many there are, and where in them the chart stands.
  show(doc) {
    this.size = doc.shards.length;
    this.most = Math.max(this.most ?? 0, this.size);
    this.total = doc.num_shards;
    if (this.offset && !this.size && this.total) { // fewer than there were
      this.offset = 0;
      this.changed();
    }
    const { part } = this;
    const paged = this.offset > 0 || this.total > this.size;
    part.find.hidden = !paged && !this.search && this.total < SEARCH_FROM;
    part.pager.hidden = !paged;
    const [before, next] = part.pager.children;
    before.disabled = this.offset === 0;
    next.disabled = this.offset + this.size >= this.total;
    const range = this.size ? `${count(this.offset + 1)} to ${count(this.offset + this.size)} of ${count(this.total)} shards` : "";
    part.found.textContent = !this.total ? "No shard has this text in its id or category."
      : paged ? range : this.search ? `${count(this.total)} shard${this.total === 1 ? "" : "s"} found` : "";
  }
}
