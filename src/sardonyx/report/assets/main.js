// The page: a section for each kind of fact that the report has.

const data = JSON.parse(document.getElementById("data").textContent);
const content = document.getElementById("content");
const sections = document.getElementById("sections");

function section(name, title, children, isLong) {
  const made = element("section", { id: `section-${name}`, "aria-labelledby": `title-${name}`, class: isLong ? "long" : null },
    element("h2", { id: `title-${name}` }, title), children);
  content.append(made);
  sections.append(element("a", { href: `#section-${name}` }, title));
}

function factList(pairs) {
  return element("dl", { class: "facts" }, pairs.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
}

document.getElementById("created").textContent = `Made by Sardonyx, ${data.created}`;
document.getElementById("created").className = "muted";
section("summary", "Summary", factList(data.summary));
if (data.findings.length) {
  section("findings", "Findings", data.findings.map((finding) => element("div", { class: `finding ${finding.severity}` },
    element("strong", {}, finding.title), finding.evidence ? element("p", {}, finding.evidence) : null,
    finding.fix ? element("p", {}, `What to do: ${finding.fix}`) : null)));
}
const explorer = new Explorer(data);
section("graph", "Graph", explorer.root);
if (data.layers.length) section("layers", "Time by layer", [...layersSection(data, explorer), rooflineFigure(data, explorer)], true);
if (data.memory.length) section("memory", "Memory", memorySection(data), true);
if (data.measurements.length) section("benchmark", "Benchmark", measurementsSection(data));
if (data.tables.length) section("tables", "Accuracy and quantization", data.tables.flatMap(sortedTable), true);
if (data.rewrites.length || data.declined.length) {
  section("rewrites", "Optimizer", [
    data.rewrites.length ? scrollable("Rewrites", simpleTable(["pass", "rewrites"], data.rewrites, [1])) : null,
    data.declined.length ? element("details", {}, element("summary", {}, `${plural(data.declined.length, "place")} where a pass declined`),
      scrollable("Places where a pass declined", simpleTable(["pass", "node", "why"], data.declined))) : null,
  ], true);
}
section("environment", "Environment", factList(data.environment));
serveTips(document.body);
applyTheme();
