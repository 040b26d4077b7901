// The card of an entity: why it was linked, other candidates, its description, names and neighbours.
import { adder, aliasButton, chooser, judge } from "./corrections.js";
import { foundBy } from "./marks.js";
import { ask, byId, count, el, said, score, session, short } from "./parts.js";

const past = [];
let asked = 0;
const MOST = 420, FEWEST = 3, GIST = 90;
const gists = new Map();

export const card = { edit: () => {}, colours: new Map() };

const shut = () => byId("card").replaceChildren(el("p", { className: "soft" }, "Pick an underlined name to see what it is, and what else it may mean."));

export function clear() { past.length = 0; asked++; gists.clear(); byId("card").classList.remove("open"); shut(); }
byId("card").addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });

let opener = null, picked = [];
export const isShown = (link) => byId("card").classList.contains("open") && picked.includes(link);

function close() {
  clear();
  document.querySelectorAll("mark.chosen").forEach((mark) => mark.classList.remove("chosen"));
  if (!opener) return;
  // the slider draws all marks anew: that of the same link, if it still has one
  const again = [...document.querySelectorAll("#result mark[tabindex]")].find((mark) => mark.links.some((link) => picked.includes(link)));
  (opener.isConnected ? opener : again ?? byId("text")).focus();
}

// A mark was picked: its links, each with its candidates; the first entity is told of in full.
export function showLinks(links, from, byKey) {
  past.length = 0;
  opener = from;
  picked = links;
  const known = links.find((link) => link.entity !== null);
  const done = show(known ? { kb: known.kb, id: known.entity, links, from } : { links, from });
  if (byKey) done.then(() => byId("card").focus());  // who sees the card need not be led there
}

// A span was selected that may be a missing link.
export function showAdder(text, start, end, span) {
  clear();
  opener = null;
  byId("card").classList.add("open");
  byId("card").replaceChildren(closing(), adder(text, start, end, span, clear));
  byId("card").querySelector("input").focus();
}

async function show(place) {
  const mine = ++asked, box = byId("card");
  box.classList.add("open");
  const parts = (place.links ?? []).map((link) => linked(link, place));
  if (place.id === undefined) { box.replaceChildren(closing(), ...parts); return; }
  let known;
  try {
    known = await ask(pathOf(place.kb, place.id));
  } catch (error) {
    if (mine === asked) box.replaceChildren(closing(), ...parts, el("p", { className: "note" }, error.message));
    return;
  }
  if (mine !== asked) return;
  box.replaceChildren(...[closing(), head(known), ...parts, ...told(known, place)].filter(Boolean));
  box.scrollTop = 0;
  place.from?.scrollIntoView({ block: "nearest" });  // where the card lies over the text
}

const pathOf = (kb, id) => `/entities/${encodeURIComponent(id)}?kb=${encodeURIComponent(kb)}`;

// What an entity is, in a line: candidates of one name, such as the senses of a word, are told apart by it.
function gist(kb, id) {
  const key = `${kb}\u0000${id}`, box = said(id);
  if (!gists.has(key)) gists.set(key, ask(pathOf(kb, id)).then((known) => short(known.description, GIST) || id, () => id));
  gists.get(key).then((words) => { box.textContent = words; });
  return el("small", {}, box);
}

const closing = () => el("button", { type: "button", className: "quiet close", "aria-label": "Close", onclick: close }, "×");

const go = (from, to) => { past.push(from); show(to); };

export const showEntity = (kb, id) => { past.length = 0; show({ kb, id }); };

function head(known) {
  const back = past.length ? el("button", { type: "button", className: "quiet back", onclick: () => show(past.pop()) }, "← back") : null;
  return el("div", { className: `head k${card.colours.get(known.kb)}` }, back,
    el("h2", {}, said(known.title)),
    el("p", { className: "soft" }, known.kind ? said(known.kind) : null, known.kind ? " · " : null,
      el("code", {}, said(known.id)), " · ", said(known.kb)));
}

function linked(link, place) {
  const nil = link.entity === null;
  const best = Math.max(...link.candidates.map((one) => one.score), 1e-9);
  const most = best > 1 ? best : 1;
  const named = (one) => one.title || one.entity, names = link.candidates.map(named);
  const isAlone = (one) => names.indexOf(named(one)) === names.lastIndexOf(named(one));
  const row = (one) => el("li", { className: one.entity === link.entity ? "chosen" : "" },
    el("button", {
      type: "button", className: "quiet", title: one.entity,
      onclick: () => go(place, { kb: link.kb, id: one.entity, links: place.links }),
    }, said(named(one))),
    el("span", { className: "bar", "--v": Math.max(0, one.score / most).toFixed(3) }),
    el("span", { className: "value" }, score(one.score)), ...chooser(link, one), isAlone(one) ? null : gist(link.kb, one.entity));
  const weak = (one, at) => at >= FEWEST && one.score < 0.01;
  const rows = link.candidates.filter((one, at) => !weak(one, at)).map(row), rest = link.candidates.filter(weak);
  if (rest.length) {
    const more = el("li", { className: "rest" }, el("button", { type: "button", className: "quiet", onclick: () => more.replaceWith(...rest.map(row)) },
      `${rest.length} more, below 0.01`));
    rows.push(more);
  }
  return el("div", { className: `link ${nil ? "nil" : "k" + card.colours.get(link.kb)}` },
    el("p", {}, el("q", {}, said(link.text)), nil ? " is named, but not in " : " in ", said(link.kb ?? "any knowledge base"), ": score ", el("b", {}, score(link.score)),
      link.mention_score === null ? null : ` · a mention ${score(link.mention_score)}`, foundBy(link) || null),
    judge(link), rows.length ? el("ol", { className: `candidates${session.editable ? " judged" : ""}`, "aria-label": "Candidates" }, ...rows) : null);
}

function told(known, place) {
  const parts = [];
  if (known.description) {
    const long = known.description.length > MOST;
    const text = said(long ? known.description.slice(0, MOST).trimEnd() + "…" : known.description);
    const more = long ? el("button", { type: "button", className: "quiet more" }, "more") : null;
    if (more) more.onclick = () => { text.textContent = known.description; more.remove(); };
    parts.push(el("p", { className: "gist", dir: "auto" }, text, more ? " " : null, more));
  }
  const names = Object.entries(known.aliases).sort((one, other) => other[1] - one[1]);
  if (names.length) {
    parts.push(el("h3", {}, "Names"), el("ul", { className: "names" },
      ...names.slice(0, 12).map(([name, many]) => el("li", { title: `seen ${many.toLocaleString("en")} times` }, said(name))),
      names.length > 12 ? el("li", { className: "soft" }, `and ${names.length - 12} more`) : null));
  }
  const unknown = aliasButton(known, place.links?.find((link) => link.entity === known.id && link.kb === known.kb));
  if (unknown) parts.push(unknown);
  for (const [outgoing, title] of [[true, "Facts"], [false, "Neighbours that speak of it"]]) {
    const here = known.neighbours.filter((one) => one.outgoing === outgoing);
    if (!here.length) continue;
    const groups = new Map();
    here.forEach((one) => groups.set(one.relation, [...(groups.get(one.relation) ?? []), one]));
    parts.push(el("h3", {}, title), el("dl", { className: "facts" }, ...[...groups].flatMap(([relation, some]) => [
      el("dt", {}, outgoing ? "" : "← ", said(relation)),
      el("dd", {}, ...some.flatMap((one, number) => [el("span", {}, el("button", {  // a comma stays with its name
        type: "button", className: "quiet", title: one.entity, onclick: () => go(place, { kb: known.kb, id: one.entity }),
      }, said(one.title)), number < some.length - 1 ? "," : ""), " "]))])));
  }
  if (known.more_neighbours) parts.push(el("p", { className: "soft" }, `and ${count(known.more_neighbours, "neighbour")} more`));
  parts.push(el("p", { className: "foot" }, el("button", { type: "button", onclick: () => card.edit(known) }, "Edit"),
    el("span", { className: "soft" }, ` revision ${known.revision}`)));
  return parts;
}
