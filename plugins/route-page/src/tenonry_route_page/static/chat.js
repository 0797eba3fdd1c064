// The tab Chat: the conversation, its settings, and one streamed answer at a time.
import { call, events } from "./server.js";
import { element, render } from "./markdown.js";

const $ = (id) => document.getElementById(id);
let turns = []; // messages as the API takes them
let running = null; // AbortController of the answer that streams
let showError = () => {};
let answered = () => {};

export function start(onError, onAnswer) {
  showError = onError;
  answered = onAnswer;
  $("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  $("input").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
  });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });
  $("stop").addEventListener("click", () => running?.abort());
  $("retry").addEventListener("click", retry);
  $("edit").addEventListener("click", edit);
  $("new-chat").addEventListener("click", () => { running?.abort(); turns = []; draw(); showError(""); $("input").focus(); });
}

const readImage = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve({ type: "image_url", image_url: { url: reader.result } });
  reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
  reader.readAsDataURL(file);
});

async function send() {
  const text = $("input").value.trim();
  const files = [...$("images").files];
  if (running || !(text || files.length)) return;
  try {
    const images = await Promise.all(files.map(readImage));
    turns.push({ role: "user", content: images.length ? [...images, { type: "text", text }] : text });
  } catch (error) { return showError(error.message); }
  $("input").value = $("images").value = "";
  await answer();
}

function dropAnswer() {
  while (turns.length && turns.at(-1).role !== "user") turns.pop();
}

function retry() {
  if (running) return;
  dropAnswer();
  if (turns.length) answer();
}

function edit() {
  if (running) return;
  dropAnswer();
  const last = turns.pop();
  draw();
  if (last) $("input").value = textOf(last);
  $("input").focus();
}

const textOf = ({ content }) => typeof content === "string" ? content : content.filter((part) => part.type === "text").map((part) => part.text).join("\n");

function body() {
  const system = $("system").value.trim();
  const sent = turns.map(({ role, content }) => ({ role, content }));
  const fields = { model: $("model").value, stream: true, messages: system ? [{ role: "system", content: system }, ...sent] : sent };
  for (const [id, name] of [["temperature", "temperature"], ["max-tokens", "max_tokens"], ["seed", "seed"]])
    if ($(id).value !== "") fields[name] = Number($(id).value);
  return JSON.stringify(fields);
}

async function answer() {
  const asked = turns; // a new chat replaces the list while the answer ends
  const turn = { role: "assistant", content: "", reasoning: "", calls: [] };
  draw();
  running = new AbortController();
  showError("");
  busy(true);
  const node = $("messages").appendChild(element("article", undefined, "assistant"));
  try {
    const headers = { "content-type": "application/json" };
    const response = await call("v1/chat/completions", { method: "POST", headers, body: body(), signal: running.signal });
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      add(turn, event.choices?.[0]?.delta ?? {});
      show(node, turn);
    }
    $("status").textContent = "";
    answered();
  } catch (error) {
    if (error.name !== "AbortError") showError(error.message);
    $("status").textContent = error.name === "AbortError" ? "Stopped." : "";
  }
  running = null;
  if (turn.content || turn.reasoning || turn.calls.length) asked.push(turn);
  busy(false);
  draw();
}

function add(turn, delta) {
  turn.content += delta.content ?? "";
  turn.reasoning += delta.reasoning ?? delta.reasoning_content ?? "";
  for (const part of delta.tool_calls ?? []) {
    const made = turn.calls[part.index] ??= { name: "", arguments: "" };
    made.name += part.function?.name ?? "";
    made.arguments += part.function?.arguments ?? "";
  }
}

function show(node, turn) {
  const isOpen = node.querySelector("details")?.open ?? false;
  const log = $("messages");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  node.replaceChildren();
  if (Array.isArray(turn.content)) for (const part of turn.content.filter((each) => each.type === "image_url")) {
    const image = element("img");
    image.src = part.image_url.url;
    image.alt = "Attached image";
    node.append(image);
  }
  if (turn.reasoning) {
    const fold = element("details", undefined, "reasoning");
    fold.open = isOpen;
    fold.append(element("summary", "Reasoning"), element("div", turn.reasoning));
    node.append(fold);
  }
  node.append(turn.role === "user" ? textOf(turn) : render(turn.content));
  for (const made of turn.calls ?? []) node.append(element("pre", `${made.name}(${made.arguments})`));
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function draw() {
  $("messages").replaceChildren();
  for (const turn of turns) show($("messages").appendChild(element("article", undefined, turn.role)), turn);
  $("messages").scrollTop = $("messages").scrollHeight;
  $("retry").disabled = $("edit").disabled = !turns.length || running !== null;
}

function busy(isBusy) {
  $("send").disabled = isBusy;
  $("retry").disabled = $("edit").disabled = isBusy;
  $("stop").hidden = !isBusy;
  if (isBusy) $("status").textContent = "Answering…";
}
