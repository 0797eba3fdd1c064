// The tab Engine: figures from /page/state, once a second while it is shown.
import { call, statePath } from "./server.js";
import { element } from "./markdown.js";

const $ = (id) => document.getElementById(id);
let before = null; // tokens and time of the last reading

function sums(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const match = /^tenonry:(\w+)(?:\{.*\})? (\S+)/.exec(line);
    if (match) found[match[1]] = (found[match[1]] ?? 0) + Number(match[2]);
  }
  return found;
}

function rate(tokens) {
  const now = { tokens, at: performance.now() };
  const last = before;
  before = now;
  return last && tokens >= last.tokens ? ((tokens - last.tokens) * 1000 / (now.at - last.at)).toFixed(1) : "–";
}

function figures(pairs) {
  $("figures").replaceChildren(...pairs.map(([name, value]) => {
    const box = element("div");
    box.append(element("dt", name), element("dd", String(value)));
    return box;
  }));
}

const rows = (body, lines) => body.replaceChildren(...lines.map((cells) => {
  const row = element("tr");
  row.append(...cells.map((cell) => element("td", String(cell))));
  return row;
}));

export async function read() {
  const state = await (await call(statePath())).json();
  const found = sums(state.metrics); // without a stat logger that renders metrics, none
  const engines = Math.max(1, state.num_engines);
  const share = found.kv_cache_usage_perc;
  figures([
    ["Rows running", found.num_requests_running ?? "–"],
    ["Row limit", state.max_num_seqs * engines],
    ["Queue", found.num_requests_waiting ?? "–"],
    ["KV blocks used", share === undefined ? "–" : `${Math.round(share * state.num_blocks / engines)} / ${state.num_blocks}`],
    ["Tokens per second", found.generation_tokens_total === undefined ? "–" : rate(found.generation_tokens_total)],
    ["Context length", state.max_model_len],
  ]);
  rows($("plugins"), state.plugins.map((each) => [each.kind, each.name, each.distribution, each.version]));
  $("no-decisions").textContent = state.decisions_note;
  $("decisions").hidden = !state.decisions.length;
  rows($("decisions").tBodies[0], state.decisions.map((each) => [each.step, each.tokens, each.free_blocks < 0 ? "–" : each.free_blocks]));
}
