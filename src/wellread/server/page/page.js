// The page: requests, their results, and the address that has both for another person.
import { card, clear, isShown, showAdder, showLinks } from "./card.js";
import { asDocument, corrected, corrections, madeBy, tellCount } from "./corrections.js";
import { begin, knowledge, open } from "./knowledge.js";
import { beginMap } from "./map.js";
import { decide, listed, marked, same } from "./marks.js";
import { ask, byId, count, el, offsets, said, score, session } from "./parts.js";

const state = { text: "", asked: "", threshold: null, model: "auto", other: "", nil: false, off: new Set(), answers: new Map(), nils: new Map() };
let health = null, running = null, failed = "";

// asking

const models = () => [...new Set(health.kbs.flatMap((kb) => kb.models))];
const about = (kb) => health.kbs.find((one) => one.name === kb);
const modelOf = (kb, model) => (model === "auto" ? kb.models[0] : model);

const tell = (words, className = "") => { byId("status").className = className; byId("status").textContent = words; };
const wrong = (words) => { tell(words, "wrong"); return ""; };

const looks = (words, className = "") => { byId("looking").className = className; byId("looking").textContent = words; };

async function link() {
  running?.abort();
  const mine = running = new AbortController();
  state.text = byId("text").value;
  state.text = state.text.toWellFormed?.() ?? state.text;  // half a letter of two, as cut texts have, is none in JSON
  if (!state.text.trim()) { byId("text").focus(); return wrong("Type or paste a text first."); }
  tell("Reading…");
  byId("result").setAttribute("aria-busy", "true");
  try {
    const wanted = [state.model, ...(state.other ? [state.other] : [])];
    const post = (model, more) => ask("/link", { method: "POST", body: { text: state.text, model, ...more }, signal: mine.signal });
    const every = { threshold: 0, overlaps: "keep" };
    const usual = { nil: true, top_k: 0, ...(state.threshold === null ? {} : { threshold: state.threshold }) };
    const [told, nils] = await Promise.all([every, ...(state.nil ? [usual] : [])].map((more) => Promise.all(wanted.map((model) => post(model, more)))));
    state.asked = state.text;
    remember();  // now: an address has no use for a text that is refused, which may be of any length
    state.answers = new Map(wanted.map((model, at) => [model, told[at]]));
    for (const [model, { documents }] of state.answers) {
      for (const one of documents[0].links) madeBy.set(one, about(one.kb) ? modelOf(about(one.kb), model) : model);
    }
    state.nils = new Map(wanted.map((model, at) => [model, nils?.[at].documents[0].links.filter((one) => one.entity === null) ?? []]));
    clear();
    return draw();
  } catch (error) {
    return error.name === "AbortError" ? "" : wrong(error.message);
  } finally {
    if (running === mine) byId("result").removeAttribute("aria-busy");
  }
}

// showing

function linksOf(model) {
  const { links } = state.answers.get(model).documents[0];
  const linked = health.kbs.filter((kb) => !state.off.has(kb.name)).flatMap((kb) => {
    const name = modelOf(kb, model);
    if (!kb.models.includes(name)) return [];
    const threshold = state.threshold ?? kb.thresholds[name];
    return decide(links.filter((one) => one.kb === kb.name), kb.overlaps[name], threshold);
  });
  const shown = corrected(state.asked, linked, (kb) => !state.off.has(kb));
  // NIL depends on the threshold: the server decides it anew, and what has a link meanwhile is not NIL
  const nils = state.nil ? state.nils.get(model).filter((nil) => !shown.some((one) => one.start < nil.end && nil.start < one.end)) : [];
  return [...shown, ...nils].sort((one, other) => one.start - other.start || other.end - one.end);
}

function draw() {
  if (!state.answers.size) return "";
  const shown = [...state.answers.keys()].map((model) => ({ model, links: linksOf(model) }));
  const sets = shown.map(({ links }) => new Set(links.map(same)));
  const panes = shown.map(({ model, links }, at) => {
    const others = sets[1 - at], only = others && new Set(links.map(same).filter((one) => !others.has(one)));
    const options = { colours: card.colours, only, pick: showLinks, isShown };
    const right = links.filter((one) => one.verdict !== "wrong"), names = new Set(right.map((one) => `${one.start} ${one.end}`)).size;
    const many = names < right.length ? `${count(names, "name")}, ${count(right.length, "link")}` : count(right.length, "link");
    const told = only ? `${many}, ${only.size} only here` : many;
    return el("article", { className: "pane", "aria-label": `Links by ${title(model)}` },
      el("h2", {}, said(title(model)), el("small", {}, ` ${told}`)), marked(state.asked, links, options),
      links.length ? listed(links, options) : nothing(model));
  });
  byId("result").className = shown.length > 1 ? "two" : "";
  byId("result").replaceChildren(...panes);
  const says = shown.map(({ model, links }) => `${title(model)}: ${count(links.length, "link")}`).join(" · ");
  tell(says, "hidden");  // it stands above each text too
  return says;
}

// The reasons why nothing is linked, and a way to see more.
function nothing(model) {
  const on = health.kbs.filter((kb) => !state.off.has(kb.name)), where = on.map((kb) => kb.name).join(" or ");
  if (!on.length) return el("p", { className: "soft" }, "All layers are off. Choose one above to see its links.");
  const weak = state.answers.get(model).documents[0].links.filter((one) => one.entity !== null && !state.off.has(one.kb));
  const best = weak.reduce((top, one) => (top && top.score >= one.score ? top : one), null);
  const known = el("button", { type: "button", className: "quiet", onclick: () => { byId("query").value = state.asked.trim().slice(0, 60); view("knowledge"); byId("find").requestSubmit(); } }, "search for it under Knowledge");
  if (!best) return el("p", { className: "soft" }, `No name of ${where} was found in this text. If an entity should be there, `, known, ".");
  const lower = Math.max(0, Math.floor(best.score * 100 - 1) / 100);
  const more = el("button", { type: "button", className: "quiet", onclick: () => { state.threshold = lower; tellThreshold(); draw(); settled(); } }, `Lower the threshold to ${score(lower)}`);
  return el("p", { className: "soft" }, "No link is above the threshold. The best one is ", el("q", {}, said(best.text)), " → ", said(best.title), ` with a score of ${score(best.score)}. `, more, ", or ", known, ".");
}

const title = (model) => (model === "auto" ? [...new Set(health.kbs.map((kb) => kb.models[0]))].join(" + ") : model);

function tellThreshold() {
  const usual = [...new Set(health.kbs.map((kb) => (kb.thresholds[modelOf(kb, state.model)] ?? 0).toFixed(2)))].sort();
  byId("threshold").value = state.threshold ?? usual[0];
  const told = state.threshold === null ? `${[...new Set([usual[0], usual.at(-1)])].join(" to ")} (usual)` : state.threshold.toFixed(2);
  byId("threshold-says").textContent = told;
  byId("threshold").setAttribute("aria-valuetext", told);
  byId("usual").style.visibility = state.threshold === null ? "hidden" : "";
}

function fillTools() {
  const option = (value, name) => el("option", { value }, name);
  const named = models();
  byId("model").replaceChildren(option("auto", `usual (${title("auto")})`), ...named.map((name) => option(name, name)));
  byId("other").replaceChildren(option("", "nothing"), ...named.map((name) => option(name, name)));
  byId("model").value = state.model;
  byId("other").value = state.other;
  health.kbs.forEach((kb, at) => card.colours.set(kb.name, at % 6));
  const box = (name, className, checked, set) => el("label", { className }, el("input", {
    type: "checkbox", checked, onchange: (event) => { set(event.target.checked); remember(); },
  }), el("i"), said(name));
  const layer = (kb, at) => box(kb.name, `k${at % 6}`, !state.off.has(kb.name), (on) => { state.off[on ? "delete" : "add"](kb.name); draw(); });
  byId("layers").replaceChildren(el("legend", {}, "layers"), ...health.kbs.map(layer),
    box("not in any", "nil", state.nil, (on) => { state.nil = on; if (on && state.answers.size) link(); else draw(); }));
  tellThreshold();
}

function fillEncoders() {
  const choice = byId("by"), known = new Map(health.encoders.map((one) => [one.name, one]));
  choice.replaceChildren(...health.encoders.map((one) => el("option", { value: one.name }, one.name)));
  // one that has learned its maps is shown with those
  const tell = () => { byId("lend").hidden = byId("weigh").hidden = !known.get(choice.value)?.plain; };
  choice.addEventListener("change", tell);
  tell();
}

// the address of what is shown: after #, which browsers keep to themselves

function remember() {
  const told = new URLSearchParams();
  if (state.text) told.set("text", state.text);
  if (state.threshold !== null) told.set("threshold", state.threshold);
  if (state.model !== "auto") told.set("model", state.model);
  if (state.other) told.set("beside", state.other);
  if (state.nil) told.set("nil", "1");
  state.off.forEach((kb) => told.append("off", kb));
  history.replaceState(null, "", told.size ? `#${told}` : location.pathname);
}

function recall() {
  const told = new URLSearchParams(location.hash.slice(1)), number = Number.parseFloat(told.get("threshold"));
  state.text = told.get("text") ?? "";
  state.threshold = number >= 0 && number <= 1 ? number : null;
  const known = (name) => models().includes(name);
  state.model = known(told.get("model")) ? told.get("model") : "auto";
  state.other = known(told.get("beside")) ? told.get("beside") : "";
  state.nil = told.get("nil") === "1";
  state.off = new Set(told.getAll("off").filter(about));
}

async function share() {
  state.text = byId("text").value;
  remember();
  try {
    await navigator.clipboard.writeText(location.href);
    tell("The link is copied: it has the text and all that you have chosen.");
  } catch {
    tell("Copy the address of this page: it has the text and all that you have chosen.");
  }
}

function download() {
  if (!state.answers.size) { wrong("Link a text first."); return; }
  const documents = [...state.answers].map(([model, told]) => ({
    text: state.asked, links: linksOf(model).map(asDocument).filter(Boolean), id: null, meta: { ...told.documents[0].meta, threshold: state.threshold, revisions: told.revisions },
  }));
  const url = URL.createObjectURL(new Blob([JSON.stringify(documents.length > 1 ? documents : documents[0], null, 1)], { type: "application/json" }));
  el("a", { href: url, download: "links.json" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// views

// An address after # is what is shown here: the link that skips to the result must not be taken for one.
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); view("links"); byId("result").focus(); });

const tabs = [...document.querySelectorAll("[role=tab]")];
function view(name) {
  for (const tab of tabs) {
    const here = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", here);
    tab.tabIndex = here ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !here;
  }
  if (name === "attention" && !byId("explained").value) {
    byId("explained").value = (byId("text").value.match(/^.*?[.?!](?=\s|$)/s)?.[0] ?? byId("text").value).slice(0, 400).trim();
  }
}
tabs.forEach((tab) => {
  tab.addEventListener("click", () => view(tab.getAttribute("aria-controls")));
  tab.addEventListener("keydown", (event) => {
    const there = tabs.filter((one) => !one.hidden), at = there.indexOf(tab);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: -1 }[event.key];
    if (to === undefined) return;
    const next = there.at(to % there.length);
    view(next.getAttribute("aria-controls")); next.focus(); event.preventDefault();
  });
});

card.edit = (known) => { view("knowledge"); open(known); };
async function relink() {
  health = await ask("/health");
  corrections.kbs = health.kbs;
  tellAbout();
  return byId("text").value.trim() && state.answers.size ? link() : "";
}

// The text is linked again after a change of an entity; returns what became of its names in the text.
knowledge.changed = async (kb, id, names) => {
  const says = await relink();
  if (!says) return [];
  const marks = [...document.querySelectorAll("#result mark[tabindex]")];
  const its = marks.filter((mark) => mark.links.some((one) => one.kb === kb && one.entity === id));
  if (its.length) {
    const show = el("button", { type: "button", className: "quiet", onclick: () => { view("links"); its[0].click(); its[0].focus(); } }, "see it in the text");
    return [its.length > 1 ? `It is linked ${its.length} times: ` : "It is linked: ", el("q", {}, said(its[0].links[0].text)), ` (${score(its[0].links.find((one) => one.entity === id).score)}), `, show, "."];
  }
  const lower = state.asked.toLowerCase(), there = names.find((name) => name && lower.includes(name.toLowerCase()));
  if (!there) return [`The text was linked again: ${says}.`];
  const weak = [...state.answers.values()].flatMap((told) => told.documents[0].links).filter((one) => one.kb === kb && one.entity === id);
  const best = Math.max(0, ...weak.map((one) => one.score));
  return ["The text has “", said(there), best ? `”, but its score is ${score(best)}, below the threshold.` : "”, but the linker does not link it there."];
};

corrections.relink = relink;
corrections.text = () => state.asked;
corrections.changed = (link) => {
  draw();
  const marks = link ? [...document.querySelectorAll("#result mark[tabindex]")] : [];
  const mark = marks.find((one) => one.links.some((other) => other.kb === link.kb && other.start === link.start && other.end === link.end));
  if (mark) mark.click(); else clear();
};

// A selected span of the text may be a missing link.
function addSelected(text, start, end) {
  while (start < end && /\s/.test(text[start])) start++;
  while (start < end && /\s/.test(text[end - 1])) end--;
  if (start >= end) return false;
  const places = offsets(text);
  showAdder(text, places.findLastIndex((place) => place <= start), places.findIndex((place) => place >= end), text.slice(start, end));
  return true;
}

byId("result").addEventListener("mouseup", () => {
  const selection = getSelection(), box = selection.anchorNode?.parentElement?.closest(".text");
  if (!session.editable || selection.isCollapsed || !box || !box.contains(selection.focusNode)) return;
  const range = selection.getRangeAt(0), before = document.createRange();
  before.selectNodeContents(box);
  before.setEnd(range.startContainer, range.startOffset);
  const start = before.toString().length;
  addSelected(state.asked, start, start + range.toString().length);
});
byId("add-link").addEventListener("click", () => {
  const { selectionStart, selectionEnd, value } = byId("text");
  if (!state.answers.size || value.toWellFormed() !== state.asked) wrong("Link the text first.");
  else if (!addSelected(state.asked, selectionStart, selectionEnd)) wrong("Select the name first, in the text or in its field, then press this button.");
});

byId("ask").addEventListener("submit", (event) => { event.preventDefault(); link(); });
byId("text").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); link(); } });
byId("threshold").addEventListener("input", (event) => { state.threshold = Number(event.target.value); tellThreshold(); draw(); });
const settled = () => { remember(); if (state.nil && state.answers.size) link(); };
byId("threshold").addEventListener("change", settled);
byId("usual").addEventListener("click", () => { state.threshold = null; tellThreshold(); byId("threshold").focus(); draw(); settled(); });
for (const [id, key] of [["model", "model"], ["other", "other"]]) {
  byId(id).addEventListener("change", (event) => { state[key] = event.target.value; tellThreshold(); if (byId("text").value.trim()) link(); });
}
byId("share").addEventListener("click", share);
byId("download").addEventListener("click", download);
byId("explain").addEventListener("submit", () => { failed = ""; looks("Looking… the first time takes some seconds."); byId("view").hidden = false; });
byId("view").addEventListener("load", async () => {
  if (!byId("looking").textContent) return;
  looks(failed || "The view is below.", "hidden");
  // a frame that nobody answered loads too, and does not say so
  await ask("/health").catch((error) => { byId("view").hidden = true; looks(error.message, "wrong"); });
});
addEventListener("message", (event) => { if (event.source === byId("view").contentWindow) { failed = String(event.data); looks(failed, "hidden"); } });
addEventListener("hashchange", () => { recall(); fillTools(); byId("text").value = state.text; if (state.text) link(); });

function tellAbout() {
  byId("about").replaceChildren(...health.kbs.flatMap((kb, at) => [at ? " · " : "", said(kb.name), ` ${count(kb.entities, "entity").replace(/ys$/, "ies")}`]));
}

// Shown before the first text is linked.
function welcome() {
  const named = health.kbs.map((kb) => kb.name).join(" and "), empty = health.kbs.every((kb) => !kb.entities);
  if (empty) return [el("p", { className: "soft" }, `${named} has no entities yet. Add some under Knowledge, or with wellread kb add.`)];
  const step = (...words) => el("li", {}, ...words);
  return [el("div", { className: "soft" }, el("p", {}, "The text above is an example; type or paste your own."), el("ol", {}, ...[
    step("Press Link, or Ctrl and Enter: names of entities in ", said(named), " are underlined, in the colour of their knowledge base."),
    step("Pick an underlined name: the card shows the entity, the other candidates and their scores."),
    step("Lower the threshold to see weaker links, raise it to see only sure ones."),
    session.editable ? step("Is a link wrong or missing? Correct it in the card, or select the name in the text. Corrections improve the linker: wellread adapt.") : null].filter(Boolean)))];
}

try {
  health = await ask("/health");
  session.editable = health.editable;
  recall();
  fillTools();
  tellAbout();
  begin(health.kbs, health.editable);
  corrections.kbs = health.kbs;
  byId("add-link").hidden = !health.editable;
  tellCount();
  fillEncoders();
  clear();
  byId("result").replaceChildren(...welcome());
  const [sample] = await Promise.all([state.text ? { text: "" } : ask("/sample"), beginMap(health.kbs)]);
  byId("text").value = state.text || sample.text;
  if (state.text) await link();
  document.documentElement.dataset.ready = "yes";
} catch (error) { wrong(error.message); }
