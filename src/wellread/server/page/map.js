// Map a list of names to a knowledge base, one name a line. The tab is shown if the server has the route.
import { ask, byId, count, el, said, score } from "./parts.js";

const TOGETHER = 500;  // names of a request
let rows = [];
const tell = (words, className = "") => { byId("map-says").className = className; byId("map-says").textContent = words; };

export async function beginMap(kbs) {
  const { paths } = await ask("/openapi.json");
  byId("map-kb").replaceChildren(...kbs.map((kb) => el("option", { value: kb.name }, kb.name)));
  byId("tab-map").hidden = !paths["/map"];
}

async function map() {
  const strings = byId("names").value.split("\n").map((line) => line.trim()).filter(Boolean);
  if (!strings.length) { tell("Type or paste names first, one a line.", "wrong"); return; }
  const found = [];
  byId("map-form").setAttribute("aria-busy", "true");
  byId("map-go").disabled = true;
  try {
    while (found.length < strings.length) {
      tell(`Mapping… ${found.length ? `${found.length.toLocaleString("en")} of ${strings.length.toLocaleString("en")}` : ""}`);
      const some = strings.slice(found.length, found.length + TOGETHER);
      found.push(...(await ask("/map", { method: "POST", body: { strings: some, kb: byId("map-kb").value, best: 3 } })).strings);
    }
    rows = found;
    const matched = rows.filter((row) => row.entity !== null).length;
    tell(`${count(rows.length, "name")}, ${matched.toLocaleString("en")} of them matched.`);
    byId("mapped").replaceChildren(rows.length ? table() : "");
    byId("map-download").disabled = !rows.length;
  } catch (error) { tell(error.message, "wrong"); } finally {
    byId("map-form").removeAttribute("aria-busy");
    byId("map-go").disabled = false;
  }
}

function table() {
  const head = el("tr", {}, ...["name", "entity", "score", "found by", "or"].map((name) => el("th", { scope: "col" }, name)));
  const body = rows.map((row) => {
    const others = row.candidates.filter((one) => one.entity !== row.entity).slice(0, 2);
    const entity = row.entity === null ? [el("span", { className: "soft" }, "no match")] : [said(row.title), " ", el("code", {}, said(row.entity))];
    return el("tr", { className: row.entity === null ? "none" : "" }, el("td", {}, said(row.text)), el("td", {}, ...entity),
      el("td", { className: "value" }, row.score === null ? "" : score(row.score)), el("td", { className: "soft how" }, row.found_by ?? ""),
      el("td", { className: "soft" }, ...others.flatMap((one, at) => [at ? ", " : "", said(one.title), ` ${score(one.score)}`])));
  });
  return el("table", {}, el("thead", {}, head), el("tbody", {}, ...body));
}

const cell = (value) => {
  const text = String(value ?? ""), safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;  // spreadsheets would run it
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};

function download() {
  const lines = [["name", "entity", "title", "score", "found_by"], ...rows.map((row) => [row.text, row.entity, row.title, row.score, row.found_by])];
  const url = URL.createObjectURL(new Blob([lines.map((line) => `${line.map(cell).join(",")}\r\n`).join("")], { type: "text/csv" }));
  el("a", { href: url, download: "mapped.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

byId("map-form").addEventListener("submit", (event) => { event.preventDefault(); map(); });
byId("map-download").addEventListener("click", download);
