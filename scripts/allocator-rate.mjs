// Millions of events per second of the allocator in Chromium, on the recorded training loops, and plans per second of a
// search on its grid: `make speed`.
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";
import { launch } from "../tests/e2e/browser.js";
import { serve } from "./serve.mjs";

const TRACES = "tests/data/allocator/traces/";
const names = readdirSync(TRACES).filter((name) => name.startsWith("real-llama-")).sort();
const dir = process.argv[2];
writeFileSync(`${dir}/index.html`, "<!doctype html><title>allocator</title>");
const { server, url } = await serve(dir);
const browser = await launch();
const page = await browser.newPage();
// The rate of one run, and what it is per second of processor time: other work on the machine must not count.
async function measure(traces) {
  await page.goto(url);
  const cdp = await page.context().newCDPSession(page);
  const events = [];
  cdp.on("Tracing.dataCollected", ({ value }) => events.push(...value));
  await cdp.send("Tracing.start", { transferMode: "ReportEvents", traceConfig: { includedCategories: ["disabled-by-default-devtools.timeline"] } });
  const rate = await page.evaluate(async (traces) => {
    globalThis.traces = traces;
    await (await import("./allocator-rate.js")).default();
    return globalThis.rates[0];
  }, traces);
  const complete = new Promise((done) => cdp.on("Tracing.tracingComplete", done));
  await cdp.send("Tracing.end");
  await complete;
  const task = events.filter((e) => e.name === "RunTask" && e.tdur).reduce((a, b) => (b.dur > a.dur ? b : a));
  return { rate, processor: (rate * task.dur) / task.tdur };
}
for (const name of names) {
  const { rate, processor } = await measure([gunzipSync(readFileSync(TRACES + name)).toString()]);
  const of = `${rate.toFixed(1)} million events/s in Chromium, ${processor.toFixed(1)} million per second of processor time`;
  console.log(`${name.replace(".json.gz", "").padEnd(45)} ${of}`);
}
const { rate, processor } = await measure([]);
const of = `${rate.toFixed(0)} plans/s in Chromium, ${processor.toFixed(0)} per second of processor time (≥ 15,000)`;
console.log(`${"search".padEnd(45)} ${of}`);
await browser.close();
server.close();
