// The roofline: operations per second over operations per byte, one dot for each layer.

// Of the time of all layers: a plot of less says nothing about the model.
const LEAST_PLOTTED = 0.05;

function rooflineFigure(data, explorer) {
  const { machine } = data;
  const dots = data.layers.filter((layer) => layer.flops > 0 && layer.nbytes > 0 && layer.seconds > 0);
  const seconds = (some) => some.reduce((sum, layer) => sum + layer.seconds, 0);
  if (seconds(dots) < LEAST_PLOTTED * seconds(data.layers)) return null;
  if (!dots.length || !machine.flops_per_s || !machine.nbytes_per_s) return null;
  const holder = element("div");
  const at = (layer) => [layer.flops / layer.nbytes, layer.flops / layer.seconds];
  const ridge = machine.flops_per_s / machine.nbytes_per_s;
  const intensities = [...dots.map((d) => at(d)[0]), ridge];
  const rates = [...dots.map((d) => at(d)[1]), machine.flops_per_s];
  const decade = (value, round) => 10 ** round(Math.log10(value));
  const left = decade(Math.min(...intensities), Math.floor);
  const right = Math.max(10 * left, decade(Math.max(...intensities), Math.ceil));
  const bottom = decade(Math.max(Math.min(...rates), machine.flops_per_s / 1e5), Math.floor);
  const top = Math.max(10 * bottom, decade(Math.max(...rates), Math.ceil));
  const longest = Math.max(...dots.map((d) => d.seconds));

  function draw(width) {
    const height = Math.max(240, Math.min(380, width * 0.5));
    const edge = { left: 92, right: 14, top: 12, bottom: 44 };
    const x = (value) => edge.left + (Math.log10(value / left) / Math.log10(right / left)) * (width - edge.left - edge.right);
    const y = (value) => height - edge.bottom
      - (Math.max(0, Math.log10(value / bottom)) / Math.log10(top / bottom)) * (height - edge.top - edge.bottom);
    const roof = (intensity) => Math.min(machine.flops_per_s, intensity * machine.nbytes_per_s);
    const marks = [];
    for (let v = left; v <= right * 1.01; v *= 10) {
      marks.push(shape("line", { class: "axis", x1: x(v), x2: x(v), y1: edge.top, y2: height - edge.bottom }),
        shape("text", { x: x(v), y: height - edge.bottom + 16, "text-anchor": "middle" }, v >= 1 ? String(Math.round(v)) : v.toPrecision(1)));
    }
    for (let v = bottom; v <= top * 1.01; v *= 10) {
      marks.push(shape("line", { class: "axis", x1: edge.left, x2: width - edge.right, y1: y(v), y2: y(v) }),
        shape("text", { x: edge.left - 6, y: y(v) + 4, "text-anchor": "end" }, rate(v * 1.0001, "FLOP/s").replace(/\.0+ /, " ")));
    }
    const start = Math.max(left, bottom / machine.nbytes_per_s);
    const line = [start, ridge, right].map((v) => `${x(v)},${y(roof(v))}`).join(" ");
    const circles = [...dots].sort((a, b) => b.seconds - a.seconds).map((layer) => {
      const [intensity, speed] = at(layer);
      return shape("circle", {
        cx: x(intensity), cy: y(speed), r: 3 + 9 * Math.sqrt(layer.seconds / longest), fill: `var(--${layer.family})`, "fill-opacity": 0.55,
        stroke: `var(--${layer.family})`, style: "cursor: pointer",
        "data-tip": `${layer.name}\n${layer.kernel}\n${duration(layer.seconds)}, ${rate(speed, "FLOP/s")}, ${digits(intensity)} FLOP per byte`,
        onclick: () => layer.node !== null && explorer && explorer.open(layer.node),
      });
    });
    holder.replaceChildren(plot(width, height, "Roofline plot; the list above has the same layers",
      marks, shape("polyline", { points: line, fill: "none", stroke: "var(--text)", "stroke-width": 2 }), circles,
      shape("text", { x: (edge.left + width - edge.right) / 2, y: height - 8, "text-anchor": "middle" }, "operations per byte")));
  }

  keepDrawn(holder, draw);
  return element("figure", {}, holder, element("figcaption", {},
    `The line is what ${machine.threads} thread${machine.threads === 1 ? "" : "s"} of this machine reached: `
    + `${rate(machine.flops_per_s, "FLOP/s")} of f32 arithmetic and ${rate(machine.nbytes_per_s, "B/s")} from memory. `
    + "Layers whose data lie in caches, or that multiply on matrix tiles, can be above it. A dot's area is its time."));
}
