// Draws a graph on a canvas: only what is visible, and no text where it would be too small to read.

const BOX = { height: 40, readable: 0.33, lines: 0.08 };
const boxWidths = new WeakMap();

function boxWidth(node) {
  if (!boxWidths.has(node)) {
    const text = Math.max(8 * node.op_type.split(".").pop().length, 6.6 * Math.min(node.label.length, 22));
    boxWidths.set(node, Math.min(250, 30 + text));
  }
  return boxWidths.get(node);
}

// As much of a text as fits; of a path its end.
function clipped(context, text, width, isPath) {
  if (context.measureText(text).width <= width) return text;
  const part = (length) => (isPath ? `…${text.slice(text.length - length)}` : `${text.slice(0, length)}…`);
  let [low, high] = [0, Math.min(text.length, 60)];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(part(middle)).width <= width) low = middle;
    else high = middle - 1;
  }
  return part(low);
}

function paintGraph(canvas, view, graph, state) {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [view.width, view.height];
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.setTransform(ratio * view.scale, 0, 0, ratio * view.scale, ratio * view.x, ratio * view.y);
  const seen = {
    left: -view.x / view.scale - 120, right: (width - view.x) / view.scale + 120,
    top: -view.y / view.scale - 40, bottom: (height - view.y) / view.scale + 40,
  };
  const colors = Object.fromEntries(["surface", "text", "muted", "accent", "edge", "line", ...state.families].map((n) => [n, color(n)]));
  paintEdges(context, view, graph, state, seen, colors);
  paintNodes(context, view, graph, state, seen, colors);
}

function paintEdges(context, view, graph, state, seen, colors) {
  const thin = 1 / Math.max(view.scale, 0.3);
  for (const isChosen of [false, true]) {
    context.beginPath();
    graph.edges.forEach(([from, to], i) => {
      const touches = state.selected === from || state.selected === to;
      if (touches !== isChosen) return;
      const [top, bottom] = [Math.min(graph.y[from], graph.y[to]), Math.max(graph.y[from], graph.y[to])];
      if (bottom < seen.top || top > seen.bottom) return;
      tracePath(context, graph, i, from, to);
    });
    context.strokeStyle = isChosen ? colors.accent : colors.edge;
    context.lineWidth = isChosen ? 2 * thin : thin;
    context.stroke();
  }
}

function tracePath(context, graph, i, from, to) {
  const isDown = graph.y[to] >= graph.y[from];
  const half = (BOX.height / 2) * (isDown ? 1 : -1);
  let [x, y] = [graph.x[from], graph.y[from] + half];
  context.moveTo(x, y);
  const bends = graph.bends[i];
  for (let k = 0; k <= bends.length; k += 2) {
    const isEnd = k === bends.length;
    const [nextX, nextY] = isEnd ? [graph.x[to], graph.y[to] - half] : [bends[k], bends[k + 1]];
    if (Math.abs(nextX - x) < 0.5) context.lineTo(nextX, nextY);
    else {
      const middle = (y + nextY) / 2;
      context.bezierCurveTo(x, middle, nextX, middle, nextX, nextY);
    }
    [x, y] = [nextX, nextY];
  }
}

function paintNodes(context, view, graph, state, seen, colors) {
  const isReadable = view.scale >= BOX.readable;
  context.textBaseline = "middle";
  graph.nodes.forEach((node, i) => {
    const [x, y] = [graph.x[i], graph.y[i]];
    if (y < seen.top || y > seen.bottom || x < seen.left || x > seen.right) return;
    const wide = boxWidth(node);
    const [left, top] = [x - wide / 2, y - BOX.height / 2];
    const isFaint = state.matches !== null && !state.matches.has(i);
    const isView = state.isKernels && node.kernel === "";
    context.globalAlpha = isFaint ? 0.3 : 1;
    context.beginPath();
    context.roundRect(left, top, wide, BOX.height, 6);
    context.fillStyle = isReadable ? colors.surface : colors[node.family];
    context.fill();
    const isSelected = state.selected === i;
    if (isReadable || isSelected) {
      context.setLineDash(isView ? [4, 3] : []);
      context.strokeStyle = isSelected ? colors.accent : state.matches !== null && !isFaint ? colors.text : colors.line;
      context.lineWidth = isSelected ? 3 / Math.min(1, view.scale) : 1;
      context.stroke();
      context.setLineDash([]);
    }
    if (isReadable) {
      context.save();
      context.clip();
      context.fillStyle = colors[node.family];
      context.fillRect(left, top, 5, BOX.height);
      if (state.slowest && node.seconds) {
        context.globalAlpha *= 0.22;
        context.fillRect(left + 5, top, (wide - 5) * Math.min(1, node.seconds / state.slowest), BOX.height);
        context.globalAlpha = isFaint ? 0.3 : 1;
      }
      context.restore();
      context.fillStyle = colors.text;
      context.font = "600 12px system-ui, sans-serif";
      context.fillText(clipped(context, node.op_type.split(".").pop(), wide - 22), left + 13, y - 8);
      context.fillStyle = colors.muted;
      context.font = "11px system-ui, sans-serif";
      context.fillText(clipped(context, node.label, wide - 22, node.label.includes("/")), left + 13, y + 9);
    }
    context.globalAlpha = 1;
  });
}
