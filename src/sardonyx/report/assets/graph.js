// The explorer: tabs for the graphs, search, the canvas, and what is known of the selected node.

const MOST_RESULTS = 60;

class Explorer {
  constructor({ graphs, layers }) {
    this.graphs = graphs;
    this.layers = new Map(layers.filter((layer) => layer.node !== null).map((layer) => [layer.node, layer]));
    this.total = layers.reduce((sum, layer) => sum + layer.seconds, 0);
    this.families = [...new Set(graphs.flatMap((g) => g.nodes.map((n) => n.family)))];
    this.state = { selected: null, matches: null, families: this.families, isKernels: false, slowest: 0 };
    this.tabs = graphs.map((graph, i) => element("button", {
      type: "button", role: "tab", id: `tab-${i}`, "aria-controls": "stage", onclick: () => this.show(i),
      onkeydown: (event) => this.turn(event, i),
    }, `${graph.name} (${graph.nodes.length})`));
    this.search = element("input", {
      type: "search", class: "search", placeholder: "Search nodes, operators, kernels, types", "aria-label": "Search the graph",
      oninput: () => this.find(), onkeydown: (event) => { if (event.key === "Enter" && this.found.length) this.select(this.found[0], true); },
    });
    this.results = element("div", { class: "results", role: "status", "aria-label": "Found nodes" });
    this.about = element("p", { class: "muted" });
    this.canvas = element("canvas", {
      id: "graph", tabindex: "0", role: "application",
      "aria-label": "Graph. Arrow keys go along edges and sideways, plus and minus zoom, 0 shows everything.",
      onkeydown: (event) => this.key(event), onclick: (event) => this.click(event), onpointermove: (event) => this.hover(event),
      onpointerleave: hideTip,
    });
    this.view = new View(this.canvas, () => this.draw());
    const control = (label, text, act) => element("button", { type: "button", "aria-label": label, onclick: act }, text);
    this.stage = element("div", { class: "stage", id: "stage", role: "tabpanel" }, this.canvas,
      element("div", { class: "controls" },
        control("Zoom in", "+", () => this.view.zoom(1.4)), control("Zoom out", "−", () => this.view.zoom(1 / 1.4)),
        control("Show everything", "Fit", () => this.fit(true))));
    this.details = element("aside", { class: "details", "aria-label": "Selected node", "aria-live": "polite", tabindex: "-1" });
    this.legend = element("div", { class: "legend" });
    this.root = element("div", {},
      element("div", { class: "row" }, element("div", { class: "row", role: "tablist", "aria-label": "Graphs" }, this.tabs), this.search),
      this.results, this.about, element("div", { class: "explorer" }, this.stage, this.details), this.legend);
    this.found = [];
    keepDrawn(this.stage, () => { if (!this.isFitted) this.fit(false); else this.draw(); }, true);
    this.show(graphs.length - 1);
    addEventListener("beforeprint", () => this.paint()); // in the colours of paper; no frame comes before the print
  }

  get graph() { return this.graphs[this.current]; }

  show(i) {
    this.current = i;
    this.isFitted = false;
    const graph = this.graph;
    this.tabs.forEach((tab, k) => {
      tab.setAttribute("aria-selected", String(k === i));
      tab.tabIndex = k === i ? 0 : -1;
    });
    this.state.isKernels = i === this.graphs.length - 1;
    this.state.slowest = Math.max(0, ...graph.nodes.map((n) => n.seconds || 0));
    this.state.selected = null;
    this.box = { left: Infinity, right: -Infinity, top: Infinity, bottom: -Infinity };
    graph.nodes.forEach((node, k) => {
      const half = boxWidth(node) / 2;
      this.box.left = Math.min(this.box.left, graph.x[k] - half);
      this.box.right = Math.max(this.box.right, graph.x[k] + half);
      this.box.top = Math.min(this.box.top, graph.y[k] - BOX.height / 2);
      this.box.bottom = Math.max(this.box.bottom, graph.y[k] + BOX.height / 2);
    });
    this.before = graph.nodes.map(() => []);
    this.after = graph.nodes.map(() => []);
    graph.edges.forEach(([from, to, type]) => {
      this.after[from].push([to, type]);
      this.before[to].push([from, type]);
    });
    const note = graph.omitted ? ` ${graph.omitted} further nodes are not drawn.` : "";
    this.about.textContent = graph.about + note + (this.state.isKernels && this.state.slowest ? " The tint is the share of the slowest." : "");
    const present = new Set(graph.nodes.map((n) => n.family));
    this.legend.replaceChildren(...this.families.filter((f) => present.has(f)).map((family) =>
      element("span", {}, element("i", { style: `background: var(--${family})` }), family)));
    this.find();
    this.describe();
    if (this.view.width) this.fit(false);
    if (this.found.length && this.view.width) this.view.center(graph.x[this.found[0]], graph.y[this.found[0]]);
  }

  turn(event, i) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = (i + step + this.tabs.length) % this.tabs.length;
    this.show(next);
    this.tabs[next].focus();
  }

  fit(isWhole) {
    this.isFitted = true;
    if (!this.graph.nodes.length) return;
    this.view.fit(this.box, isWhole);
    const isCut = (this.box.right - this.box.left) * this.view.scale > this.view.width;
    if (!isWhole && isCut) this.view.centerAcross(this.graph.x.filter((_, k) => this.view.showsHeight(this.graph.y[k])));
  }

  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.paint();
    });
  }

  paint() {
    paintGraph(this.canvas, this.view, this.graph, this.state);
    const { scale, x, y } = this.view;
    Object.assign(this.canvas.dataset, { scale, x, y, selected: this.state.selected ?? "" });
  }

  find() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.found = [];
    if (words.length) {
      this.graph.nodes.forEach((node, i) => {
        const text = [node.label, node.op_type, node.kernel, node.provider, ...node.inputs, ...node.outputs, ...node.members].join(" ").toLowerCase();
        if (words.every((word) => text.includes(word))) this.found.push(i);
      });
    }
    this.state.matches = words.length ? new Set(this.found) : null;
    const shown = this.found.slice(0, MOST_RESULTS).map((i) => {
      const node = this.graph.nodes[i];
      return element("button", { type: "button", onclick: () => this.select(i, true) },
        element("span", {}, node.op_type), tail(node.label));
    });
    const count = words.length ? `${this.found.length || "Nothing"} found` : "";
    this.results.hidden = !words.length;
    this.results.replaceChildren(element("span", { class: "muted" }, count), ...shown);
    this.draw();
  }

  select(i, isCentered) {
    this.state.selected = i;
    if (isCentered) this.view.center(this.graph.x[i], this.graph.y[i]);
    this.describe();
    this.draw();
  }

  // Selects a node of the graph of kernels, for other sections of the page.
  open(i) {
    this.show(this.graphs.length - 1);
    this.isFitted = true;
    this.select(i, true);
    document.getElementById("section-graph").scrollIntoView();
    this.canvas.focus({ preventScroll: true });
  }

  at(event) {
    const [x, y] = this.view.toGraph(event);
    return this.graph.nodes.findIndex((node, i) =>
      Math.abs(y - this.graph.y[i]) <= BOX.height / 2 && Math.abs(x - this.graph.x[i]) <= boxWidth(node) / 2);
  }

  click(event) {
    if (this.view.moved > 5) return;
    this.canvas.focus({ preventScroll: true });
    const i = this.at(event);
    this.select(i < 0 ? null : i, false);
  }

  hover(event) {
    const i = event.buttons ? -1 : this.at(event);
    if (i < 0) return hideTip();
    const node = this.graph.nodes[i];
    const time = node.seconds ? `\n${duration(node.seconds)}` : "";
    return showTip(`${node.op_type}: ${node.label}${node.kernel ? `\n${node.kernel}` : ""}${time}`, event.clientX, event.clientY);
  }

  key(event) {
    const { graph, state } = this;
    const acts = {
      "+": () => this.view.zoom(1.25), "=": () => this.view.zoom(1.25), "-": () => this.view.zoom(0.8), 0: () => this.fit(true),
      Escape: () => this.select(null, false), Enter: () => this.details.focus(),
    };
    let act = acts[event.key];
    if (event.key.startsWith("Arrow") && graph.nodes.length) {
      act = () => this.select(state.selected === null ? this.first() : this.neighbour(event.key), true);
    }
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }

  first() {
    const [x, y] = [(this.view.width / 2 - this.view.x) / this.view.scale, (this.view.height / 2 - this.view.y) / this.view.scale];
    return this.nearest(this.graph.nodes.map((_, i) => i), x, y);
  }

  nearest(among, x, y) {
    const distance = (i) => Math.hypot(this.graph.x[i] - x, this.graph.y[i] - y);
    return among.reduce((best, i) => (distance(i) < distance(best) ? i : best), among[0]);
  }

  neighbour(key) {
    const { graph, state: { selected } } = this;
    const [x, y] = [graph.x[selected], graph.y[selected]];
    let among;
    if (key === "ArrowDown") among = this.after[selected].map(([i]) => i);
    else if (key === "ArrowUp") among = this.before[selected].map(([i]) => i);
    else {
      const isRight = key === "ArrowRight";
      among = graph.nodes.map((_, i) => i).filter((i) => graph.y[i] === y && (isRight ? graph.x[i] > x : graph.x[i] < x));
    }
    return among.length ? this.nearest(among, x, y) : selected;
  }

  describe() {
    const i = this.state.selected;
    this.details.classList.toggle("empty", i === null);
    if (i === null) {
      this.details.replaceChildren(element("p", { class: "muted" }, "Select a node: click it, search for it, or turn to the graph and use the arrow keys."));
      return;
    }
    const node = this.graph.nodes[i];
    const kernels = this.graphs[this.graphs.length - 1];
    const go = (to, type) => element("li", {}, element("button", { type: "button", onclick: () => this.select(to, true) },
      `${this.graph.nodes[to].op_type} · ${this.graph.nodes[to].label}${type ? ` · ${type}` : ""}`));
    const jump = (to) => element("li", {}, element("button", { type: "button", onclick: () => this.open(to) },
      `${kernels.nodes[to].op_type} · ${kernels.nodes[to].kernel || "no kernel"}`));
    const list = (title, items) => items.length ? [element("h4", {}, title), element("ul", {}, items)] : [];
    const plain = (texts) => texts.map((text) => element("li", { class: "mono" }, text));
    const layer = this.state.isKernels ? this.layers.get(i) : undefined;
    const facts = [
      ["time", node.seconds === null ? "" : duration(node.seconds) + (layer ? `, ${percent(layer.seconds / this.total)} of the layers'` : "")],
      ["limit", layer && layer.limit_s ? rooflineText(layer) : ""], ["provider", node.provider],
      ["kernels", node.kernel || (this.state.isKernels ? "none: it only rearranges memory" : "")],
    ].filter(([, value]) => value).map(([name, value]) => element("li", {}, `${name}: ${value}`));
    this.details.replaceChildren(
      element("h3", {}, node.op_type), element("p", { class: "mono" }, node.label), element("ul", {}, facts),
      ...list("Outputs", plain(node.outputs)), ...list("Inputs", plain(node.inputs)), ...list("Attributes", plain(node.attributes)),
      ...list(this.state.isKernels ? "Computes" : "Comes from", plain(node.members)),
      ...list("Runs in", node.links.map(jump)),
      ...list("Why this kernel", plain(node.reason.split("\n").filter(Boolean))),
      ...list("Reads from", this.before[i].map(([to, type]) => go(to, type))), ...list("Read by", this.after[i].map(([to, type]) => go(to, type))));
  }
}
