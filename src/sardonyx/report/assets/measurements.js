// Benchmarks: the median of each engine with its interval, in groups of equal settings, and the numbers as a table.

function measurementsSection(data) {
  const settings = [...new Set(data.measurements.map((m) => m.setting))];
  const engines = [...new Set(data.measurements.map((m) => m.engine))];
  const hues = ["matmul", "convolution", "normalization", "attention", "trees", "reduction"];
  const hue = (engine) => `var(--${hues[engines.indexOf(engine) % hues.length]})`;
  const figures = settings.map((setting) => {
    const group = data.measurements.filter((m) => m.setting === setting);
    const holder = element("div");
    keepDrawn(holder, (width) => drawIntervals(holder, group, hue, width));
    return [setting ? element("h3", {}, setting) : null, holder];
  });
  const has = (name) => data.measurements.some((m) => m[name] !== null && m[name] !== "");
  const columns = [
    ["engine", (m) => m.engine], ["setting", (m) => m.setting, "setting"], ["median", (m) => duration(m.median_s)],
    ["interval", (m) => `${duration(m.low_s)} to ${duration(m.high_s)}`], ["p90", (m) => duration(m.p90_s), "p90_s"], ["p99", (m) => duration(m.p99_s), "p99_s"],
    ["samples per second", (m) => (m.throughput === null ? "" : digits(m.throughput)), "throughput"], ["peak memory", (m) => bytes(m.peak_nbytes), "peak_nbytes"],
  ].filter(([, , name]) => !name || has(name));
  return [
    data.verdict ? element("p", {}, data.verdict) : null, ...figures.flat(),
    scrollable("Times", simpleTable(columns.map(([name]) => name),
      data.measurements.map((m) => columns.map(([, value]) => value(m))), columns.map((_, i) => i).filter((i) => !["engine", "setting"].includes(columns[i][0])))),
    element("p", { class: "muted" }, "Dots are medians, lines their confidence intervals. Less is better."),
  ];
}

function drawIntervals(holder, group, hue, width) {
  const isNarrow = width < 520;
  const [label, line, edge] = [isNarrow ? 0 : 190, isNarrow ? 40 : 26, 60];
  const longest = Math.max(...group.map((m) => m.high_s)) || 1;
  const x = (seconds) => label + 6 + (seconds / longest) * (width - label - edge - 12);
  const rows = group.flatMap((m, i) => {
    const y = 18 + i * line + (isNarrow ? 14 : 0);
    const text = m.engine.length > 28 ? `${m.engine.slice(0, 27)}…` : m.engine;
    return [
      shape("text", isNarrow ? { x: 2, y: y - 12, class: "strong" } : { x: label - 8, y: y + 4, "text-anchor": "end", class: "strong" }, text),
      shape("line", { class: "axis", x1: x(0), x2: x(longest), y1: y, y2: y }),
      shape("line", { x1: x(m.low_s), x2: x(m.high_s), y1: y, y2: y, stroke: hue(m.engine), "stroke-width": 6, "stroke-opacity": 0.4, "stroke-linecap": "round" }),
      shape("circle", {
        cx: x(m.median_s), cy: y, r: 5, fill: hue(m.engine),
        "data-tip": `${m.engine}\n${duration(m.median_s)} (${duration(m.low_s)} to ${duration(m.high_s)})`,
      }),
      shape("text", { x: Math.min(width - edge, x(m.high_s) + 10), y: y + 4 }, duration(m.median_s)),
    ];
  });
  const height = 18 + group.length * line + 6;
  holder.replaceChildren(plot(width, height, "Medians and intervals; the table below has the numbers", rows));
}
