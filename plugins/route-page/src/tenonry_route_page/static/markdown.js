// Markdown as DOM nodes: code blocks, headings, lists, bold, code. Text enters through textContent only.

const INLINE = /(`[^`\n]+`|\*\*[^*\n]+\*\*)/;

export function element(tag, text, className) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
}

function inline(parent, text) {
  for (const part of text.split(INLINE)) {
    if (part.length > 2 && part.startsWith("`") && part.endsWith("`")) parent.append(element("code", part.slice(1, -1)));
    else if (part.length > 4 && part.startsWith("**") && part.endsWith("**")) parent.append(element("strong", part.slice(2, -2)));
    else parent.append(part);
  }
  return parent;
}

function block(lines) {
  const heading = /^#{1,6}\s+(.*)/.exec(lines[0]);
  if (heading && lines.length === 1) return inline(element("h3"), heading[1]);
  return inline(element("p"), lines.join("\n"));
}

export function render(text) {
  const out = document.createDocumentFragment();
  let lines = [], list = null, code = null;
  const flush = () => {
    if (lines.length) out.append(block(lines));
    lines = [];
  };
  for (const line of text.split("\n")) {
    if (code) {
      if (line.trim() === "```") code = null;
      else code.textContent += line + "\n";
      continue;
    }
    const item = /^\s*([-*+]|\d+[.)])\s+(.*)/.exec(line);
    if (item) {
      flush();
      const tag = /\d/.test(item[1]) ? "OL" : "UL";
      if (!list || list.tagName !== tag) out.append(list = document.createElement(tag));
      list.append(inline(element("li"), item[2]));
      continue;
    }
    list = null;
    if (line.trim().startsWith("```")) {
      flush();
      const pre = element("pre");
      pre.append(code = element("code", ""));
      out.append(pre);
    } else if (!line.trim()) flush();
    else if (/^#{1,6}\s/.test(line)) { flush(); out.append(block([line])); }
    else lines.push(line);
  }
  flush();
  return out;
}
