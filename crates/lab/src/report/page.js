"use strict";
(() => {
  const all = (what, from = document) => [...from.querySelectorAll(what)];

  // Legends: a click switches the row in every plot; with Alt (or twice) only that row stays.
  const rows = new Set(all(".legend button").map((b) => b.dataset.row));
  const hidden = new Set();
  const show = () => {
    for (const b of all(".legend button")) b.setAttribute("aria-pressed", String(!hidden.has(b.dataset.row)));
    for (const g of all("svg [data-row]")) g.classList.toggle("off", hidden.has(g.dataset.row));
  };
  const only = (row) => {
    const alone = !hidden.has(row) && hidden.size === rows.size - 1;
    hidden.clear();
    if (!alone) for (const other of rows) if (other !== row) hidden.add(other);
    show();
  };
  for (const b of all(".legend button")) {
    b.title = "Click: hide or show. Double click: only this one.";
    b.addEventListener("click", (e) => {
      if (e.altKey) return only(b.dataset.row);
      if (!hidden.delete(b.dataset.row)) hidden.add(b.dataset.row);
      show();
    });
    b.addEventListener("dblclick", () => only(b.dataset.row));
  }

  // Figures as people read them; the same rules as in the tables.
  const digits = (v) => {
    const s = Math.abs(v);
    if (s >= 99.95) return Math.round(v).toLocaleString("en-US");
    return s === 0 ? "0" : String(+v.toPrecision(3));
  };
  const print = (v, unit) => {
    if (unit === "us") {
      if (v < 1) return digits(v * 1e3) + " ns";
      if (v < 1e3) return digits(v) + " µs";
      return v < 1e6 ? digits(v / 1e3) + " ms" : digits(v / 1e6) + " s";
    }
    if (unit === "nines") return v <= 1 ? "0 %" : +(100 - 100 / v).toFixed(Math.ceil(Math.log10(v))) + " %";
    return unit === "s" ? digits(v) + " s" : digits(v);
  };

  // A scale as the drawing left it: spacing, ends of the data, ends on the paper, unit.
  const scale = (text) => {
    const [spacing, low, high, from, to, unit] = text.split(" ").map((t, i) => (i > 0 && i < 5 ? +t : t));
    const back = (p) => {
      const share = (p - from) / (to - from);
      return spacing === "log" ? low * (high / low) ** share : low + share * (high - low);
    };
    return { back, from, to, unit };
  };
  const points = (path) => {
    path.points ??= [...path.getAttribute("d").matchAll(/[ML]([-\d.]+) ([-\d.]+)/g)].map((m) => [+m[1], +m[2]]);
    return path.points;
  };
  // Points are in order of x: the nearest is found by halving.
  const nearest = (list, x) => {
    let low = 0, high = list.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[middle][0] < x) low = middle + 1; else high = middle;
    }
    return low > 0 && x - list[low - 1][0] < list[low][0] - x ? list[low - 1] : list[low];
  };

  const tip = document.getElementById("tip");
  const MOST = 14;
  const hover = (svg, event) => {
    const x = scale(svg.dataset.x), y = scale(svg.dataset.y);
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    if (at.x < x.from - 8 || at.x > x.to + 8) return leave(svg);
    const found = [];
    for (const path of all(".series:not(.off) > path[data-label]:not(.faint)", svg)) {
      const list = points(path);
      if (!list.length) continue;
      const p = nearest(list, at.x);
      if (Math.abs(p[0] - at.x) < 40) found.push({ p, path, series: path.parentNode });
    }
    if (!found.length) return leave(svg);
    const lead = found.reduce((a, b) => (Math.abs(b.p[0] - at.x) < Math.abs(a.p[0] - at.x) ? b : a)).p[0];
    found.sort((a, b) => a.p[1] - b.p[1]);
    draw(svg, found, lead);
    tip.replaceChildren();
    const head = document.createElement("b");
    const name = x.unit === "s" ? "at " : x.unit === "nines" ? "" : svg.dataset.xTitle + " ";
    head.textContent = name + print(x.back(lead), x.unit);
    tip.append(head);
    for (const { p, path, series } of found.slice(0, MOST)) {
      const line = document.createElement("span"), dot = document.createElement("i"), value = document.createElement("em");
      line.className = series.getAttribute("class");
      line.classList.remove("series");
      const text = document.createTextNode([series.dataset.name, path.dataset.label].filter(Boolean).join(", "));
      value.textContent = print(y.back(p[1]), y.unit);
      line.append(dot, text, value);
      tip.append(line);
    }
    if (found.length > MOST) tip.append(`and ${found.length - MOST} more`);
    tip.hidden = false;
    const right = event.pageX + 18 + tip.offsetWidth < scrollX + innerWidth - 8;
    tip.style.left = `${Math.max(4, right ? event.pageX + 18 : event.pageX - 18 - tip.offsetWidth)}px`;
    tip.style.top = `${event.pageY + 14}px`;
  };
  const SVG = "http://www.w3.org/2000/svg";
  const draw = (svg, found, lead) => {
    const layer = svg.querySelector(".pointer");
    layer.replaceChildren();
    const y = scale(svg.dataset.y);
    const line = document.createElementNS(SVG, "path");
    line.setAttribute("d", `M${lead} ${y.to}V${y.from}`);
    layer.append(line);
    for (const { p, series } of found) {
      const dot = document.createElementNS(SVG, "circle");
      for (const [key, value] of [["cx", p[0]], ["cy", p[1]], ["r", 3.5]]) dot.setAttribute(key, value);
      dot.setAttribute("class", series.getAttribute("class").replace("series", ""));
      layer.append(dot);
    }
  };
  const leave = (svg) => {
    svg.querySelector(".pointer").replaceChildren();
    tip.hidden = true;
  };
  for (const svg of all("svg[data-x]")) {
    svg.addEventListener("pointermove", (e) => hover(svg, e));
    svg.addEventListener("pointerleave", () => leave(svg));
  }

  // Commands are there to be repeated.
  for (const pre of all("pre[data-copy]")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      const text = all(".text", pre).map((t) => t.textContent).join("\n");
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(pre);
        button.textContent = "Selected";
      }
    });
    pre.before(button);
  }
})();
