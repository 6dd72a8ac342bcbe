// The board: one widget that shows every rank of a job.
//
// Text comes as custom messages {op: "add", n, c}: n counts them, c lists what the ranks did, in order:
//   [rank, 0 | 1, text]    written to standard output or error
//   [rank, "draw", model]  a drawing: the id of an Output widget that holds it
//   [rank, "drop", model]  that drawing is gone
//   [rank, "clear"]        everything the rank has shown is gone
// `tail` is the same for a page that comes late. All state lives with the model, so that every view
// of it is complete. `page` is the HTML of a finished run, for a page that cannot get it as an output.
// screen.js and pane.js stand before this file in the module that the page loads.

const SIDE_BY_SIDE = 4;
const MARKS = { starting: "…", running: "▸", waiting: "◌", stopping: "◐", done: "✓", failed: "✗", stopped: "■" };

// -- the model's state ---------------------------------------------------------------------------

class Board {
  views = new Set();
  last = 0;
  asked = 0;
  waiting = new Map();
  said = "";
  since = performance.now();
  pending = false;

  constructor(model) {
    this.model = model;
    const ranks = model.get("ranks");
    this.all = new Sheet();
    this.sheets = ranks.map((rank) => new Sheet((line) => this.all.add([{ ...line, prefix: `[${rank}] ` }])));
    this.place = new Map(ranks.map((rank, i) => [rank, i]));
    this.beginWithTail();
    model.on("change:tail", () => this.beginWithTail());
    model.on("msg:custom", (message) => this.hear(message));
    model.on("change:page", () => this.redraw());
    model.on("change:status", () => { this.since = performance.now(); this.redraw(); });
    model.send({ op: "hello" });
  }

  get status() { return this.model.get("status"); }
  get running() { return ["starting", "running", "stopping"].includes(this.status.state); }
  get elapsed() { return this.status.elapsed + (this.running ? (performance.now() - this.since) / 1000 : 0); }

  hear(message) {
    if (message.op === "add" && message.n > this.last) {
      if (message.n > this.last + 1) this.tellOfGap();
      this.last = message.n;
      this.apply(message.c);
    } else if (message.op === "ack") {
      this.waiting.get(message.id)?.();
      this.waiting.delete(message.id);
    } else if (message.op === "said") this.said = message.text;
    this.redraw();
  }

  // A page that comes late begins with the end of what the ranks have done; others have seen it all.
  beginWithTail() {
    const tail = this.model.get("tail");
    if (!(tail.n > this.last)) return;
    this.last = tail.n;
    for (const sheet of [...this.sheets, this.all]) sheet.apply(["clear"]);
    this.apply(tail.c);
    this.redraw();
  }

  tellOfGap() {
    const text = "... some output did not reach this page; the log has it";
    for (const sheet of this.sheets) sheet.add([{ text, styles: null }]);
  }

  apply(changes) {
    for (const [rank, ...change] of changes) this.sheets[this.place.get(rank)].apply(change);
  }

  redraw() { // at most one drawing per frame, and none while the page is hidden
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      for (const draw of this.views) draw();
    });
  }

  // Ask the kernel for something; false when it does not answer within a second.
  ask(op) {
    const id = ++this.asked;
    return new Promise((resolve) => {
      const late = setTimeout(() => resolve(false), 1000);
      this.waiting.set(id, () => { clearTimeout(late); resolve(true); });
      this.model.send({ op, id });
    });
  }

  async stop() {
    if ((await this.ask("stop")) || !this.running) return "";
    // A cell that waits for the job keeps the kernel from hearing: interrupt that cell. While the job
    // runs in the background, an interrupt would hit some other cell, so the request has to wait.
    if (this.status.blocking && (await interrupt(this.model.get("kernel")))) return "";
    return this.status.blocking
      ? "The kernel does not hear this while the cell waits: use the notebook's own stop button."
      : "The kernel is busy with a cell; the run is stopped as soon as that cell ends.";
  }

  async where() {
    if (await this.ask("where")) return "";
    return "The kernel is busy with a cell and answers when that cell ends.";
  }
}

// Interrupt the kernel through the notebook server that this page came from.
async function interrupt(kernel) {
  const config = document.getElementById("jupyter-config-data");
  if (!config || !kernel) return false;
  const base = JSON.parse(config.textContent).baseUrl || "/";
  const token = /(?:^|; )_xsrf=([^;]*)/.exec(document.cookie);
  try {
    const url = new URL(`${base.replace(/\/?$/, "/")}api/kernels/${kernel}/interrupt`, location.origin);
    const headers = token ? { "X-XSRFToken": decodeURIComponent(token[1]) } : {};
    return (await fetch(url, { method: "POST", credentials: "same-origin", headers })).ok;
  } catch {
    return false;
  }
}

function duration(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function memory(bytes) {
  if (!bytes) return "";
  return bytes < 1e9 ? `${Math.round(bytes / 1e6)} MB` : `${(bytes / 1e9).toFixed(1)} GB`;
}

// -- one view of the board -----------------------------------------------------------------------

class View {
  constructor(board, model, host) {
    this.board = board;
    this.model = model;
    this.root = host.appendChild(element("div", "nbs"));
    this.drawings = new Set();
    this.buildHead();
    this.tabs = this.root.appendChild(element("div", "nbs-tabs"));
    this.tabs.setAttribute("role", "tablist");
    this.panels = [];
    this.chips = [];
    this.panes = [];
    this.rankPanes = [];
    this.buildPanels();
    this.logs = this.root.appendChild(element("div", "nbs-logs"));
    this.note = this.root.appendChild(element("div", "nbs-note"));
    this.note.setAttribute("role", "status");
    this.answer = this.root.appendChild(element("pre", "nbs-answer"));
    this.select(0);
    this.draw = () => this.redraw();
    board.views.add(this.draw);
    this.clock = setInterval(() => { if (board.running) this.drawHead(); }, 1000);
    this.draw();
  }

  buildHead() {
    const head = this.root.appendChild(element("div", "nbs-head"));
    this.title = head.appendChild(element("b"));
    this.state = head.appendChild(element("span", "nbs-state"));
    this.facts = head.appendChild(element("span", "nbs-facts"));
    this.stopButton = this.button(head, "Stop", () => this.board.stop());
    this.whereButton = this.button(head, "Where is everyone?", () => this.board.where());
    this.notes = this.root.appendChild(element("div", "nbs-notes"));
  }

  button(head, label, act) {
    const button = head.appendChild(element("button", "nbs-button", label));
    button.addEventListener("click", async () => {
      button.disabled = true;
      this.note.textContent = await act();
      button.disabled = !this.board.running;
    });
    return button;
  }

  buildPanels() {
    const ranks = this.model.get("ranks");
    const many = ranks.length > SIDE_BY_SIDE;
    const grid = many ? null : this.panel("Side by side");
    grid?.classList.add("nbs-grid");
    if (ranks.length > 1) this.pane(this.panel("All"), this.board.all, "all ranks");
    ranks.forEach((rank, i) => {
      const tab = many ? this.panel(`Rank ${rank}`) : grid.appendChild(element("div", "nbs-rank"));
      if (many) this.chips.push(this.panels[this.panels.length - 1].tab);
      else this.chips.push(tab.appendChild(element("div", "nbs-chip")));
      this.rankPanes.push(this.pane(tab, this.board.sheets[i], `rank ${rank}`));
    });
    this.tabs.hidden = this.panels.length < 2;
  }

  panel(label) {
    const index = this.panels.length;
    const tab = this.tabs.appendChild(element("button", "nbs-tab", label));
    tab.setAttribute("role", "tab");
    tab.addEventListener("click", () => this.select(index));
    tab.addEventListener("keydown", (event) => this.onKey(event, index));
    const body = this.root.appendChild(element("div", "nbs-panel"));
    body.setAttribute("role", "tabpanel");
    this.panels.push({ tab, body });
    return body;
  }

  pane(host, sheet, label) {
    const pane = new Pane(host.appendChild(element("div")), sheet, label, (model, node) => this.showModel(model, node));
    this.panes.push(pane);
    return pane;
  }

  onKey(event, index) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has its own use for arrows
    const next = (index + step + this.panels.length) % this.panels.length;
    this.select(next);
    this.panels[next].tab.focus();
  }

  select(index) {
    this.panels.forEach(({ tab, body }, i) => {
      tab.setAttribute("aria-selected", String(i === index));
      tab.tabIndex = i === index ? 0 : -1;
      body.hidden = i !== index;
    });
    for (const pane of this.panes) pane.draw();
  }

  // A drawing is an Output widget, shown by the notebook's own renderers.
  async showModel(id, node) {
    try {
      const manager = this.model.widget_manager;
      const view = await manager.create_view(await manager.get_model(id), {});
      this.drawings.add(view);
      node.append(view.el);
      for (const type of ["after-attach", "after-show"]) {
        (view.luminoWidget || view.pWidget)?.processMessage?.({ type, isConflatable: false, conflate: () => false });
      }
      view.trigger?.("displayed");
    } catch (error) {
      node.append(element("div", "nbs-idle", "a drawing that this page cannot show live; it stands on the page at the end"));
      console.warn("nbstate:", error);
    }
  }

  redraw() {
    const page = this.model.get("page");
    if (page) {
      this.root.innerHTML = page;
      return;
    }
    this.drawHead();
    for (const pane of this.panes) if (pane.host.offsetParent) pane.draw();
    this.answer.textContent = this.board.said;
    this.answer.hidden = !this.board.said;
  }

  drawHead() {
    const { status } = this.board;
    this.root.dataset.state = status.state;
    this.title.textContent = status.name;
    this.state.textContent = `${MARKS[status.state] || ""} ${status.state}`;
    this.facts.textContent = [status.where, duration(this.board.elapsed)].filter(Boolean).join(" · ");
    this.notes.textContent = status.notes.join("\n");
    this.logs.textContent = `all that the ranks say: ${status.logs}`;
    this.stopButton.disabled = !this.board.running;
    this.whereButton.disabled = !this.board.running;
    status.ranks.forEach((rank, i) => this.drawRank(rank, i));
  }

  drawRank({ index, state, doing, memory: bytes }, i) {
    const chip = this.chips[i];
    chip.dataset.state = state;
    chip.textContent = [`rank ${index}`, `${MARKS[state] || ""} ${state}`, memory(bytes), doing].filter(Boolean).join("  ");
    chip.title = chip.textContent;
    const pane = this.rankPanes[i];
    const waits = !pane.sheet.used && ["starting", "running", "waiting"].includes(state);
    pane.idle.hidden = !waits;
    if (waits) pane.idle.textContent = `nothing said yet · ${duration(this.board.elapsed)}${doing ? ` · ${doing}` : ""}`;
  }

  close() {
    this.board.views.delete(this.draw);
    clearInterval(this.clock);
    for (const pane of this.panes) pane.close();
    for (const view of this.drawings) {
      try {
        view.remove?.();
      } catch { // the notebook's own views expect to have been attached by the notebook
        view.el.remove();
      }
    }
  }
}

export default () => {
  let board;
  return {
    initialize({ model }) { board = new Board(model); },
    render({ model, el }) {
      const view = new View(board, model, el);
      return () => view.close();
    },
  };
};
