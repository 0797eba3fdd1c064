// Requests to this server: the key, errors in the server's words, server-sent events.

const KEY = "tenonry.key";
export const key = () => sessionStorage.getItem(KEY) || "";
export const keepKey = (value) => sessionStorage.setItem(KEY, value);

// A server of several models has a state of each.
export const statePath = () => `page/state?model=${encodeURIComponent(document.getElementById("model").value)}`;

export async function call(path, options = {}) {
  if (!key() && "needsKey" in document.documentElement.dataset)
    throw new Error("This server requires an API key; enter it under Settings.");
  const headers = { ...options.headers };
  if (key()) headers.authorization = `Bearer ${key()}`;
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer.");
  }
  if (answer.ok) return answer;
  const text = await answer.text();
  let message = text.trim() || `HTTP status ${answer.status}`;
  try {
    message = JSON.parse(text).error.message;
  } catch { /* no error object: the text is the message */ }
  throw new Error(message);
}

export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).replace(/\r\n/g, "\n").split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}
