// Entry of the page: tabs, the model list, the key and errors.
import { call, key, keepKey } from "./server.js";
import * as chat from "./chat.js";
import * as engine from "./engine.js";

const $ = (id) => document.getElementById(id);
let timer = 0;

function showError(text) {
  $("error").textContent = text;
  $("error").hidden = !text;
  if (/API key/.test(text)) { $("settings").open = true; $("api-key").focus(); }
}

async function loadModels() {
  try {
    const { data } = await (await call("v1/models")).json();
    const chosen = $("model").value;
    $("model").replaceChildren(...data.map(({ id }) => new Option(id, id)));
    if (data.some(({ id }) => id === chosen)) $("model").value = chosen;
    const state = await (await call("page/state")).json();
    $("image-field").hidden = !state.max_images;
    showError("");
  } catch (error) { showError(error.message); }
}

async function tick() {
  try {
    await engine.read();
    showError("");
  } catch (error) { showError(error.message); }
  if (!$("engine").hidden) timer = setTimeout(tick, 1000);
}

function select(name) {
  for (const each of ["chat", "engine"]) {
    $(each).hidden = each !== name;
    $(`tab-${each}`).setAttribute("aria-selected", String(each === name));
    $(`tab-${each}`).tabIndex = each === name ? 0 : -1;
  }
  clearTimeout(timer);
  if (name === "engine") tick();
}

for (const name of ["chat", "engine"]) {
  $(`tab-${name}`).addEventListener("click", () => select(name));
  $(`tab-${name}`).addEventListener("keydown", (event) => {
    if (!/^Arrow(Left|Right)$/.test(event.key)) return;
    const other = name === "chat" ? "engine" : "chat";
    select(other);
    $(`tab-${other}`).focus();
  });
}
$("api-key").value = key();
$("api-key").addEventListener("change", () => { keepKey($("api-key").value.trim()); loadModels(); });
chat.start(showError);
$("input").focus();
loadModels();
