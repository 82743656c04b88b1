// The arena over time: each block from the step that writes it to the last that reads it.

function memorySection(data) {
  return data.memory.flatMap((map) => {
    const holder = element("div");
    keepDrawn(holder, (width) => drawArena(holder, map, width));
    const facts = [
      ["arena", map.arena_nbytes], ["alive at once, at most", map.live_nbytes], ["constants", map.constants_nbytes],
      ["scratch of all threads", map.scratch_nbytes], ["outputs", map.outputs_nbytes],
    ];
    const largest = [...map.allocations].sort((a, b) => b.nbytes - a.nbytes).slice(0, 20);
    return [
      data.memory.length > 1 ? element("h3", {}, map.name) : null,
      element("dl", { class: "facts" }, facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, bytes(value))))),
      map.allocations.length ? element("figure", {}, holder, element("figcaption", {},
        "Across: the steps of a run. Up: offsets in the arena. A block is one value's memory while it is needed; the line is what is alive.")) : null,
      map.allocations.length ? element("details", {}, element("summary", {}, "The largest blocks"), scrollable("The largest blocks",
        simpleTable(["value", "size", "offset", "written by", "last read by"], largest.map((block) =>
          [block.name, bytes(block.nbytes), bytes(block.offset), stepName(map, block.first), stepName(map, block.last)]), [1, 2]))) : null,
    ];
  });
}

function stepName(map, i) {
  return `${i}: ${map.steps[i] || ""}`;
}

function drawArena(holder, map, width) {
  const height = Math.max(180, Math.min(320, width * 0.4));
  const edge = { left: 70, right: 8, top: 10, bottom: 36 };
  const count = Math.max(1, map.steps.length);
  const most = Math.max(1, map.arena_nbytes);
  const x = (step) => edge.left + (step / count) * (width - edge.left - edge.right);
  const y = (offset) => height - edge.bottom - (offset / most) * (height - edge.top - edge.bottom);
  const hues = ["matmul", "convolution", "attention", "normalization", "reduction", "pointwise", "trees"];
  const blocks = map.allocations.map((block, i) => shape("rect", {
    x: x(block.first), y: y(block.offset + block.nbytes), width: Math.max(1, x(block.last + 1) - x(block.first) - 0.5),
    height: Math.max(0.8, y(block.offset) - y(block.offset + block.nbytes) - 0.5), rx: 1.5, fill: `var(--${hues[i % hues.length]})`, "fill-opacity": 0.45,
    "data-tip": `${block.name}\n${bytes(block.nbytes)} at ${bytes(block.offset)}\nsteps ${block.first} to ${block.last}`,
  }));
  const alive = new Array(count).fill(0);
  for (const block of map.allocations) for (let i = block.first; i <= Math.min(block.last, count - 1); i++) alive[i] += block.nbytes;
  const line = alive.map((sum, i) => `${x(i)},${y(sum)} ${x(i + 1)},${y(sum)}`).join(" ");
  const marks = [0, 0.5, 1].flatMap((share) => [
    shape("line", { class: "axis", x1: edge.left, x2: width - edge.right, y1: y(share * most), y2: y(share * most) }),
    shape("text", { x: edge.left - 6, y: y(share * most) + 4, "text-anchor": "end" }, bytes(Math.round(share * most))),
  ]);
  holder.replaceChildren(plot(width, height, "Blocks of the arena over the steps of a run; the largest are listed below",
    marks, blocks, shape("polyline", { points: line, fill: "none", stroke: "var(--text)", "stroke-width": 1.5, "pointer-events": "none" }),
    shape("text", { x: edge.left, y: height - 12 }, "step 0"),
    shape("text", { x: width - edge.right, y: height - 12, "text-anchor": "end" }, `step ${count - 1}`)));
}
