// A scrolling column of text and drawings. Text is only ever set as textContent.

const ROW = 16;
const HAND = 1000; // milliseconds for which what scrolls is taken to be moved by a person

function element(tag, name, text) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  return node;
}

function paint(node, line) {
  node.replaceChildren();
  if (line.prefix) node.append(element("span", "nbs-prefix", line.prefix));
  const { text, styles } = line;
  for (let i = 0, j; i < text.length; i = j) {
    const style = styles ? styles[i] || "" : "";
    for (j = i + 1; j < text.length && (!styles || (styles[j] || "") === style);) j = styles ? j + 1 : text.length;
    const part = text.slice(i, j);
    if (style) {
      const span = element("span", "", part);
      span.style.cssText = style;
      node.append(span);
    } else node.append(part);
  }
}

// A scrolling column of text and drawings. Rows have one height and only those in sight exist.
class Pane {
  nodes = new Map();
  sticks = true;
  touched = -Infinity;

  constructor(host, sheet, label, showModel) {
    this.sheet = sheet;
    this.showModel = showModel;
    this.host = host;
    host.classList.add("nbs-pane");
    host.tabIndex = 0;
    host.setAttribute("role", "log");
    host.setAttribute("aria-live", "off");
    host.setAttribute("aria-label", label);
    this.body = host.appendChild(element("div", "nbs-body"));
    this.idle = this.body.appendChild(element("div", "nbs-idle"));
    this.last = this.body.appendChild(element("div", "nbs-text"));
    // Drawings that are replaced make the pane scroll by itself; only a person makes it stop following.
    for (const type of ["wheel", "touchmove", "keydown", "pointerdown", "pointermove"]) {
      host.addEventListener(type, (event) => {
        if (type !== "pointermove" || event.buttons) this.touched = performance.now();
      }, { passive: true });
    }
    host.addEventListener("scroll", () => {
      if (performance.now() - this.touched < HAND) {
        this.sticks = host.scrollTop + host.clientHeight >= host.scrollHeight - 2 * ROW;
      }
      this.drawRows();
    }, { passive: true });
    this.observer = new ResizeObserver(() => this.follow());
    this.observer.observe(this.body);
    this.observer.observe(host);
  }

  draw() {
    const blocks = this.sheet.blocks;
    for (const [block, node] of this.nodes) {
      if (!blocks.includes(block)) { node.remove(); this.nodes.delete(block); }
    }
    for (const block of blocks) {
      let node = this.nodes.get(block);
      if (!node) {
        node = element("div", block.lines ? "nbs-text" : "nbs-drawing");
        this.nodes.set(block, node);
        this.body.insertBefore(node, this.last);
        if (block.model) this.showModel(block.model, node);
      }
      if (block.lines) node.style.height = `${block.lines.length * ROW}px`;
    }
    const unfinished = this.sheet.unfinished();
    this.last.style.height = `${unfinished.length * ROW}px`;
    this.fill(this.last, unfinished, 0, unfinished.length);
    this.follow();
  }

  follow() {
    if (this.sticks) this.host.scrollTop = this.host.scrollHeight;
    this.drawRows();
  }

  drawRows() {
    const top = this.host.scrollTop, height = this.host.clientHeight;
    for (const [block, node] of this.nodes) {
      if (!block.lines) continue;
      const first = Math.max(0, Math.floor((top - node.offsetTop) / ROW) - 1);
      const end = Math.min(block.lines.length, Math.ceil((top + height - node.offsetTop) / ROW) + 1);
      this.fill(node, block.lines, first, Math.max(first, end));
    }
  }

  fill(node, lines, first, end) {
    while (node.children.length > end - first) node.lastChild.remove();
    while (node.children.length < end - first) node.append(element("div", "nbs-row"));
    for (let i = first; i < end; i++) {
      const row = node.children[i - first];
      row.style.top = `${i * ROW}px`;
      const key = lines[i];
      if (row.line === key && row.shown === key.text && !key.styles) continue;
      paint(row, key);
      row.line = key;
      row.shown = key.text;
    }
  }

  close() { this.observer.disconnect(); }
}

