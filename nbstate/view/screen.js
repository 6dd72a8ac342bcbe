// A small terminal, the same as in terminal.py, and what one rank has put on its page, the same as in sheet.py.

const PALETTE = ["#3e424d", "#e75c58", "#00a250", "#ddb62b", "#208ffb", "#d160c4", "#60c6c8", "#c5c1b4",
  "#282c36", "#b22b31", "#007427", "#b27d12", "#0065ca", "#a03196", "#258f8f", "#a1a6b2"];
const LONGEST_LINE = 4000;
const KEPT_LINES = 2000;

function colourOf256(n) {
  if (n < 16) return PALETTE[n];
  if (n < 232) {
    const step = (v) => (v ? v * 40 + 55 : 0);
    n -= 16;
    return `rgb(${step(Math.floor(n / 36))},${step(Math.floor(n / 6) % 6)},${step(n % 6)})`;
  }
  const grey = (n - 232) * 10 + 8;
  return `rgb(${grey},${grey},${grey})`;
}

const SWITCHES = { 1: ["bold", "font-weight:bold"], 2: ["faint", "opacity:.7"], 3: ["italic", "font-style:italic"],
  4: ["underline", "text-decoration:underline"], 7: ["inverse", "filter:invert(1)"] };

class Style {
  on = {};
  css = "";

  set(parameters) {
    const codes = parameters.split(";").map((p) => parseInt(p) || 0);
    for (let i = 0; i < codes.length; i++) {
      if (codes[i] === 38 || codes[i] === 48) i = this.longColour(codes, i);
      else this.simple(codes[i]);
    }
    this.css = Object.values(this.on).join(";");
  }

  longColour(codes, i) {
    const name = codes[i] === 38 ? "color" : "background";
    const short = codes[i + 1] === 5;
    const [r, g, b] = codes.slice(i + 2, i + 5);
    this.on[name] = `${name}:` + (short ? colourOf256(Math.min(r || 0, 255)) : `rgb(${r || 0},${g || 0},${b || 0})`);
    return i + (short ? 2 : 4);
  }

  simple(code) {
    const tens = Math.floor(code / 10), digit = code % 10;
    if (code === 0) this.on = {};
    else if (SWITCHES[code]) this.on[SWITCHES[code][0]] = SWITCHES[code][1];
    else if (code === 22) { delete this.on.bold; delete this.on.faint; }
    else if (SWITCHES[code - 20]) delete this.on[SWITCHES[code - 20][0]];
    else if (code === 39) delete this.on.color;
    else if (code === 49) delete this.on.background;
    else if ((tens === 3 || tens === 9) && digit < 8) this.on.color = `color:${PALETTE[digit + (tens === 9 ? 8 : 0)]}`;
    else if ((tens === 4 || tens === 10) && digit < 8) this.on.background = `background:${PALETTE[digit + (tens === 10 ? 8 : 0)]}`;
  }
}

class Screen {
  lines = [{ text: "", styles: null }];
  row = 0;
  column = 0;
  reach = 0; // how far above the last line the cursor has been, and may come again
  begun = 0; // lines added since it moved up; once they are more than it reaches, the bars are over
  held = "";
  style = new Style();

  feed(text) {
    text = this.held + text;
    const unfinished = /\x1b(\[[0-9;?]{0,64}|\][^\x07\x1b]{0,256})?$/.exec(text);
    this.held = unfinished ? unfinished[0] : "";
    if (unfinished) text = text.slice(0, unfinished.index);
    const control = /\x1b\[([0-9;?]*)([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b.|[\r\n\b]|[\x00-\x07\x0b-\x1a\x1c-\x1f\x7f]/gs;
    let at = 0;
    for (let found; (found = control.exec(text)); at = control.lastIndex) {
      this.put(text.slice(at, found.index));
      this.obey(found);
    }
    this.put(text.slice(at));
  }

  takeSettled() { // the lines that the cursor will not come back to
    const count = Math.max(0, Math.min(this.row, this.lines.length - 1 - this.reach));
    this.row -= count;
    return this.lines.splice(0, count);
  }

  takeAll() {
    const lines = this.lines;
    this.lines = [{ text: "", styles: null }];
    this.row = this.column = 0;
    while (lines.length && !lines[lines.length - 1].text) lines.pop();
    return lines;
  }

  obey([code, parameters, kind]) {
    if (code === "\n") { this.down(1); this.column = 0; }
    else if (code === "\r") this.column = 0;
    else if (code === "\b") this.column = Math.max(0, this.column - 1);
    else if (kind === "m") this.style.set(parameters);
    else if (kind) this.move(kind, parseInt(parameters) || 0);
  }

  move(kind, given) {
    const count = Math.min(Math.max(1, given), LONGEST_LINE);
    if (kind === "A") {
      this.row = Math.max(0, this.row - count);
      this.reach = Math.max(this.reach, this.lines.length - 1 - this.row);
      this.begun = 0;
    } else if (kind === "B") this.down(Math.min(count, 100));
    else if (kind === "C") this.column += count;
    else if (kind === "G") this.column = count - 1;
    else if (kind === "K") this.erase(given);
  }

  down(count) {
    this.row += count;
    for (; this.row >= this.lines.length; this.begun++) this.lines.push({ text: "", styles: null });
    if (this.begun > this.reach) this.reach = 0;
  }

  erase(kind) {
    const line = this.lines[this.row];
    line.text = kind === 0 ? line.text.slice(0, this.column) : "";
    line.styles = kind === 0 && line.styles ? line.styles.slice(0, this.column) : null;
  }

  put(text) {
    text = text.slice(0, Math.max(0, LONGEST_LINE - this.column));
    if (!text) return;
    const line = this.lines[this.row];
    if (line.text.length < this.column) {
      if (line.styles) line.styles.push(...Array(this.column - line.text.length).fill(""));
      line.text = line.text.padEnd(this.column);
    }
    if (!line.styles && this.style.css) line.styles = Array(line.text.length).fill("");
    line.text = line.text.slice(0, this.column) + text + line.text.slice(this.column + text.length);
    if (line.styles) for (let i = 0; i < text.length; i++) line.styles[this.column + i] = this.style.css;
    this.column += text.length;
  }
}


class Sheet {
  blocks = []; // {lines: [...]} or {model: "..."}
  screens = [new Screen(), new Screen()];
  count = 0;
  used = false;

  constructor(settled = () => {}) { this.settled = settled; }

  apply([kind, value]) {
    this.used = true;
    if (kind === 0 || kind === 1) {
      this.screens[kind].feed(value);
      this.add(this.screens[kind].takeSettled());
    } else if (kind === "draw") {
      this.add(this.screens[0].takeAll());
      this.blocks.push({ model: value });
    } else if (kind === "drop") this.blocks = this.blocks.filter((block) => block.model !== value);
    else if (kind === "clear") {
      this.blocks = [];
      this.count = 0;
      for (const screen of this.screens) screen.takeAll();
    }
  }

  add(lines) {
    if (!lines.length) return;
    for (const line of lines) this.settled(line);
    const last = this.blocks[this.blocks.length - 1];
    if (last && last.lines) last.lines.push(...lines);
    else this.blocks.push({ lines });
    this.count += lines.length;
    if (this.count > KEPT_LINES + 256) this.trim();
  }

  trim() {
    for (const block of this.blocks) {
      if (!block.lines || this.count <= KEPT_LINES) continue;
      this.count -= block.lines.splice(0, this.count - KEPT_LINES).length;
    }
    this.blocks = this.blocks.filter((block) => !block.lines || block.lines.length);
  }

  unfinished() { return this.screens.flatMap((screen) => screen.lines.filter((line) => line.text)); }
}

