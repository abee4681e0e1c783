// Opens pages of the laboratory in a headless browser and looks at them. Called by `run`, which says in SHEAF_PAGES what
// to open: [{kind: "report" | "compare" | "spoiled", html, results}].
import { createRequire } from "node:module";
import { existsSync, readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const require = createRequire(process.env.SHEAF_NODE_HOME + "/");
const { chromium } = require("playwright-core");

// A browser on a busy machine takes its time.
const PATIENCE = 180_000;

const browser = await chromium.launch({
  timeout: PATIENCE,
  executablePath: process.env.SHEAF_CHROMIUM,
  args: [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
  ],
});

/** Opens a page; what it says on the console and what it asks from elsewhere becomes a complaint. */
async function open(html, complaints, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1300, height: 1000 }, ...options });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  const url = pathToFileURL(html).href;
  page.on("console", (m) => ["error", "warning"].includes(m.type()) && complaints.push(`console: ${m.text()}`));
  page.on("pageerror", (error) => complaints.push(`script: ${error.message}`));
  page.on("request", (r) => r.url() !== url && !r.url().startsWith("data:") && complaints.push(`request: ${r.url()}`));
  await page.goto(url);
  return page;
}

/** What is drawn: every plot's size, its rows, and the points of its paths as they stand on the paper. */
const plots = (page) => page.evaluate(() => [...document.querySelectorAll("section[id] svg[data-x]")].map((svg) => {
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const box = svg.getBoundingClientRect();
  const series = [...svg.querySelectorAll(".series")].map((g) => {
    const points = [...g.querySelectorAll("path[data-label]")].flatMap((path) =>
      [...path.getAttribute("d").matchAll(/[ML](\S+) ([-\d.]+)/g)].map((m) => [Number(m[1]), Number(m[2])]));
    return { row: g.dataset.row, name: g.dataset.name, points, painted: getComputedStyle(g.querySelector("path")).stroke };
  });
  return {
    section: svg.closest("section").id, title: svg.getAttribute("aria-label"), width, height,
    shown: [box.width, box.height], series,
    labels: [...svg.querySelectorAll(".axes text")].map((t) => t.textContent),
  };
}));

function checkPlot(plot, complain) {
  const where = `${plot.section} / ${plot.title}`;
  if (plot.shown[0] < 200 || plot.shown[1] < 100) complain(`${where}: shown as small as ${plot.shown}`);
  if (plot.labels.filter((l) => /\d/.test(l)).length < 3) complain(`${where}: its axes have no figures: ${plot.labels}`);
  if (!plot.series.length) complain(`${where}: nothing drawn`);
  for (const { row, points, painted } of plot.series) {
    if (!points.length) complain(`${where}: row ${row} has no points`);
    if (painted === "none" || painted === "rgb(0, 0, 0)") complain(`${where}: row ${row} has no colour`);
    const outside = points.filter(([x, y]) => !(x >= 0 && x <= plot.width && y >= 0 && y <= plot.height));
    if (outside.length) complain(`${where}: row ${row} has points beside the paper: ${outside[0]}`);
  }
}

/** What must be drawn in a section, by the keys or names of the series: rows, or the operations of the only row. */
function expectedSeries(run, section) {
  const has = {
    throughput: (o) => o.series.n >= 3,
    percentiles: (o) => o.count && o.histogram,
    calls: (o, repetition) => o.calls_us.length && repetition < 2,
  }[section];
  const keys = new Set();
  run.rows.forEach((row, i) => row.repetitions.forEach((repetition, r) => repetition.operations.forEach((o) => {
    if (has(o, r)) keys.add(run.rows.length === 1 ? o.name : String(i));
  })));
  return keys;
}

function checkSeries(drawn, run, complain) {
  for (const section of ["throughput", "percentiles", "calls"]) {
    const key = (series) => (run.rows.length === 1 ? series.name : series.row);
    const there = new Set(drawn.filter((p) => p.section === section).flatMap((p) => p.series.map(key)));
    const missing = [...expectedSeries(run, section)].filter((key) => !there.has(key));
    if (missing.length) complain(`${section}: ${missing} are not drawn`);
  }
  for (const plot of drawn) {
    const keys = plot.series.map((s) => s.row);
    if (new Set(keys).size !== keys.length) complain(`${plot.section} / ${plot.title}: a row has two series`);
  }
}

async function checkLegend(page, complain) {
  const visible = (row) => page.evaluate((row) =>
    [...document.querySelectorAll(`svg[data-x] .series[data-row="${row}"]`)].filter((g) => getComputedStyle(g).display !== "none").length, row);
  const buttons = page.locator(".legend").first().locator("button");
  const [first, second] = await buttons.evaluateAll((all) => all.map((b) => b.dataset.row));
  const before = await visible(first);
  if (!before) return complain("the first series is not visible at first");
  await buttons.first().click();
  if (await visible(first)) complain("a click on the legend does not hide the series everywhere");
  if ((await buttons.first().getAttribute("aria-pressed")) !== "false") complain("the legend does not say that it is hidden");
  await buttons.first().click();
  if ((await visible(first)) !== before) complain("a second click does not bring the series back");
  if (!second) return;
  await buttons.nth(1).dblclick();
  if ((await visible(first)) || !(await visible(second))) complain("a double click does not leave the series alone");
  await buttons.nth(1).dblclick();
  if ((await visible(first)) !== before) complain("another double click does not bring the others back");
}

async function checkPointer(page, complain) {
  const plot = page.locator("section[id] svg[data-x]").first();
  await plot.scrollIntoViewIfNeeded();
  const at = await plot.evaluate((svg) => {
    const [x, y] = svg.querySelector(".series path[data-label]:not(.faint)").getAttribute("d").match(/M([\d.]+) ([\d.]+)/).slice(1);
    const p = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
    return { x: p.x, y: p.y, name: svg.querySelector(".series").dataset.name };
  });
  await page.mouse.move(at.x + 1, at.y);
  const tip = page.locator("#tip");
  const becomes = (state) => tip.waitFor({ state }).then(() => true, () => false);
  if (!(await becomes("visible"))) return complain("nothing is shown under the pointer");
  const text = await tip.innerText();
  if (!text.includes(at.name) || !/\d/.test(text)) complain(`under the pointer stands: ${text}`);
  await page.mouse.move(2, 2);
  if (!(await becomes("hidden"))) complain("what was under the pointer stays when it leaves");
}

/** What everything must withstand: no scripts, darkness, a narrow window. */
async function checkCircumstances(html, complain, complaints) {
  const still = await open(html, complaints, { javaScriptEnabled: false });
  const box = await still.locator("svg").nth(0).boundingBox();
  if (!box || box.width < 20) complain("without scripts nothing is drawn");
  const paper = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await open(html, complaints, { colorScheme: "light" });
  const dark = await open(html, complaints, { colorScheme: "dark", viewport: { width: 420, height: 900 } });
  if ((await paper(light)) === (await paper(dark))) complain("there is no dark look");
  const width = await dark.evaluate(() => document.documentElement.scrollWidth);
  if (width > 420) complain(`a window of 420 must be scrolled sideways: ${width}`);
  await Promise.all([still, light, dark].map((page) => page.context().close()));
}

async function checkReport({ html, results }) {
  const complaints = [];
  const complain = (text) => complaints.push(text);
  const run = JSON.parse(readFileSync(results, "utf8"));
  const page = await open(html, complaints);
  const drawn = await plots(page);
  if (!drawn.length) complain("there is no plot");
  for (const plot of drawn) checkPlot(plot, complain);
  checkSeries(drawn, run, complain);
  const cells = await page.locator("table.metrics td.n").count();
  const metrics = new Set(run.rows.flatMap((row) => row.metrics.map((m) => m.name))).size;
  // A line of each row has its checks besides; the groups of an only row have not.
  if (![run.rows.length * (metrics + 1), metrics].includes(cells)) complain(`the table has ${cells} cells for ${run.rows.length} rows, ${metrics} metrics`);
  const commands = await page.locator("pre .text").count();
  if (commands !== run.commands.length) complain(`${commands} of ${run.commands.length} commands are shown`);
  const passed = run.rows.every((row) => !row.failed && row.repetitions.every((r) => r.checks.every((c) => c.passed)));
  if ((await page.locator(".banner.bad").count()) !== (passed ? 0 : 1)) complain("the page hides or invents a failed check");
  if (drawn.length) {
    await checkLegend(page, complain);
    await checkPointer(page, complain);
  }
  await page.context().close();
  await checkCircumstances(html, complain, complaints);
  const points = drawn.flatMap((p) => p.series).reduce((sum, s) => sum + s.points.length, 0);
  return { complaints, seen: `${drawn.length} plots, ${run.rows.length} rows, ${points} points` };
}

async function checkCompare({ html }) {
  const complaints = [];
  const page = await open(html, complaints);
  const lines = await page.locator("table.compared tr").count();
  const intervals = await page.locator("svg.interval").count();
  if (!intervals || lines <= intervals) complaints.push(`${lines} lines, ${intervals} intervals`);
  await page.context().close();
  await checkCircumstances(html, (text) => complaints.push(text), complaints);
  return { complaints, seen: `${intervals} intervals` };
}

let failed = false;
for (const task of JSON.parse(process.env.SHEAF_PAGES)) {
  if (!existsSync(task.html)) throw new Error(`no page: ${task.html}`);
  const { complaints, seen } = task.kind === "compare" ? await checkCompare(task) : await checkReport(task);
  if (task.kind === "spoiled") {
    // A page that was spoiled on purpose: a checker that does not complain checks nothing.
    const missed = task.expected.filter((part) => !complaints.some((c) => c.includes(part)));
    failed ||= missed.length > 0;
    console.log(missed.length ? `FAIL spoiled page: nobody complained of ${missed}` : "ok   spoiled page: every fault was noticed");
    continue;
  }
  failed ||= complaints.length > 0;
  console.log(`${complaints.length ? "FAIL" : "ok  "} ${task.name}: ${seen}`);
  for (const complaint of complaints) console.log(`       ${complaint}`);
}
await browser.close();
process.exit(failed ? 1 : 0);
