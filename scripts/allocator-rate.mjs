// Millions of events per second of the allocator in Chromium, on the recorded training loops: `make speed`.
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
for (const name of names) {
  const trace = gunzipSync(readFileSync(TRACES + name)).toString();
  await page.goto(url);
  // The share of the processor that the page got: other work on the machine must not count.
  const cdp = await page.context().newCDPSession(page);
  const events = [];
  cdp.on("Tracing.dataCollected", ({ value }) => events.push(...value));
  await cdp.send("Tracing.start", { transferMode: "ReportEvents", traceConfig: { includedCategories: ["disabled-by-default-devtools.timeline"] } });
  const rate = await page.evaluate(async (trace) => {
    globalThis.traces = [trace];
    await (await import("./allocator-rate.js")).default();
    return globalThis.rates[0];
  }, trace);
  const complete = new Promise((done) => cdp.on("Tracing.tracingComplete", done));
  await cdp.send("Tracing.end");
  await complete;
  const task = events.filter((e) => e.name === "RunTask" && e.tdur).reduce((a, b) => (b.dur > a.dur ? b : a));
  const processor = (rate * task.dur) / task.tdur;
  const of = `${rate.toFixed(1)} million events/s in Chromium, ${processor.toFixed(1)} million per second of processor time`;
  console.log(`${name.replace(".json.gz", "").padEnd(45)} ${of}`);
}
await browser.close();
server.close();
