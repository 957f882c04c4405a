"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const table = byId("tasks");
  if (!table) return;
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const lists = ["state", "fault", "tag", "split"].map(byId).filter(Boolean);
  const holds = {
    state: (row, value) => row.dataset.state === value,
    fault: (row, value) => row.dataset.faults.split("\n").includes(value),
    tag: (row, value) => row.dataset.tags.split("\n").includes(value),
    split: (row, value) => row.dataset.split === value,
  };

  function filter() {
    const text = byId("find").value.trim().toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const fits = row.dataset.name.toLowerCase().includes(text)
        && lists.every((list) => !list.value || holds[list.id](row, list.value));
      row.hidden = !fits;
      const detail = details.get(row);
      if (detail) detail.hidden = !fits || row.querySelector(".open").getAttribute("aria-expanded") === "false";
      shown += fits;
    }
    byId("shown").textContent = `${shown} of ${rows.length} tasks`;
  }

  function sort(button) {
    const head = button.closest("th");
    const key = button.dataset.key;
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.querySelectorAll("th[aria-sort]")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const compare = key === "name"
      ? (a, b) => a.dataset.name.localeCompare(b.dataset.name, "en", { numeric: true })
      : (a, b) => a.dataset[key] - b.dataset[key];
    rows.sort((a, b) => (down ? -compare(a, b) : compare(a, b)) || a.dataset.rank - b.dataset.rank);
    body.append(...rows.flatMap((row) => [row, details.get(row)].filter(Boolean)));
  }

  // The trace viewer. All texts are set as text, never as markup.
  const make = (name, className, ...children) => {
    const element = document.createElement(name);
    if (className) element.className = className;
    element.append(...children);
    return element;
  };
  const callText = ([name, args]) => `${name}(${args})`;
  const cut = (text, length) => (text.length > length ? `${text.slice(0, length)}…` : text);
  const escape = (text) => text.replace(/[^\P{C}\n\t]|[\p{Zl}\p{Zp}]/gu,
    (letter) => `\\u${letter.codePointAt(0).toString(16).padStart(4, "0")}`);
  const indent = (text) => {
    try {
      const value = JSON.parse(text);
      return value !== null && typeof value === "object" ? escape(JSON.stringify(value, null, 1)) : text;
    } catch {
      return text;
    }
  };
  const passed = (trace) => trace.reward !== null && trace.reward > 0.999999;

  async function unpack(id) {
    const bytes = Uint8Array.from(atob(byId(id).textContent.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  // The messages in which the agents differ first: in a call, or else in a text.
  function divergence(old, now) {
    const steps = (trace, isCall) => trace.messages.flatMap((message, index) => {
      if (message.role !== "assistant") return [];
      if (isCall) return (message.calls || []).map((call) => [index, callText(call)]);
      return message.text === undefined ? [] : [[index, message.text]];
    });
    for (const isCall of [true, false]) {
      const [a, b] = [steps(old, isCall), steps(now, isCall)];
      for (let i = 0; i < Math.max(a.length, b.length); i += 1) {
        if (a[i]?.[1] !== b[i]?.[1]) return [a[i]?.[0], b[i]?.[0]];
      }
    }
    return [];
  }

  // Pairs of messages that maximize the likeness of the two traces (Needleman and Wunsch).
  function align(old, now) {
    const likeness = (a, b) => {
      if (a.role !== b.role || !a.calls !== !b.calls) return -1;
      if (a.calls && a.calls[0][0] !== b.calls[0][0]) return 0.2;
      if (a.calls) return callText(a.calls[0]) === callText(b.calls[0]) ? 4 : 3;
      return a.text === b.text ? 3 : a.of === b.of ? 1 : 0.2;
    };
    const [rows, columns] = [old.length, now.length];
    const best = Array.from({ length: rows + 1 }, () => new Float64Array(columns + 1));
    for (let i = rows - 1; i >= 0; i -= 1) {
      for (let j = columns - 1; j >= 0; j -= 1) {
        const both = likeness(old[i], now[j]);
        best[i][j] = Math.max(best[i + 1][j], best[i][j + 1], both < 0 ? 0 : both + best[i + 1][j + 1]);
      }
    }
    const pairs = [];
    let [i, j] = [0, 0];
    while (i < rows || j < columns) {
      const both = i < rows && j < columns ? likeness(old[i], now[j]) : -1;
      if (both >= 0 && best[i][j] === both + best[i + 1][j + 1]) pairs.push([i++, j++]);
      else if (i < rows && (j === columns || best[i + 1][j] >= best[i][j + 1])) pairs.push([i++, undefined]);
      else pairs.push([undefined, j++]);
    }
    return pairs;
  }

  function messageCard(trace, index, other, side) {
    if (index === undefined) return make("div", "gap");
    const message = trace.messages[index];
    const names = (message.calls || []).map(([name]) => name).join(", ");
    const title = message.role === "tool" ? `result of ${message.of || "a call"}` : message.role;
    const card = make("details", `message ${message.role}${message.error ? " error" : ""}`);
    const brief = [message.text, names && `→ ${names}`].filter(Boolean).join(" ").replace(/\s+/g, " ");
    card.append(make("summary", "", make("b", "", `${index} ${title}${message.error ? " (error)" : ""}`), " ",
      make("span", "brief", cut(brief, 160))));
    if (message.text !== undefined) {
      card.append(make("pre", "", message.role === "tool" ? indent(message.text) : message.text));
    }
    for (const [name, args] of message.calls || []) {
      const isSame = (other?.calls || []).some((call) => callText(call) === callText([name, args]));
      card.append(make("pre", `call${isSame || !other ? "" : " differs"}`, `→ ${name} ${args}`));
    }
    card.setAttribute("aria-label", `${side} message ${index}, ${title}`);
    return card;
  }

  function sideHead(name, traces, chosen, onChoose) {
    const trace = traces[chosen];
    const head = make("div", "side-head", make("b", "", name), " ");
    if (!trace) return make("div", "side-head", make("b", "", name), " the trace is not at hand");
    if (traces.length > 1) {
      const list = make("select");
      list.setAttribute("aria-label", `${name} trial`);
      traces.forEach((item, index) => {
        const option = make("option", "", `trial ${item.trial}: ${item.reward === null ? "lost" : item.reward}`);
        option.selected = index === chosen;
        list.append(option);
      });
      list.addEventListener("change", () => onChoose(list.selectedIndex));
      head.append(list, " ");
    }
    const parts = Object.entries(trace.parts).map(([part, value]) => `${part} ${value}`).join(", ");
    const reward = trace.reward === null ? "no reward" : `reward ${trace.reward}`;
    head.append(make("span", passed(trace) ? "good" : "bad", reward), ` · ended by ${trace.end}${parts && ` · ${parts}`}`);
    if (trace.note) head.append(make("p", "note", trace.note));
    if (trace.checks.length) {
      const failed = trace.checks.filter(([met]) => !met).length;
      const list = make("details", "gold", make("summary", "", `checks: ${trace.checks.length - failed} met, ${failed} missed`));
      list.open = failed > 0 && traces.length < 9;
      for (const [met, text] of trace.checks) list.append(make("p", met ? "good" : "bad", `${met ? "✓" : "✗"} ${text}`));
      head.append(list);
    }
    if (trace.why.length) head.append(make("pre", "why", trace.why.join("\n")));
    return head;
  }

  function draw(view, sides, chosen, faults) {
    const [old, now] = sides.map((side, index) => side[chosen[index]]);
    const choose = (side) => (index) => draw(view, sides, chosen.map((value, at) => (at === side ? index : value)), faults);
    view.replaceChildren();
    const grid = make("div", "pair-grid");
    grid.append(...["baseline", "candidate"].map((name, index) => sideHead(name, sides[index], chosen[index], choose(index))));
    const split = old && now ? divergence(old, now) : [];
    const broken = (now?.messages || []).findIndex((message) =>
      (message.broken || []).some(([rule]) => !faults.length || faults.includes(rule)));
    let focus;
    for (const [i, j] of align(old?.messages || [], now?.messages || [])) {
      const cards = [messageCard(old, i, now?.messages[j], "baseline"), messageCard(now, j, old?.messages[i], "candidate")];
      const isSplit = split.length > 0 && ((i !== undefined && i === split[0]) || (j !== undefined && j === split[1]));
      cards.forEach((card, side) => {
        const index = [i, j][side];
        for (const [rule, why] of (index === undefined ? [] : [old, now][side].messages[index].broken || [])) {
          card.append(make("p", "breaks", `breaks ${rule.replaceAll("_", " ")}: ${why}`));
          card.open = true;
        }
        if (isSplit && index === split[side] && index !== undefined) {
          card.classList.add("diverges");
          card.open = true;
          card.firstChild.append(make("span", "mark", "first difference"));
        }
      });
      if (broken >= 0 ? j === broken : isSplit && !focus) focus = cards[1].className === "gap" ? cards[0] : cards[1];
      grid.append(...cards);
    }
    const bar = make("div", "bar");
    for (const [label, isOpen] of [["open all messages", true], ["close all", false]]) {
      const button = make("button", "", label);
      button.type = "button";
      button.addEventListener("click", () => grid.querySelectorAll(".message").forEach((card) => { card.open = isOpen; }));
      bar.append(button);
    }
    if (focus) {
      const button = make("button", "to-focus", broken >= 0 ? `go to the broken rule: message ${broken}` : `go to the first difference: ${split[1] === undefined ? `baseline's message ${split[0]}` : `message ${split[1]}`}`);
      button.type = "button";
      button.addEventListener("click", () => {
        focus.open = true;
        focus.scrollIntoView({ block: "center" });
        focus.firstChild.focus();
      });
      bar.prepend(button);
    }
    view.append(bar, grid);
  }

  const details = new Map();
  async function toggle(row, isOpen = !details.get(row) || details.get(row).hidden) {
    const button = row.querySelector(".open");
    let detail = details.get(row);
    if (!detail) {
      detail = make("tr", "detail");
      const cell = make("td");
      cell.colSpan = row.cells.length;
      const view = make("div", "viewer");
      cell.append(view);
      detail.append(cell);
      details.set(row, detail);
      row.after(detail);
      const sides = await unpack(button.dataset.trace);
      const faults = row.dataset.faults.split("\n").filter(Boolean);
      const isFaulty = (trace) => faults.includes(trace.end)
        || trace.messages.some((message) => (message.broken || []).some(([rule]) => faults.includes(rule)));
      const first = (traces, test) => Math.max(0, traces.findIndex(test));
      const now = faults.length ? first(sides[1], isFaulty) : first(sides[1], (trace) => !passed(trace));
      draw(view, sides, [first(sides[0], passed), now], faults);
    }
    detail.hidden = !isOpen;
    button.setAttribute("aria-expanded", String(isOpen));
    return detail;
  }

  async function show(row, isFocused) {
    const detail = await toggle(row, true);
    row.scrollIntoView();
    if (isFocused) detail.querySelector(".to-focus")?.click();
  }

  byId("filters").addEventListener("input", filter);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  for (const button of table.tHead.querySelectorAll("button")) button.addEventListener("click", () => sort(button));
  for (const button of body.querySelectorAll(".open")) {
    button.addEventListener("click", () => toggle(button.closest("tr")));
  }
  for (const button of document.querySelectorAll(".look")) {
    const row = byId(button.dataset.row);
    if (row.querySelector(".open")) button.addEventListener("click", () => show(row, true));
    else button.disabled = true;
  }
  filter();
  const first = rows.find((row) => row.querySelector(".open"));
  const linked = location.hash && rows.find((row) => `#${row.id}` === location.hash && row.querySelector(".open"));
  if (linked) show(linked, true);
  else if (first) toggle(first, true);
})();
