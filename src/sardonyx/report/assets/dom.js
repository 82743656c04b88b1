// Elements, numbers and tips. Text reaches the page as text nodes only, never as markup.

function element(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function shape(tag, attributes, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

// A drawing; on paper it is scaled.
function plot(width, height, label, ...children) {
  return shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") made.style.cssText = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) made.append(child);
  }
  return made;
}

// Text whose end tells most, such as a path: where it does not fit, its beginning is cut, or lines end behind slashes.
function tail(text, className) {
  const parts = text.split(/(?<=[/])/).flatMap((part, i) => (i ? [element("wbr"), part] : [part]));
  return element("span", { class: `tail ${className || ""}` }, element("bdi", { dir: "ltr" }, parts));
}

function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function digits(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return value.toFixed(size < 10 ? 2 : size < 100 ? 1 : 0);
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const [unit, scale] = seconds >= 1 ? ["s", 1] : seconds >= 1e-3 ? ["ms", 1e-3] : ["µs", 1e-6];
  return `${digits(seconds / scale)} ${unit}`;
}

function bytes(count) {
  if (count === null || count === undefined) return "";
  for (const unit of ["B", "KiB", "MiB"]) {
    if (count < 1024) return `${unit === "B" ? count : digits(count)} ${unit}`;
    count /= 1024;
  }
  return `${digits(count)} GiB`;
}

function rate(value, unit) {
  for (const [prefix, scale] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (value >= scale) return `${digits(value / scale)} ${prefix}${unit}`;
  }
  return `${digits(value)} ${unit}`;
}

function percent(share) {
  return `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;
}

// A box that scrolls sideways where its contents are too wide for it. Then shadows at its edges say where there is more,
// and it can have the focus, for the arrow keys.
function scrollable(label, ...children) {
  const box = element("div", { class: "scroll" }, children);
  const holder = element("div", { class: "scrollable" }, box);
  const mark = () => {
    const hidden = box.scrollWidth - box.clientWidth;
    holder.classList.toggle("more-before", hidden > 1 && box.scrollLeft > 1);
    holder.classList.toggle("more-after", hidden > 1 && box.scrollLeft < hidden - 1);
    for (const [name, value] of [["tabindex", "0"], ["role", "region"], ["aria-label", `${label}, scrolls sideways`]]) {
      if (hidden > 1) box.setAttribute(name, value);
      else box.removeAttribute(name);
    }
  };
  box.addEventListener("scroll", mark, { passive: true });
  new ResizeObserver(mark).observe(box);
  new MutationObserver(mark).observe(box, { childList: true });
  return holder;
}

const tip = document.getElementById("tip");

function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - box.width - 4))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 10) : y + 18}px`;
}

function hideTip() {
  tip.hidden = true;
}

// Elements with data-tip show it under the pointer and when they have the focus.
function serveTips(root) {
  root.addEventListener("pointermove", (event) => {
    const holder = event.target.closest("[data-tip]");
    if (holder) showTip(holder.dataset.tip, event.clientX, event.clientY);
    else hideTip();
  });
  root.addEventListener("pointerleave", hideTip);
  root.addEventListener("focusin", (event) => {
    const holder = event.target.closest("[data-tip]");
    if (!holder || !holder.matches(":focus-visible")) return;
    const box = holder.getBoundingClientRect();
    showTip(holder.dataset.tip, box.left, box.bottom - 14);
  });
  root.addEventListener("focusout", hideTip);
}

// Calls draw(width) now and whenever the holder's size, the colours or the medium change. Drawings
// that set their holder's height are not told of it.
const redraws = [];

function keepDrawn(holder, draw, isTall) {
  let [width, height] = [0, 0];
  const again = () => { if (width) draw(width); };
  redraws.push(again);
  new ResizeObserver((entries) => {
    const found = entries[0].contentRect;
    if (Math.floor(found.width) === width && (Math.floor(found.height) === height || !isTall)) return;
    [width, height] = [Math.floor(found.width), Math.floor(found.height)];
    again();
  }).observe(holder);
}

function redrawAll() {
  for (const again of redraws) again();
}
