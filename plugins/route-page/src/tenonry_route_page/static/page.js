// Entry of the page: tabs, the model list, the key and errors.
import { call, key, keepKey, statePath } from "./server.js";
import * as chat from "./chat.js";
import * as engine from "./engine.js";

const $ = (id) => document.getElementById(id);
let timer = 0;
let models = []; // as listed; with a status where the server has several

function showError(text) {
  $("error").textContent = text;
  $("error").hidden = !text;
  if (/API key/.test(text)) { $("settings").open = true; $("api-key").focus(); }
}

async function loadModels() {
  try {
    models = (await (await call("v1/models")).json()).data;
    const chosen = $("model").value;
    $("model").replaceChildren(...models.map(({ id }) => new Option(id, id)));
    if (models.some(({ id }) => id === chosen)) $("model").value = chosen;
    await showImageField();
    showError("");
  } catch (error) { showError(error.message); }
}

const isReady = () => (models.find(({ id }) => id === $("model").value)?.status ?? "ready") === "ready";

async function showImageField() {
  const state = isReady() ? await (await call(statePath())).json() : {};
  $("image-field").hidden = !state.max_images;
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
$("model").addEventListener("change", loadModels);
$("api-key").value = key();
$("api-key").addEventListener("change", () => { keepKey($("api-key").value.trim()); loadModels(); });
chat.start(showError, () => { if (!isReady()) loadModels(); }); // the answer's request has loaded the model
$("input").focus();
loadModels();
