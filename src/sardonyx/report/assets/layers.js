// Time by layer, beside the least time that the machine's rates allow.

const FIRST_SHOWN = 30;

// The length of the path that all names begin with: it would fill the column of names.
function commonPath(names) {
  if (names.length < 2) return 0;
  let length = names[0].lastIndexOf("/") + 1;
  while (length && !names.every((name) => name.startsWith(names[0].slice(0, length)))) length = names[0].lastIndexOf("/", length - 2) + 1;
  return length;
}

function rooflineText(layer) {
  return `${percent(Math.min(1, layer.limit_s / layer.seconds))} of the roofline, bound by ${layer.bound}`;
}

function layersSection(data, explorer) {
  const { layers } = data;
  const total = layers.reduce((sum, layer) => sum + layer.seconds, 0);
  const prefix = commonPath(layers.map((layer) => layer.name));
  const hasLimits = layers.some((layer) => layer.limit_s);
  const bars = element("div", { class: "bars" });
  let [order, isAll] = ["slowest", false];
  const sorted = () => (order === "slowest" ? [...layers].sort((a, b) => b.seconds - a.seconds) : layers);
  const choices = [["slowest", "Slowest first"], ["order", "As they run"]].map(([name, text]) =>
    element("button", { type: "button", onclick: () => { order = name; draw(); } }, text));
  const more = element("button", { type: "button", class: "screen", onclick: () => { isAll = !isAll; draw(); } });

  function draw() {
    choices.forEach((button, i) => button.setAttribute("aria-pressed", String((i === 0) === (order === "slowest"))));
    const longest = Math.max(...layers.map((layer) => Math.max(layer.seconds, layer.limit_s || 0)));
    const shown = isAll ? sorted() : sorted().slice(0, FIRST_SHOWN);
    bars.replaceChildren(...shown.map((layer) => bar(layer, longest)));
    more.hidden = layers.length <= FIRST_SHOWN;
    more.textContent = isAll ? "Show fewer" : `Show all ${layers.length}`;
  }

  function bar(layer, longest) {
    const reach = layer.limit_s ? `\n${rooflineText(layer)}` : "";
    const work = layer.flops ? `\n${rate(layer.flops / layer.seconds, "FLOP/s")}, ${rate((layer.nbytes || 0) / layer.seconds, "B/s")}` : "";
    return element("button", {
      type: "button", class: "bar", "data-tip": `${layer.name}\n${layer.kernel}${work}${reach}`,
      onclick: () => layer.node !== null && explorer && explorer.open(layer.node),
    },
      tail(layer.name.slice(prefix), "name"),
      element("span", { class: "track" },
        element("span", { class: "fill", style: `width: ${(100 * layer.seconds) / longest}%; background: var(--${layer.family})` }),
        layer.limit_s ? element("span", { class: "limit", style: `left: ${(100 * layer.limit_s) / longest}%` }) : null),
      element("span", { class: "time" }, duration(layer.seconds)),
      element("span", { class: "share" }, percent(layer.seconds / total)));
  }

  draw();
  const about = `${plural(layers.length, "layer")}, ${duration(total)} together`
    + (data.run_s ? `; a run that is not observed takes ${duration(data.run_s)}.` : ".")
    + (hasLimits ? " The mark on a bar is the least time that the machine's arithmetic and memory allow." : "");
  return [element("p", { class: "muted" }, about), element("div", { class: "row screen" }, choices, more), bars];
}
