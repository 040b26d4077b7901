// Corrections of links: right or wrong, another entity, a missing link. The server keeps them; marks show them.
import { ask, byId, count, el, said, session, short } from "./parts.js";

export const corrections = { kbs: [], text: () => "", changed: () => {}, relink: async () => {} };
export const madeBy = new WeakMap();  // link -> the model that made it
const kept = new Map();  // text -> Map(span of a KB -> { id, link })
const VERDICTS = { right: "marked as right", wrong: "marked as wrong", changed: "corrected by hand", added: "added by hand" };

const key = (link) => [link.kb, link.start, link.end].join(" ");
export const verdictOf = (link) => VERDICTS[link.verdict];

// The links of a text with its corrections. A corrected link is the same object each time, so that its card stays open.
export function corrected(text, links, isOn) {
  const own = kept.get(text);
  if (!own?.size) return links;
  const places = new Set(links.map(key));
  const added = [...own.values()].map((one) => one.link).filter((link) => link.entity !== null && isOn(link.kb) && !places.has(key(link)));
  return [...links.map((link) => own.get(key(link))?.link ?? link), ...added];
}

// A link as documents have it; null for one that was marked as wrong.
export function asDocument({ verdict, base, ...link }) { return verdict === "wrong" ? null : link; }

async function keep(link, entity, title) {
  const text = corrections.text(), base = link.base ?? link, predicted = base.entity;
  const body = { kb: link.kb, text, start: link.start, end: link.end, entity, predicted, score: predicted === null ? null : Math.min(1, base.score), model: madeBy.get(base) ?? null };
  const done = await ask("/corrections", { method: "POST", token: session.token, body });
  const verdict = predicted === null ? "added" : entity === null ? "wrong" : entity === predicted ? "right" : "changed";
  const shown = { ...base, base, verdict, ...(entity === null ? {} : { entity, title, score: entity === predicted ? base.score : 1 }) };
  if (!kept.has(text)) kept.set(text, new Map());
  kept.get(text).set(key(link), { id: done.id, link: shown });
  counted(done);
  corrections.changed(shown);
}

async function undo(link) {
  const text = corrections.text(), one = kept.get(text)?.get(key(link));
  if (!one) return;
  const done = await ask(`/corrections/${one.id}?kb=${encodeURIComponent(link.kb)}`, { method: "DELETE", token: session.token });
  kept.get(text).delete(key(link));
  counted(done);
  corrections.changed(link.base.entity === null ? null : link.base);
}

// the count

function counted({ kb, count: many }) {
  corrections.kbs.find((one) => one.name === kb).corrections = many;
  tellCount();
}

export function tellCount() {
  const total = corrections.kbs.reduce((sum, kb) => sum + kb.corrections, 0);
  byId("kept").hidden = !total || !session.editable;
  byId("kept-says").textContent = count(total, "correction");
}

async function download() {
  for (const kb of corrections.kbs.filter((one) => one.corrections)) {
    const lines = await ask(`/corrections?kb=${encodeURIComponent(kb.name)}`, { token: session.token, plain: true });
    const url = URL.createObjectURL(new Blob([lines], { type: "application/x-ndjson" }));
    el("a", { href: url, download: `${kb.name}.corrections.jsonl` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }
}
byId("kept-download").addEventListener("click", () => {
  const says = byId("status");
  const tell = (words, className) => { says.className = className; says.replaceChildren(...words); };
  tell([], "");
  attempt(download, (words, wrong) => tell(words, wrong ? "wrong" : ""));
});

// Do what needs the token; ask for it first if it is not known, and again if it is refused.
async function attempt(action, tell) {
  if (!session.token) { askToken(action, tell, "Corrections need the server's token."); return; }
  try {
    tell([], false);
    await action();
  } catch (error) {
    if (error.status === 401) { session.token = ""; askToken(action, tell, "This is not the server's token."); } else tell([error.message], true);
  }
}

function askToken(action, tell, why) {
  const field = el("input", { type: "password", autocomplete: "off", className: "token" });
  const form = el("form", { className: "tools" }, el("p", {}, why), el("label", {}, "token ", field), el("button", { type: "submit" }, "Use it"));
  form.addEventListener("submit", (event) => { event.preventDefault(); session.token = field.value.trim(); attempt(action, tell); });
  tell([form], true);
  field.focus();
}

// in the card

function teller() {
  const box = el("div", { className: "says", role: "status" });
  return [box, (words, wrong) => { box.className = wrong ? "says wrong" : "says"; box.replaceChildren(...words); }];
}

// Buttons that say whether a link is right, or what it should be.
export function judge(link) {
  if (!session.editable || link.entity === null || !link.kb) return null;
  const base = link.base ?? link, [says, tell] = teller();
  const button = (name, verdict, act) => el("button", { type: "button", "aria-pressed": String(link.verdict === verdict), onclick: () => attempt(act, tell) }, name);
  const place = el("div");
  const other = el("button", { type: "button", onclick: () => { place.replaceChildren(finder(base, {})); place.querySelector("input").focus(); } }, "Another entity…");
  return el("div", { className: "judge" },
    el("div", { className: "tools", role: "group", "aria-label": `Is the link of ${link.text} right?` },
      ...(base.entity === null ? [] : [button("✓ Right", "right", () => keep(link, base.entity, base.title)), button("✗ Wrong", "wrong", () => keep(link, null))]),
      other, link.verdict ? el("button", { type: "button", className: "quiet", onclick: () => attempt(() => undo(link), tell) }, "Undo") : null),
    link.verdict ? el("p", { className: "soft" }, `This link was ${verdictOf(link)}.`) : null, says, place);
}

// Choose a candidate instead of the link's entity.
export function chooser(link, candidate) {
  if (!session.editable || !link.kb || candidate.entity === link.entity) return [];
  const name = candidate.title || candidate.entity, [says, tell] = teller();
  return [el("button", {
    type: "button", className: "quiet", "aria-label": `${name} is right`, title: `${name} is right`,
    onclick: () => attempt(() => keep(link, candidate.entity, name), tell),
  }, "✓"), says];
}

// Search for the right entity of a span, and keep it; optionally the span becomes a name of that entity.
function finder(link, { choose, adding = false }) {
  const query = el("input", { type: "search", value: link.text, autocomplete: "off", spellcheck: false, "aria-label": "Search for the right entity" });
  const where = el("select", { "aria-label": "Knowledge base" }, ...corrections.kbs.map((kb) => el("option", { value: kb.name }, kb.name)));
  where.value = link.kb;
  const alias = el("input", { type: "checkbox", checked: adding }), list = el("ol", { className: "choices" }), [says, tell] = teller();
  let searched = 0, timer = 0;
  const find = async () => {
    const mine = ++searched, words = query.value.trim();
    if (!words) { list.replaceChildren(); return; }
    const found = async (how) => (await ask(`/entities?${new URLSearchParams({ search: words, how, kb: where.value, limit: 6 })}`)).entities;
    try {
      let entities = await found("prefix");
      if (!entities.length) entities = await found("fuzzy");
      if (mine !== searched) return;
      list.replaceChildren(...entities.map((one) => el("li", {}, el("button", { type: "button", className: "entry", onclick: () => attempt(() => pick(one), tell) },
        el("b", {}, said(one.title)), " ", el("code", {}, said(one.id)), el("span", { className: "soft", dir: "auto" }, said(short(one.description, 90)))))));
      tell(entities.length ? [] : ["Nothing found. Try other words, or add the entity under Knowledge."], false);
    } catch (error) { if (mine === searched) tell([error.message], true); }
  };
  const pick = async (one) => {
    if (alias.checked) await addAlias(one.kb, one.id, link.text);
    await keep(one.kb === link.kb ? link : { ...link, kb: one.kb, entity: null, base: undefined }, one.id, one.title);
    choose?.();
  };
  query.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(find, 150); });
  where.addEventListener("change", find);
  find();
  return el("div", { className: "finder" }, el("div", { className: "tools" }, query, corrections.kbs.length > 1 ? where : null),
    el("label", { className: "soft" }, alias, "make “", said(link.text), "” a name of it"), list, says);
}

// A card for a selected span that is not linked.
export function adder(text, start, end, span, done) {
  const link = { start, end, text: span, kb: corrections.kbs[0].name, entity: null, title: null, score: 1, candidates: [], mention_score: null, found_by: null };
  return el("div", { className: "link" }, el("h2", {}, "Add a link"), el("p", {}, el("q", {}, said(span)), " is …"), finder(link, { choose: done, adding: true }));
}

async function addAlias(kb, id, name) {
  const path = `/entities/${encodeURIComponent(id)}?kb=${encodeURIComponent(kb)}`;
  const { title, description, kind, popularity, aliases, facts } = await ask(path);
  if (Object.hasOwn(aliases, name)) return;
  const body = { title, description, kind, popularity, aliases: Object.fromEntries([...Object.entries(aliases), [name, 1]]), facts };
  await ask(path, { method: "PUT", token: session.token, body });
  await corrections.relink();
}

// A button beside an entity's names, for the name in the text if it is not one of them.
export function aliasButton(known, link) {
  if (!session.editable || !link || link.entity !== known.id || link.kb !== known.kb || link.verdict === "wrong") return null;
  const lower = link.text.toLowerCase();
  if (Object.keys(known.aliases).some((name) => name.toLowerCase() === lower)) return null;
  const [says, tell] = teller();
  return el("div", {}, el("button", {
    type: "button", className: "quiet", onclick: () => attempt(async () => { await addAlias(known.kb, known.id, link.text); corrections.changed(link); }, tell),
  }, "Add “", said(link.text), "” to its names"), says);
}
