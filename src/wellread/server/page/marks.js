// Links at any threshold without asking again, and the text with its marks.
import { verdictOf } from "./corrections.js";
import { count, el, offsets, said, score } from "./parts.js";

// As the server decides: which of all scored spans are links. `rule` is the linker's: see /health.
export function decide(links, rule, threshold) {
  const wanted = links.filter((link) => link.entity !== null);
  if (rule === "first") {
    wanted.sort((one, other) => one.start - other.start || other.end - one.end);
    return apart(wanted).filter((link) => link.score >= threshold);
  }
  const passed = wanted.filter((link) => threshold <= 0 || link.score > threshold);
  const size = (link) => link.end - link.start;
  passed.sort(rule === "longest"
    ? (one, other) => size(other) - size(one) || one.start - other.start
    : (one, other) => other.score - one.score || one.start - other.start || one.end - other.end);
  return apart(passed).sort((one, other) => one.start - other.start || other.end - one.end);
}

// Those that overlap none before them.
function apart(links) {
  const kept = [], taken = [];
  for (const link of links) {
    let low = 0, high = taken.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (taken[middle].start < link.start) low = middle + 1; else high = middle;
    }
    const before = taken[low - 1], behind = taken[low];
    if ((before && before.end > link.start) || (behind && behind.start < link.end)) continue;
    taken.splice(low, 0, link);
    kept.push(link);
  }
  return kept;
}

// " · found by: typo", where the linker says how it found a span.
export const foundBy = (link) => (link.found_by ? ` · found by: ${link.found_by}` : "");

export const same = (link) => [link.kb, link.start, link.end, link.entity].join("\u0000");

// The text with marks in it. Links of one span share a mark; one that crosses the end of another is cut there.
export function marked(text, links, { colours, only, pick, isShown }) {
  const at = offsets(text), spans = new Map();
  for (const link of links) {
    const key = `${link.start} ${link.end}`;
    if (!spans.has(key)) spans.set(key, { start: link.start, end: link.end, links: [] });
    spans.get(key).links.push(link);
  }
  const first = (one, other) => one.start - other.start || other.end - one.end;
  const queue = [...spans.values()].sort(first);
  const box = el("div", { className: "text", dir: "auto", lang: "", role: "group", "aria-label": "Text with its links: arrow keys go from one to the next, Enter opens" });
  const fill = (parent, from, to) => {
    let here = from, height = 0;
    while (queue.length && queue[0].start < to) {
      const span = queue.shift(), end = Math.min(span.end, to);
      parent.append(text.slice(at[here], at[span.start]));
      const mark = make(span), lanes = lanesOf(span);
      const inside = fill(mark, span.start, end);
      mark.style.setProperty("--h", inside);
      parent.append(lanes.reduce((inner, name, at) => el("span", { className: `lane ${name}`, "--h": inside + at + 1 }, inner), mark));
      height = Math.max(height, inside + 1 + lanes.length);
      if (span.end > end) {
        const rest = { ...span, start: end, again: true };
        let place = queue.findIndex((other) => first(rest, other) < 0);
        if (place < 0) place = queue.length;
        queue.splice(place, 0, rest);
      }
      here = end;
    }
    parent.append(text.slice(at[here], at[to]));
    return height;
  };
  const colour = (link) => (link.entity === null ? "nil" : `k${colours.get(link.kb)}`);
  const lanesOf = (span) => [...new Set(span.links.map(colour))].slice(1);
  const make = (span) => {
    const best = span.links[0], name = best.entity === null ? "not in the knowledge base" : best.title, verdict = verdictOf(best);
    const mark = el("mark", {
      className: `${colour(best)}${span.links.some((link) => only?.has(same(link))) ? " only" : ""}${verdict ? ` ${best.verdict}` : ""}`,
      tabIndex: -1, role: "button", "aria-controls": "card", title: `${name} · ${verdict ?? score(best.score)}${foundBy(best)}`, "--s": Math.max(0, Math.min(1, best.score)).toFixed(2),
    });
    if (span.again) for (const name of ["tabindex", "role", "aria-controls"]) mark.removeAttribute(name);
    mark.links = span.links;
    mark.addEventListener("click", (event) => { event.stopPropagation(); chosen(mark); pick(span.links, mark, event.detail === 0); });
    return mark;
  };
  const all = () => [...box.querySelectorAll("mark[tabindex]")];
  const chosen = (mark) => {
    all().forEach((other) => { other.tabIndex = other === mark ? 0 : -1; });
    box.querySelectorAll("mark.chosen").forEach((other) => other.classList.remove("chosen"));
    mark.classList.add("chosen");
  };
  box.addEventListener("keydown", (event) => {
    const marks = all(), place = marks.indexOf(document.activeElement);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (place < 0) return;
    if (step) {
      const next = marks[Math.max(0, Math.min(marks.length - 1, place + step))];
      chosen(next); next.focus();
    } else if (event.key === "Enter" || event.key === " ") marks[place].click();
    else return;
    event.preventDefault();
  });
  fill(box, 0, at.length - 1);
  const marks = all(), open = marks.find((mark) => mark.links.some(isShown));
  if (open) chosen(open); else if (marks.length) marks[0].tabIndex = 0;
  return box;
}

// The same links as a list, for those who do not see marks.
export function listed(links, { colours, pick }) {
  const rows = links.map((link) => el("li", {}, el("button", {
    type: "button", className: `quiet ${link.entity === null ? "nil" : "k" + colours.get(link.kb)}`, onclick: (event) => pick([link], event.currentTarget, event.detail === 0),
  }, el("i"), said(link.text), " → ", said(link.entity === null ? "not in the knowledge base" : link.title), ` ${score(link.score)}`)));
  return el("details", { className: "list" }, el("summary", {}, `${count(links.length, "link")} as a list`), el("ol", {}, ...rows));
}
